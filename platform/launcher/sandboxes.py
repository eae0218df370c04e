"""The sandbox service as started by `up` and by `manage.py sandbox`. It receives none of the platform's secrets."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from launcher.errors import RefusedStart
from launcher.processes import ChildCommand

PORTS = 29000
# The only variables that the service receives, apart from PATH.
VARIABLES = (
    "SANDBOX_LISTEN",
    "SANDBOX_TOKEN",
    "SANDBOX_PYTHON",
    "SANDBOX_MAX_MEMORY",
    "SANDBOX_MAX_CONTAINERS",
    "SANDBOX_WARM",
    "SANDBOX_SECONDS",
)


def command(*, root: Path, log: Path, state_dir: Path, environment: Mapping[str, str], listen: str) -> ChildCommand:
    """Return the command that runs the service. If `STATE_DIR/sandbox` is a virtual environment, containers use it."""
    passed = {name: environment[name] for name in (*VARIABLES, "PATH") if name in environment}
    python = state_dir / "sandbox" / "bin" / "python"
    if python.exists():
        passed.setdefault("SANDBOX_PYTHON", str(python))
    return ChildCommand(
        name="sandbox",
        argv=(sys.executable, str(root / "manage.py"), "sandbox"),
        log=log,
        directory=root,
        environment={**passed, "SANDBOX_LISTEN": listen, "PYTHONUNBUFFERED": "1"},
    )


def serve() -> int:
    """Run the service in this process and return the exit code. Raises RefusedStart."""
    from sandbox import service

    passed = {name: value for name, value in os.environ.items() if name in VARIABLES}
    try:
        return service.main(passed)
    except service.Misconfigured as wrong:
        raise RefusedStart.of(wrong) from wrong
