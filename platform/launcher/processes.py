"""Child processes that cannot outlive us unnoticed.

Each child leads its own session, so that a terminal's Ctrl-C reaches only the supervisor and the whole family of a
child can be ended by its process group. On Linux the kernel signals it when we die; everywhere a record on disk lets
the next start recognise and end what a killed supervisor left behind.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic, sleep

from launcher.accounts import SystemAccount
from launcher.errors import LaunchError

PR_SET_PDEATHSIG = 1
# Loaded before any fork: between fork and exec nothing may be imported or allocated needlessly.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True, kw_only=True)
class ChildCommand:
    """What to run and how to end it.

    ``stdin`` is written once and closed, for what must not be seen in a process list. Output is appended to ``log``.
    ``stop_signal`` asks for an orderly end and ``last_signal`` for an end at once; ``death_signal`` is what the kernel
    sends when the supervisor is gone.
    """

    name: str
    argv: tuple[str, ...]
    log: Path
    directory: Path
    environment: Mapping[str, str]
    account: SystemAccount | None = None
    stdin: bytes = field(default=b"", repr=False)
    stop_signal: signal.Signals = signal.SIGTERM
    last_signal: signal.Signals = signal.SIGKILL
    death_signal: signal.Signals = signal.SIGKILL


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Who a process is: a pid alone may have been given to another one since. ``started`` has no fixed unit."""

    pid: int
    started: str
    command: str


def start(command: ChildCommand) -> subprocess.Popen[bytes]:
    """Start a child. Call it from the main thread only: the death signal fires when the *thread* that forked ends."""
    account = command.account
    with command.log.open("ab") as log:
        process = subprocess.Popen(
            command.argv,
            cwd=command.directory,
            env=dict(command.environment),
            stdin=subprocess.PIPE if command.stdin else subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
            # Runs after the change of user, which would clear the setting; the launcher has no second thread.
            preexec_fn=partial(_tie_to_parent, os.getpid(), command.death_signal),  # noqa: PLW1509
        )
    if process.stdin:
        with suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(command.stdin)
    return process


def _tie_to_parent(parent: int, death_signal: int) -> None:
    if _libc is None:
        return
    _libc.prctl(PR_SET_PDEATHSIG, death_signal)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def end(process: subprocess.Popen[bytes], *, asking: signal.Signals, patience: float) -> bool:
    """Ask for the end, wait ``patience`` seconds, then kill the process group. True when asking was enough."""
    if process.poll() is None:
        process.send_signal(asking)
    try:
        process.wait(timeout=patience)
    except subprocess.TimeoutExpired:
        signal_group(process.pid, signal.SIGKILL)
        process.wait()
        return False
    # The leader is gone; what it started and left behind goes with it.
    signal_group(process.pid, signal.SIGKILL)
    return True


def signal_group(leader: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def identify(pid: int) -> Identity | None:
    """Who runs under that pid now; None when nobody does, or only a zombie whose parent has not looked."""
    return _identify_by_proc(pid) if sys.platform == "linux" else _identify_by_ps(pid)


def current() -> Identity:
    """Who we are, for a record that others check."""
    us = identify(os.getpid())
    if us is None:
        raise LaunchError("This system does not say which processes run (no /proc, no ps).")
    return us


def _identify_by_proc(pid: int) -> Identity | None:
    try:
        # The name, second and in parentheses, may itself hold spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    state, started = fields[0], fields[19]
    return None if state in "ZX" else Identity(pid=pid, started=started, command=command)


def _identify_by_ps(pid: int) -> Identity | None:
    asked = subprocess.run(
        ["ps", "-ww", "-o", "stat=", "-o", "lstart=", "-o", "command=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    words = asked.stdout.split(maxsplit=6)
    if len(words) < 7 or words[0].startswith("Z"):
        return None
    return Identity(pid=pid, started=" ".join(words[1:6]), command=words[6])


class Records:
    """The children of this state directory on disk, one JSON file each, so that the next start knows them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def add(self, *, command: ChildCommand, process: subprocess.Popen[bytes]) -> None:
        identity = identify(process.pid)
        if identity is not None:
            record = {"stop_signal": int(command.stop_signal), **asdict(identity)}
            # Renamed into place: whoever reads meanwhile gets the old record or the new one, never half of one.
            unfinished = self._directory / f"{command.name}.new"
            unfinished.write_text(json.dumps(record))
            unfinished.replace(self._path(command.name))

    def remove(self, *, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def _leftovers(self) -> Iterator[tuple[str, Identity, signal.Signals]]:
        """Recorded children that still run. A pid that someone else has by now is not one of them."""
        for path in sorted(self._directory.glob("*.json")):
            try:
                record = json.loads(path.read_text())
                stop_signal = signal.Signals(record.pop("stop_signal"))
                recorded = Identity(**record)
            except (ValueError, TypeError, KeyError):
                continue  # written by a release that kept other records, or by nobody of ours
            if is_same(recorded, identify(recorded.pid)):
                yield path.stem, recorded, stop_signal

    def end_leftovers(self, *, patience: float = 5.0) -> list[str]:
        """End what an earlier supervisor left running, and forget all records; returns the names of what was ended."""
        found = list(self._leftovers())
        for _, leftover, stop_signal in found:
            signal_group(leftover.pid, stop_signal)
        deadline = monotonic() + patience
        for _, leftover, _ in found:
            if not wait_until(partial(_is_gone, leftover), seconds=deadline - monotonic()):
                signal_group(leftover.pid, signal.SIGKILL)
                wait_until(partial(_is_gone, leftover), seconds=2)
        for path in self._directory.glob("*.json"):
            path.unlink(missing_ok=True)
        return [name for name, _, _ in found]

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.json"


def is_same(recorded: Identity, running: Identity | None) -> bool:
    """Whether a record speaks of that process. Servers rewrite their command line, but keep the program's name."""
    if running is None or running.started != recorded.started:
        return False
    program = Path(recorded.command.split(maxsplit=1)[0]).name if recorded.command else ""
    return program in running.command


def _is_gone(recorded: Identity) -> bool:
    return not is_same(recorded, identify(recorded.pid))


def wait_until(condition: Callable[[], bool], *, seconds: float, interval: float = 0.02) -> bool:
    """Poll a condition; False when it did not come true in time."""
    deadline = monotonic() + seconds
    while not condition():
        if monotonic() > deadline:
            return False
        sleep(interval)
    return True
