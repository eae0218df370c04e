"""Records which test files execute which functions of the product, in the process of the tests and in all servers.

`python -m benchmarks coverage` runs suites with `TEST_EXECUTED`, the directory of the data. Each process measures its
lines with coverage.py and follows the test file that runs, whose name the process of the tests writes into a file.
Those are the processes that `tests/support/preloaded.py` forks, but not commands and what the launcher starts.
`python3 manage.py test --changed` reads the record.
"""

import atexit
import os
import threading
import time
from pathlib import Path

import coverage

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("platform", "responses", "conversations", "tenants")
MEASURED = [f"{ROOT / folder}/*" for folder in PRODUCT]
DIRECTORY, CONTEXT = "TEST_EXECUTED", "TEST_EXECUTED_CONTEXT"
_POLL_SECONDS = 0.05
# Killed processes keep only the data saved so far. Most are young; saving takes time even if nothing runs.
_SAVE_SECONDS, _SAVE_SHARE = 5.0, 0.1


def measure(directory: Path) -> coverage.Coverage:
    """Measure this process; the data is written at its end, into a file of its own."""
    measured = coverage.Coverage(
        data_file=str(directory / "data"),
        data_suffix=True,
        config_file=False,
        include=MEASURED,
        omit=["*/migrations/*"],
        messages=False,
    )
    measured.start()
    atexit.register(_finish, measured, os.getpid())
    return measured


def follow() -> None:
    """Measure a process of the platform, and again each one that it forks."""
    directory, context = Path(os.environ[DIRECTORY]), Path(os.environ[CONTEXT])
    measured = measure(directory)
    threading.Thread(target=_switch, args=[measured, context], name="recording", daemon=True).start()
    os.register_at_fork(after_in_child=lambda: _forked(measured))


def _forked(inherited: coverage.Coverage) -> None:
    inherited.stop()
    follow()


def _finish(measured: coverage.Coverage, pid: int) -> None:
    if os.getpid() == pid:
        measured.stop()
        measured.save()


def _switch(measured: coverage.Coverage, path: Path) -> None:
    """Attribute the executed lines to the running test file."""
    began = saved = time.monotonic()
    current = ""
    while True:
        if (name := path.read_text() if path.exists() else "") != current:
            measured.switch_context(name)
            current = name
        if time.monotonic() - saved > max(_SAVE_SECONDS, (saved - began) * _SAVE_SHARE):
            measured.save()
            saved = time.monotonic()
        time.sleep(_POLL_SECONDS)
