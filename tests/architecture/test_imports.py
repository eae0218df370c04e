"""Import contracts, and no package of the product that shadows a standard or installed module."""

import importlib.machinery
import os
import subprocess
import sys
import sysconfig
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATHS = (ROOT / "platform", ROOT)
STANDARD = Path(sysconfig.get_path("stdlib"))
WHERE = "import platform; print(platform.__file__)"
SOURCE_ROOTS = os.pathsep.join(map(str, PATHS))


def run(*arguments: str, directory: Path = ROOT, paths: str = "") -> str:
    """Run Python with these paths in PYTHONPATH and return its output."""
    command = [sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def our_packages() -> set[str]:
    """Return all top-level names of the source roots, including folders with modules but without `__init__.py`."""
    modules = {path.stem for root in PATHS for path in root.glob("*.py")}
    folders = {path for root in PATHS for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")}
    return modules | {folder.name for folder in folders if any(folder.glob("*.py")) or any(folder.glob("*/*.py"))}


@pytest.mark.slow
def test_the_import_contracts_hold() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [lint, "--no-cache", "--no-logo"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": SOURCE_ROOTS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_the_platform_folder_is_not_a_package() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()


@pytest.mark.parametrize("directory", ["", "platform", "tests", "responses"])
def test_python_in_any_folder_imports_the_standard_platform_module(directory: str) -> None:
    assert Path(run("-c", WHERE, directory=ROOT / directory)).parent == STANDARD


@pytest.mark.parametrize("module", ["demo_upstream.__main__", "launcher.main", "launcher.prepare", "server.asgi"])
@pytest.mark.slow
def test_started_processes_import_the_standard_platform_module(module: str) -> None:
    assert Path(run("-c", f"import {module}; {WHERE}", paths=SOURCE_ROOTS)).parent == STANDARD


@pytest.mark.slow
def test_commands_import_the_standard_platform_module() -> None:
    assert Path(run("manage.py", "shell", "--no-imports", "-c", WHERE)).parent == STANDARD


def test_tests_import_the_standard_platform_module() -> None:
    found = importlib.machinery.PathFinder.find_spec("platform", sys.path)
    assert found is not None
    assert Path(str(found.origin)).parent == STANDARD


def test_the_launcher_starts_without_installed_packages() -> None:
    paths = ", ".join(repr(str(path)) for path in PATHS)
    assert run("-I", "-S", "-c", f"import sys; sys.path[:0] = [{paths}]; import launcher.main; print('fine')") == "fine"


def test_no_package_shadows_a_standard_module() -> None:
    # `platform` is a folder, not a package: the tests above show that the standard module is imported.
    assert our_packages() & sys.stdlib_module_names == {"platform"}


@pytest.mark.slow
def test_no_package_shadows_an_installed_one() -> None:
    assert our_packages() & set(packages_distributions()) == set()


def test_the_shadowing_tests_cover_all_packages() -> None:
    assert our_packages() >= {
        "server",
        "core",
        "launcher",
        "demo_upstream",
        "tenants",
        "responses",
        "tests",
        "manage",
    }
