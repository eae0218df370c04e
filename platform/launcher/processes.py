"""Child processes that cannot outlive the launcher unnoticed.

Each child leads its own session: Ctrl-C in the terminal reaches only the supervisor, and a child can be ended with all
its descendants through its process group. On Linux the kernel signals the children when the launcher dies. On all
systems, records on disk let the next start find and end the children of a launcher that was killed.
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
from typing import Protocol

from launcher.errors import LaunchError
from launcher.home import SystemAccount

PR_SET_PDEATHSIG = 1
# Loaded before any fork: between fork and exec, imports and allocations can deadlock.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
# A process without progress for this many seconds has failed to start.
PATIENCE = 60.0
# Less CPU time than this is no progress: waiting processes also wake up from time to time.
MIN_CPU_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class ChildCommand:
    """Command line, environment and signals of a child process.

    ``stdin`` is written once and closed; it is for input that must not appear in a process list. Output is appended to
    ``log``. ``stop_signal`` requests an orderly shutdown, ``last_signal`` an immediate one; the kernel sends
    ``death_signal`` if the launcher dies.
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


class Process(Protocol):
    """The part of `subprocess.Popen` that is used to start and end processes."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Identity of a process, because pids are reused. ``started`` is its start time in a system-specific format."""

    pid: int
    started: str
    command: str


def start(command: ChildCommand) -> subprocess.Popen[bytes]:
    """Start a child process. Must be called from the main thread."""
    # The kernel sends the death signal when the *thread* that forked ends, not the process.
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
            # Runs after the change of user, which would reset the setting. Safe here: the launcher has one thread.
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
    # The parent may have died before the line above.
    if os.getppid() != parent:
        os._exit(1)


def end(process: Process, *, asking: signal.Signals, patience: float) -> bool:
    """Send the signal, wait ``patience`` seconds, then kill the process group. Return whether the signal sufficed."""
    if process.poll() is None:
        process.send_signal(asking)
    try:
        process.wait(timeout=patience)
    except subprocess.TimeoutExpired:
        kill_group(process)
        process.wait()
        return False
    # The leader has ended, but processes that it started may still run.
    kill_group(process)
    return True


def kill_group(process: Process) -> None:
    """Kill the group that a process leads, or the rest of the group if its leader has ended.

    The system does not reuse a pid while a group has it as its id. So if the leader has ended and a running process has
    its pid, the group is empty and the process must not be killed.
    """
    if process.poll() is None or identify(process.pid) is None:
        signal_group(process.pid, signal.SIGKILL)


