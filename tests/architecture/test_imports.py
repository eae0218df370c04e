"""Who may import whom, and that none of our packages stands in the way of somebody else's."""

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
    """What a Python process prints, its environment being this one's with these paths."""
    command = [sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def our_packages() -> set[str]:
    """Every name that our source roots let somebody import, folders with modules but without `__init__.py` included."""
    modules = {path.stem for root in PATHS for path in root.glob("*.py")}
    folders = {path for root in PATHS for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")}
    return modules | {folder.name for folder in folders if any(folder.glob("*.py")) or any(folder.glob("*/*.py"))}


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


def test_the_folder_of_the_platform_is_no_package() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()


@pytest.mark.parametrize("directory", ["", "platform", "tests", "responses"])
def test_platform_is_the_standard_librarys_for_a_python_in_this_folder(directory: str) -> None:
    assert Path(run("-c", WHERE, directory=ROOT / directory)).parent == STANDARD


@pytest.mark.parametrize("module", ["demo_upstream.__main__", "launcher.main", "launcher.prepare", "config.asgi"])
def test_platform_is_the_standard_librarys_for_the_processes_that_are_started(module: str) -> None:
    assert Path(run("-c", f"import {module}; {WHERE}", paths=SOURCE_ROOTS)).parent == STANDARD


def test_platform_is_the_standard_librarys_in_commands() -> None:
    assert Path(run("manage.py", "shell", "--no-imports", "-c", WHERE)).parent == STANDARD


def test_platform_is_the_standard_librarys_in_tests() -> None:
    found = importlib.machinery.PathFinder.find_spec("platform", sys.path)
    assert found is not None
    assert Path(str(found.origin)).parent == STANDARD


def test_the_command_begins_without_anything_installed() -> None:
    paths = ", ".join(repr(str(path)) for path in PATHS)
    assert run("-I", "-S", "-c", f"import sys; sys.path[:0] = [{paths}]; import launcher.main; print('fine')") == "fine"


def test_no_package_of_ours_has_the_name_of_a_standard_module() -> None:
    # `platform` holds packages and is none: the tests above show that the standard library's wins.
    assert our_packages() & sys.stdlib_module_names == {"platform"}


def test_no_package_of_ours_has_the_name_of_an_installed_one() -> None:
    assert our_packages() & set(packages_distributions()) == set()


def test_the_names_that_are_looked_at_are_all_of_ours() -> None:
    assert our_packages() >= {
        "config",
        "kernel",
        "launcher",
        "demo_upstream",
        "tenants",
        "responses",
        "tests",
        "manage",
    }
