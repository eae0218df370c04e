"""The Dockerfile passes its linter, and its context contains what the platform needs and nothing local."""

import subprocess
import sys
from pathlib import Path

from tests.support.image import CONTEXT, DOCKERFILE, instructions

ROOT = Path(__file__).resolve().parents[2]


def test_the_dockerfile_passes_hadolint() -> None:
    command = [Path(sys.executable).with_name("hadolint"), DOCKERFILE]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_the_context_has_no_secrets_and_no_state() -> None:
    files = [Path(path) for path in CONTEXT.files(ROOT)]
    assert Path("manage.py") in files
    assert Path("platform/server/database/schema.sql") in files
    assert not [path for path in files if path.parts[0].startswith(".") or path.parts[0] in {"tests", "deploy"}]
    assert not [path for path in files if "__pycache__" in path.parts]
    for name in (".env", "platform.env", ".run/secrets.json", "backup/platform.dump", "tests/conftest.py"):
        assert not CONTEXT.includes(name)


def test_processes_run_as_an_unprivileged_user_without_build_tools() -> None:
    last = instructions()[-1]
    assert [value for name, value in last.steps if name == "USER"][-1] == "10001:10001"
    installed = [value for stage in instructions() for name, value in stage.steps if "apt-get install" in value]
    assert len(installed) == 1
    assert not [word for word in installed[0].split() if word in {"gcc", "make", "git", "curl", "build-essential"}]