def how_it_ended(code: int) -> str:
    """Return the exit code or the signal in words, from the return code of `subprocess`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def signal_group(leader: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def identify(pid: int) -> Identity | None:
    """Return the identity of the process with this pid, or None if there is none or only a zombie."""
    if sys.platform == "linux":
        try:
            # The second field is the name in parentheses, which may itself contain spaces and parentheses.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            return None
        return None if fields[0] in "ZX" else Identity(pid=pid, started=fields[19], command=command)
    listing = subprocess.run(
        ["ps", "-ww", "-o", "stat=", "-o", "lstart=", "-o", "command=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    words = listing.stdout.split(maxsplit=6)
    if len(words) < 7 or words[0].startswith("Z"):
        return None
    return Identity(pid=pid, started=" ".join(words[1:6]), command=words[6])


def current() -> Identity:
    """Return the identity of this process. Raises LaunchError if the system has neither /proc nor ps."""
    own = identify(os.getpid())
    if own is None:
        raise LaunchError("Processes cannot be identified on this system: it has neither /proc nor ps.")
    return own


class Records:
    """Records of the child processes in a state directory, one JSON file each, for the next start."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def add(self, *, command: ChildCommand, process: subprocess.Popen[bytes]) -> None:
        identity = identify(process.pid)
        if identity is not None:
            record = {"stop_signal": int(command.stop_signal), **asdict(identity)}
            # Renamed into place, so that a reader never sees half a record.
            unfinished = self._directory / f"{command.name}.new"
            unfinished.write_text(json.dumps(record))
            unfinished.replace(self._path(command.name))

    def remove(self, *, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def end_leftovers(self, *, patience: float = 5.0) -> list[str]:
        """End the children of an earlier launcher, delete all records and return the names of the ended children."""
        found: dict[str, Identity] = {}
        for path in sorted(self._directory.glob("*.json")):
            try:
                record = json.loads(path.read_text())
                stop_signal = signal.Signals(record.pop("stop_signal"))
                recorded = Identity(**record)
            except (ValueError, TypeError, KeyError):
                # Written by another release with a different format.
                continue
            if is_same(recorded, identify(recorded.pid)):
                found[path.stem] = recorded
                signal_group(recorded.pid, stop_signal)
        deadline = monotonic() + patience
        for leftover in found.values():
            if not wait_until(partial(_is_gone, leftover), seconds=deadline - monotonic()):
                signal_group(leftover.pid, signal.SIGKILL)
                wait_until(partial(_is_gone, leftover), seconds=2)
        for path in self._directory.glob("*.json"):
            path.unlink(missing_ok=True)
        return list(found)

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.json"


def is_same(recorded: Identity, running: Identity | None) -> bool:
    """Return whether a recorded process is the running one."""
    if running is None or running.started != recorded.started:
        return False
    # Servers change their command line for process lists, but keep the name of the program in it.
    program = Path(recorded.command.split(maxsplit=1)[0]).name if recorded.command else ""
    return program in running.command


def _is_gone(recorded: Identity) -> bool:
    return not is_same(recorded, identify(recorded.pid))


def wait_until(condition: Callable[[], bool], *, seconds: float, interval: float = 0.02) -> bool:
    """Poll a condition. Return False if it does not become true in time."""
    deadline = monotonic() + seconds
    while not condition():
        if monotonic() > deadline:
            return False
        sleep(interval)
    return True


class Progress:
    """Watches a process that is starting: CPU time used by it and its descendants, and the size of its log.

    The duration of a start depends on the machine and its load. An idle process will not become ready, however fast
    the machine is.
    """

    def __init__(self, pid: int, *, written: Callable[[], int]) -> None:
        self._pid = pid
        self._written = written
        self._measured_at = self._seen_at = monotonic()
        self._seen = self._measure()

    def seconds_without(self) -> float:
        """Return the number of seconds since the last progress was seen."""
        # Measured rarely, because that reads the whole process table.
        if monotonic() - self._measured_at > 1:
            self._measured_at = monotonic()
            cpu, size = self._measure()
            if cpu - self._seen[0] >= MIN_CPU_SECONDS or size > self._seen[1]:
                self._seen, self._seen_at = (cpu, size), monotonic()
        return monotonic() - self._seen_at

    def _measure(self) -> tuple[float, int]:
        return cpu_seconds(self._pid), self._written()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process and its descendants have used."""
    table = {number: (parent, seconds) for number, parent, seconds in _process_table()}
    total = 0.0
    for number, (_, seconds) in table.items():
        ancestor = number
        while ancestor != pid and ancestor in table:
            ancestor = table[ancestor][0]
        total += seconds if ancestor == pid else 0
    return total


def _process_table() -> Iterator[tuple[int, int, float]]:
    """Yield pid, pid of the parent, and CPU seconds of every process."""
    if sys.platform == "linux":
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                fields = path.read_text().rpartition(")")[2].split()
                # User and system time of the process itself and of its children that have ended.
                ticks = sum(int(number) for number in fields[11:15])
                yield int(path.parent.name), int(fields[1]), ticks / os.sysconf("SC_CLK_TCK")
        return
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=", "-o", "ppid=", "-o", "time="],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    for line in listing.stdout.splitlines():
        pid, parent, time = line.split()
        # [[days-]hours:]minutes:seconds
        parts = [float(part) for part in time.replace("-", ":").split(":")]
        units = (1, 60, 3600, 86_400)
        yield int(pid), int(parent), sum(part * unit for part, unit in zip(reversed(parts), units, strict=False))


def wait_for_start(
    process: Process,
    *,
    ready: Callable[[], bool],
    written: Callable[[], int],
    patience: float = PATIENCE,
) -> bool:
    """Wait until a process is ready. Return False if it ends or makes no progress for ``patience`` seconds."""
    progress = Progress(process.pid, written=written)
    while process.poll() is None:
        if ready():
            return True
        if progress.seconds_without() > patience:
            return False
        sleep(0.05)
    return False
