"""Preparation of the environment: once, again after changes, and never partially."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest

from launcher import bootstrap
from launcher.bootstrap import DEVELOPMENT, RUNTIME, Environment
from launcher.errors import LaunchError
from launcher.report import Report

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a checkout with empty requirement files, prepared for running."""
    root = tmp_path_factory.mktemp("checkout")
    (root / "requirements").mkdir()
    for name in (RUNTIME, DEVELOPMENT):
        (root / name).write_text(f"# {name}\n")
    bootstrap.prepare(environment=Environment(root=root), requirements=RUNTIME, report=Report(stream=StringIO()))
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
    bootstrap.prepare(environment=environment, requirements=requirements, report=Report(stream=stream))
    return stream.getvalue()


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


@pytest.fixture
def only_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Simulate a machine without uv and ensurepip, whose only pip is the given shell script."""
    hidden, programs = tmp_path / "hidden", tmp_path / "bin"
    for module in ("ensurepip", "pip"):
        (hidden / module).mkdir(parents=True)
        (hidden / module / "__init__.py").write_text("raise ImportError\n")
    programs.mkdir()

    def install(script: str) -> None:
        (programs / "pip3").write_text(f"#!/bin/sh\n{script}\n")
        (programs / "pip3").chmod(0o755)
        monkeypatch.setenv("PYTHONPATH", str(hidden))
        monkeypatch.setenv("PATH", str(programs))

    return install


def test_an_external_pip_is_used_if_there_is_no_other(
    checkout: Environment, only_pip: Callable[[str], None], tmp_path: Path
) -> None:
    (checkout.directory / bootstrap.STAMP).unlink()
    only_pip(f'echo "$@" >> {tmp_path}/asked')
    prepare(checkout)
    asked = (tmp_path / "asked").read_text().splitlines()[-1]
    assert asked.startswith(f"--python {checkout.python} install")
    assert "--require-hashes" in asked


def test_a_failed_installation_ends_with_one_sentence_after_the_output(
    checkout: Environment, only_pip: Callable[[str], None]
) -> None:
    (checkout.root / RUNTIME).write_text("# other\n")
    only_pip('[ "$3" = --version ] || { echo no such package; exit 1; }')
    stream = StringIO()
    with pytest.raises(LaunchError, match=r"^The requirements could not be installed"):
        bootstrap.prepare(environment=checkout, requirements=RUNTIME, report=Report(stream=stream))
    assert "no such package" in stream.getvalue()
    assert not is_prepared(checkout)


def test_an_old_python_is_rejected_in_one_sentence() -> None:
    script = (
        "import runpy, sys; sys.version_info = (3, 9, 2); sys.version = '3.9.2 (main)'; "
        f"runpy.run_path({str(ROOT / 'manage.py')!r}, run_name='__main__')"
    )
    asked = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert asked.returncode == 1
    assert asked.stderr == "error: Python 3.11 or newer is required; this is Python 3.9.2.\n"


def test_a_command_without_an_environment_explains_how_to_create_one(tmp_path: Path) -> None:
    shutil.copy(ROOT / "manage.py", tmp_path)
    shutil.copytree(ROOT / "platform" / "launcher", tmp_path / "platform" / "launcher")
    # -S: this Python then has no packages, as a bare one.
    argv = [sys.executable, "-S", "manage.py", "check"]
    asked = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert asked.returncode == 1
    assert asked.stderr.startswith("error: The virtual environment does not exist yet. Run `python3 manage.py up`")


def test_a_missing_setting_is_reported_in_one_sentence(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "STATE_DIR": str(tmp_path)}
    argv = [sys.executable, str(ROOT / "manage.py"), "check"]
    asked = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert asked.returncode == 1
    assert asked.stderr.startswith("error: SECRET_KEY is not set: start the platform with `python3 manage.py up`")


def test_the_launcher_imports_only_the_standard_library_outside_the_environment() -> None:
    argv = [sys.executable, "-S", "-I", str(ROOT / "manage.py"), "up", "--help"]
    asked = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert asked.returncode == 0
    assert "--port" in asked.stdout


def test_an_invalid_option_is_rejected_before_anything_is_installed(tmp_path: Path) -> None:
    shutil.copy(ROOT / "manage.py", tmp_path)
    shutil.copytree(ROOT / "platform" / "launcher", tmp_path / "platform" / "launcher")
    argv = [sys.executable, "-S", "manage.py", "up", "--port", "70000"]
    asked = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert asked.returncode == 2
    assert not (tmp_path / ".venv").exists()
