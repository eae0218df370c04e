"""Management commands that tests run as processes of their own."""

import os
import subprocess
import sys

from tests.servers import ROOT


def manage(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a management command."""
    command = [sys.executable, "manage.py", *arguments]
    environment = {**os.environ, **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def succeed(*arguments: str, **variables: str) -> str:
    """Run a management command that must succeed and return its output."""
    done = manage(*arguments, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout
