"""Commands that need the packages for development, in an environment that has none of them."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from benchmarks.__main__ import COMMANDS
from launcher.installation.development import MESSAGE

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bare_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment without packages; returns its folder of programs."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin"


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command in the checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "arguments",
    [["benchmarks"], *(["benchmarks", name] for name in sorted(COMMANDS)), ["tests.support.releases", "0.2.0"]],
    ids=" ".join,
)
def test_modules_without_their_packages_name_the_install_command(bare_environment: Path, arguments: list[str]) -> None:
    done = run(bare_environment / "python", "-m", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{MESSAGE}\n")


@pytest.mark.parametrize("target", ["lint", "format", "types", "lock"])
def test_make_targets_without_their_packages_name_the_install_command(bare_environment: Path, target: str) -> None:
    done = run("make", target, f"bin={bare_environment}")
    assert done.returncode == 2
    assert MESSAGE in done.stderr


def test_nothing_is_missing_in_the_environment_of_the_tests() -> None:
    done = run(sys.executable, ROOT / "platform/launcher/installation/development.py")
    assert (done.returncode, done.stderr) == (0, "")
