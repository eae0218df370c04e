"""Preparation of the environment: once, again after changes, and never partially."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from io import StringIO
from pathlib import Path

import pytest

from launcher import bootstrap
from launcher.bootstrap import DEVELOPMENT, RUNTIME, Environment
from launcher.report import Report

ROOT = Path(__file__).resolve().parents[2]
# The uv of the test requirements, because pip would take seconds.
PATH_WITH_UV = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


@pytest.fixture(autouse=True)
def uv_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", PATH_WITH_UV)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a checkout with empty requirement files, prepared for running."""
    root = tmp_path_factory.mktemp("checkout")
    (root / "requirements").mkdir()
    for name in (RUNTIME, DEVELOPMENT):
        (root / name).write_text(f"# {name}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", PATH_WITH_UV)
        bootstrap.install(root=root, requirements=RUNTIME, report=Report(stream=StringIO()))
    return root


@pytest.fixture
def checkout(bare: Path, tmp_path: Path) -> Environment:
    root = tmp_path / "checkout"
    shutil.copytree(bare, root, symlinks=True)
    return Environment(root=root)


def is_prepared(environment: Environment, requirements: str = RUNTIME) -> bool:
    return bootstrap.is_prepared(environment=environment, requirements=requirements)


def prepare(environment: Environment, requirements: str = RUNTIME) -> str:
    """Prepare the environment and return the output."""
    stream = StringIO()
    bootstrap.install(root=environment.root, requirements=requirements, report=Report(stream=stream))
    return stream.getvalue()


@pytest.mark.slow
def test_a_prepared_environment_needs_nothing(checkout: Environment) -> None:
    assert is_prepared(checkout)


def test_changed_requirements_are_noticed(checkout: Environment) -> None:
    (checkout.root / RUNTIME).write_text("# other\n")
    assert not is_prepared(checkout)


def test_runtime_requirements_are_not_enough_for_the_tests(checkout: Environment) -> None:
    assert not is_prepared(checkout, DEVELOPMENT)


def test_test_requirements_are_enough_to_run(checkout: Environment) -> None:
    (checkout.root / RUNTIME).write_text("# other\n")
    prepare(checkout, DEVELOPMENT)
    assert is_prepared(checkout, RUNTIME)


def test_an_environment_without_a_stamp_is_completed_and_kept(checkout: Environment) -> None:
    (checkout.directory / bootstrap.STAMP).unlink()
    kept = checkout.directory / "kept"
    kept.touch()
    prepare(checkout)
    assert is_prepared(checkout)
    assert kept.exists()


def test_an_environment_whose_python_is_gone_is_recreated(checkout: Environment) -> None:
    checkout.python.unlink()
    checkout.python.symlink_to("/nowhere/python3")
    assert not is_prepared(checkout)
    prepare(checkout)
    assert is_prepared(checkout)


def test_an_environment_of_another_minor_version_is_recreated(checkout: Environment) -> None:
    library = next((checkout.directory / "lib").glob("python3.*"))
    library.rename(library.with_name("python3.2"))
    (checkout.directory / bootstrap.STAMP).unlink()
    prepare(checkout)
    assert library.is_dir()


def test_an_interrupted_installation_is_started_over(checkout: Environment) -> None:
    checkout.marker.touch()
    leftover = checkout.directory / "lib" / "leftover"
    leftover.touch()
    assert not is_prepared(checkout)
    prepare(checkout)
    assert is_prepared(checkout)
    assert not leftover.exists()


def test_an_environment_that_is_a_dangling_link_is_recreated(checkout: Environment) -> None:
    shutil.rmtree(checkout.directory)
    checkout.directory.symlink_to("/nowhere/environment")
    prepare(checkout)
    assert is_prepared(checkout)


def test_the_pinned_uv_is_in_the_test_requirements() -> None:
    pinned = bootstrap._pinned_uv(ROOT / DEVELOPMENT)
    locked = next(
        package for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"] if package["name"] == "uv"
    )
    assert pinned.startswith(f"uv=={locked['version']}")
    assert {wheel["hash"] for wheel in locked["wheels"]} <= set(re.findall(r"sha256:[0-9a-f]{64}", pinned))


def test_an_old_python_is_rejected_in_one_sentence() -> None:
    script = (
        "import runpy, sys; sys.version_info = (3, 9, 2); sys.version = '3.9.2 (main)'; "
        f"runpy.run_path({str(ROOT / 'manage.py')!r}, run_name='__main__')"
    )
    asked = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert asked.returncode == 1
    assert asked.stderr.startswith("error: Python 3.11 or newer is required; this is Python 3.9.2: install a newer one")
    assert asked.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_missing_setting_is_reported_in_one_sentence(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "STATE_DIR": str(tmp_path)}
    argv = [sys.executable, str(ROOT / "manage.py"), "check"]
    asked = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert asked.returncode == 78
    assert asked.stderr.startswith("error: SECRET_KEY is not set: start the platform with `python3 manage.py up`")


def test_the_launcher_imports_only_the_standard_library_outside_the_environment() -> None:
    argv = [sys.executable, "-S", "-I", str(ROOT / "manage.py"), "up", "--help"]
    asked = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert asked.returncode == 0
    assert "--port" in asked.stdout
