"""Installation on a new machine with the real command, from an index on a loopback port."""

import os
import platform
import sys
from pathlib import Path

import pytest

from launcher.bootstrap import LLAMA, TELEMETRY
from tests.launcher.checkout import UV, Checkout, PackageIndex, build_wheel, requirement
from tests.support.waiting import HANGS_AFTER

pytestmark = pytest.mark.slow


@pytest.fixture
def uv_wheel(tmp_path: Path, index: PackageIndex) -> Path:
    """Return a wheel with the real uv, which the index has."""
    system = f"macosx_11_0_{platform.machine()}" if sys.platform == "darwin" else f"manylinux_2_17_{platform.machine()}"
    files = {"uv-0.0.data/scripts/uv": UV.read_bytes()}
    wheel = build_wheel(directory=tmp_path, name="uv", version="0.0", files=files, tag=f"py3-none-{system}")
    index.wheels.append(wheel)
    return wheel


def without_uv(checkout: Checkout) -> None:
    checkout.variables["PATH"] = "/usr/bin:/bin"


def names_of_packages(checkout: Checkout) -> set[str]:
    return {path.name.split("-")[0] for path in checkout.venv.glob("lib/python3.*/site-packages/*.dist-info")}


def test_a_missing_uv_is_fetched_from_the_index_and_kept(
    checkout: Checkout, index: PackageIndex, wheel: Path, uv_wheel: Path
) -> None:
    without_uv(checkout)
    checkout.require(requirement(wheel), development=requirement(uv_wheel))
    done = checkout.run("install", "--no-input")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Virtual environment ready: 1 packages" in done.stdout
    # Neither pip nor setuptools.
    assert names_of_packages(checkout) == {"tinything"}
    assert os.access(checkout.venv / "uv", os.X_OK)

    fetched = index.paths.count(f"/files/{uv_wheel.name}")
    checkout.require(requirement(wheel) + "# changed\n", development=requirement(uv_wheel))
    assert checkout.run("install", "--no-input").returncode == 0
    assert index.paths.count(f"/files/{uv_wheel.name}") == fetched == 1


@pytest.mark.parametrize(("option", "requirements"), [("--telemetry", TELEMETRY), ("--llama", LLAMA)])
def test_packages_are_added(
    checkout: Checkout, index: PackageIndex, wheel: Path, tmp_path: Path, option: str, requirements: str
) -> None:
    added = build_wheel(directory=tmp_path, name="exporter", version="1.0", files={"exporter.py": b""})
    index.wheels.append(added)
    checkout.require(requirement(wheel))
    (checkout.root / requirements).write_text(requirement(added))
    assert checkout.run("install", "--no-input").returncode == 0
    assert names_of_packages(checkout) == {"tinything"}
    assert checkout.run("install", option, "--no-input").returncode == 0
    assert names_of_packages(checkout) == {"tinything", "exporter"}
    # Neither removes what the other installed.
    index.paths.clear()
    for options in ([], [option]):
        assert checkout.run("install", *options, "--no-input").returncode == 0
    assert (index.paths, names_of_packages(checkout)) == ([], {"tinything", "exporter"})


def test_an_installed_environment_needs_no_index(checkout: Checkout, index: PackageIndex, wheel: Path) -> None:
    checkout.require(requirement(wheel))
    assert checkout.run("install", "--no-input").returncode == 0
    index.paths.clear()
    assert checkout.run("install", "--no-input").returncode == 0
    assert not index.paths


def test_uv_uses_the_index_of_the_configuration_file_of_pip(
    checkout: Checkout, index: PackageIndex, wheel: Path, tmp_path: Path
) -> None:
    configuration = tmp_path / "pip.conf"
    configuration.write_text(f"[global]\nindex-url = {index.url}\n")
    checkout.variables["PIP_CONFIG_FILE"] = str(configuration)
    del checkout.variables["PIP_INDEX_URL"]
    checkout.require(requirement(wheel))
    done = checkout.run("install", "--no-input")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"/files/{wheel.name}" in index.paths


@pytest.mark.nightly
def test_pip_installs_if_the_index_has_no_uv(
    checkout: Checkout, wheel: Path, uv_wheel: Path, index: PackageIndex
) -> None:
    without_uv(checkout)
    index.wheels.remove(uv_wheel)
    checkout.require(requirement(wheel), development=requirement(uv_wheel))
    done = checkout.run("install", "--no-input")
    assert (done.returncode, done.stderr) == (0, "")
    assert names_of_packages(checkout) == {"tinything"}
    assert not list(checkout.venv.glob("lib/python3.*/site-packages/__pycache__/tinything*"))


def test_the_installation_creates_a_cache_if_none_is_usable(checkout: Checkout, wheel: Path) -> None:
    # As for a service account without a home.
    checkout.variables["HOME"] = "/proc/nonexistent"
    checkout.require(requirement(wheel))
    done = checkout.run("install", "--no-input")
    assert (done.returncode, done.stderr) == (0, "")
    assert not (checkout.venv / "cache").exists()


def test_bytecode_is_compiled_if_requested(checkout: Checkout, wheel: Path) -> None:
    checkout.require(requirement(wheel))
    assert checkout.run("install", "--no-input", "--compile").returncode == 0
    assert list(checkout.venv.glob("lib/python3.*/site-packages/__pycache__/tinything*.pyc"))
    assert list((checkout.root / "platform/launcher/__pycache__").glob("supervisor.*.pyc"))


def test_the_requirements_of_the_tests_are_installed_if_requested(checkout: Checkout, wheel: Path) -> None:
    checkout.require("", development=requirement(wheel))
    assert checkout.run("install", "--no-input").returncode == 0
    assert not names_of_packages(checkout)
    assert checkout.run("install", "--no-input", "--dev").returncode == 0
    assert names_of_packages(checkout) == {"tinything"}


def test_installer_variables_of_the_environment_are_ignored(checkout: Checkout, wheel: Path, tmp_path: Path) -> None:
    checkout.variables |= {
        "UV_SYSTEM_PYTHON": "1",
        "VIRTUAL_ENV": str(tmp_path),
        "PIP_TARGET": str(tmp_path / "target"),
    }
    checkout.require(requirement(wheel))
    assert checkout.run("install", "--no-input").returncode == 0
    assert names_of_packages(checkout) == {"tinything"}


def test_a_second_installation_waits_for_the_first(checkout: Checkout, index: PackageIndex, wheel: Path) -> None:
    checkout.require(requirement(wheel))
    index.released.clear()
    first = checkout.start("install", "--no-input")
    assert index.asked.wait(30)
    second = checkout.start("install", "--no-input")
    assert second.stdout
    assert f"Another process is installing packages in {checkout.root}" in second.stdout.readline()
    index.released.set()
    first.communicate(timeout=HANGS_AFTER)
    output, errors = second.communicate(timeout=HANGS_AFTER)
    assert (first.returncode, second.returncode, errors) == (0, 0, "")
    assert "Virtual environment ready" not in output


MODULES = ("django.py", "typing_extensions.py", "argparse.py", "tomllib.py", "launcher.py", "pytest.py")


@pytest.fixture
def strays(tmp_path: Path, checkout: Checkout) -> Path:
    """Put a directory of stray modules in PYTHONPATH and return the file that each of them writes to."""
    directory, imported = tmp_path / "strays", tmp_path / "imported"
    directory.mkdir()
    for name in MODULES:
        (directory / name).write_text(f"open({str(imported)!r}, 'a').write({name!r})\n")
    startup = str(directory / "django.py")
    # With a home, the Python of the environment would not find its packages.
    checkout.variables |= {"PYTHONPATH": str(directory), "PYTHONSTARTUP": startup, "PYTHONHOME": sys.base_prefix}
    return imported


@pytest.mark.parametrize("command", [["--version"], ["install", "--no-input"], ["migrate"], ["test", "tests/unit"]])
def test_modules_in_an_inherited_pythonpath_are_not_imported(
    checkout: Checkout, strays: Path, tmp_path: Path, index: PackageIndex, command: list[str]
) -> None:
    # The packages that the commands import after the restart in the environment.
    files = {f"{name}/__init__.py": b"" for name in ("channels", "unfold")}
    files["pytest.py"] = files["django/__init__.py"] = (
        b'import os, sys; sys.exit(f\'{__file__} {os.environ.keys() & {"PYTHONPATH", "PYTHONHOME"}}\')'
    )
    packages = build_wheel(directory=tmp_path, name="packages", version="1.0", files=files)
    index.wheels.append(packages)
    checkout.require(requirement(packages))
    if command == ["migrate"]:
        assert checkout.run("install", "--no-input").returncode == 0
    done = checkout.run(*command)
    assert not strays.exists(), strays.read_text()
    if command[0] in ("migrate", "test"):
        assert ".venv/lib" in done.stderr
        assert done.stderr.strip().endswith("set()")
    else:
        assert (done.returncode, done.stderr) == (0, "")
