"""The sandbox service, as `up` starts it and as `manage.py sandbox` runs it. It gets none of the platform's secrets."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from launcher.errors import LaunchError
from launcher.processes import ChildCommand

PORTS = 29000
# All that the service is told, beside where programs are.
VARIABLES = (
    "SANDBOX_LISTEN",
    "SANDBOX_TOKEN",
    "SANDBOX_PYTHON",
    "SANDBOX_MAX_MEMORY",
    "SANDBOX_MAX_CONTAINERS",
    "SANDBOX_WARM",
    "SANDBOX_SECONDS",
)


def missing() -> str | None:
    """What has to be installed before code can be run, in a sentence; None: nothing."""
    if shutil.which("bwrap") is None:
        return "The code interpreter is off: bubblewrap is not installed (apt-get install bubblewrap)"
    return None


def command(*, root: Path, log: Path, state_dir: Path, environment: Mapping[str, str], listen: str) -> ChildCommand:
    """The service as a child of `up`. A Python in `STATE_DIR/sandbox` is the one that models get."""
    told = {name: environment[name] for name in (*VARIABLES, "PATH") if name in environment}
    python = state_dir / "sandbox" / "bin" / "python"
    if python.exists():
        told.setdefault("SANDBOX_PYTHON", str(python))
    return ChildCommand(
        name="sandbox",
        argv=(sys.executable, str(root / "manage.py"), "sandbox"),
        log=log,
        directory=root,
        environment={**told, "SANDBOX_LISTEN": listen, "PYTHONUNBUFFERED": "1"},
    )


def serve() -> int:
    """Run the service in this process, which forgets the rest of its environment. Returns the exit code."""
    from sandbox import service

    told = {name: value for name, value in os.environ.items() if name in VARIABLES}
    try:
        return service.main(told)
    except service.Misconfigured as wrong:
        raise LaunchError(str(wrong)) from wrong
