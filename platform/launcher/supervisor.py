"""The supervisor: keeps the platform's processes running, shows errors from their logs, and ends them in order.

It uses a single thread. Stop signals raise an exception only while it waits, so that no step is interrupted halfway.
"""

import json
import os
import re
import select
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from pathlib import Path
from subprocess import Popen, SubprocessError
from time import monotonic, time
from types import FrameType
from typing import Any

from launcher import processes
from launcher.errors import NOT_READY, WRONG_SETTINGS, LaunchError, RefusedStart
from launcher.processes import PATIENCE, ChildCommand, Progress, Records
from launcher.report import Report

MAX_BYTES = 32 * 1024 * 1024
MAX_PIECE = 256 * 1024
# Matches plain and JSON lines. PostgreSQL's ERROR (two spaces after the colon) is excluded: it reports a rejected
# statement, which is normal here because constraints decide races.
SERIOUS = re.compile(
    r"\b(CRITICAL|PANIC)\b|\bERROR\b(?!:  )|\bFATAL\b(?!:  the database system is)"
    r'|"level": ?"(error|critical)"'
)


def tail(path: Path, *, lines: int) -> list[str]:
    """Return the last lines of a log, or an empty list if it does not exist."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 65536))
            return log.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []


class LogWatch:
    """Follows a log from its current end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = path.stat().st_size if path.exists() else 0
        self._in_traceback = False

    def serious_lines(self) -> Iterator[str]:
        """Yield the new lines that an operator should see; a traceback is reduced to the line with the error."""
        try:
            with self._path.open("rb") as log:
                log.seek(self._position)
                piece = log.read(MAX_PIECE)
        except FileNotFoundError:
            return
        # An incomplete last line is left for the next call, unless it alone fills the buffer.
        whole = piece[: piece.rfind(b"\n") + 1] if len(piece) < MAX_PIECE else piece
        self._position += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            if line.startswith("Traceback "):
                self._in_traceback = True
            elif self._in_traceback and line[:1].strip():
                self._in_traceback = False
                yield line.rstrip()
            elif SERIOUS.search(line):
                yield line.rstrip()

    def rotate(self, *, max_bytes: int = MAX_BYTES) -> None:
        """Rotate the log if it exceeds its maximum size."""
        if self._path.exists() and self._path.stat().st_size > max_bytes:
            # Copied and truncated instead of renamed, because the child keeps the file open for appending.
            shutil.copyfile(self._path, self._path.with_name(f"{self._path.name}.1"))
            os.truncate(self._path, 0)
            self._position = 0


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):
    """Ctrl-C or a stop signal was received."""


class Interrupts:
    """Waits that end early at a stop signal or when a child process ends.

    There is one instance per process, created in the main thread.
    """

    def __init__(self) -> None:
        self._requests = 0
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        # Python writes a byte to this pipe for every signal, which wakes the select below without a race.
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for number in STOP_SIGNALS:
            # Under `nohup` SIGHUP is ignored, and must stay ignored.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._request)

    def _request(self, _number: int, _frame: FrameType | None) -> None:
        self._requests += 1

    @property
    def stop_requested_twice(self) -> bool:
        """True after a second stop signal."""
        return self._requests > 1

    def pause(self, seconds: float) -> None:
        """Wait for at most `seconds`. Raises Stopped if a stop signal has been received."""
        self.rest(seconds)
        if self._requests:
            raise Stopped

    def rest(self, seconds: float) -> None:
        """Wait for at most `seconds` without raising."""
        if select.select([self._reader], [], [], max(seconds, 0))[0]:
            with suppress(BlockingIOError):
                os.read(self._reader, 4096)


QUICK = 10.0  # seconds; a child that ends earlier probably has a problem that a restart does not solve
SHORTEST_DELAY, LONGEST_DELAY = 0.5, 30.0
# Maximum number of failed starts of a child that the start of the platform waits for. Once the platform runs, a child
# may die any number of times without ending the others.
MAX_FAILED_STARTS = 4
# Exit codes of a process that refuses to start, and the beginning of the line with its reason.
REFUSALS, REASON = (WRONG_SETTINGS, NOT_READY), "error: "
LAST_LINES = 15
MAX_SECONDS = 900.0  # for a start, even if it makes progress: a process that never gets ready may still be busy
# Seconds for an orderly shutdown of each stage: workers get time to finish or release their runs.
STAGE_PATIENCE = {0: 6.0, 1: 2.5}


class Stage(IntEnum):
    """Shutdown order: processes that use the servers end before the servers."""

    APPLICATION = 0
    SERVERS = 1


@dataclass(kw_only=True)
class Restarts:
    """Restarts of one child, and the backoff between them."""

    count: int = 0
    quick_deaths: int = 0
    last_end: str | None = None
    last_end_at: float | None = None

    def delay_after(self, how: str, *, lived: float) -> float:
        """Record the end of the child, and return the seconds to wait before its next start."""
        self.last_end, self.last_end_at = how, time()
        if lived >= QUICK:
            # The process can start, so the next start needs no delay.
            self.quick_deaths = 0
            return 0.0
        self.quick_deaths += 1
        # The exponent is limited too: after a night of failed starts, the power would be too large for a float.
        return min(SHORTEST_DELAY * 2.0 ** min(self.quick_deaths - 1, 10), LONGEST_DELAY)


@dataclass(kw_only=True)
class _Service:
    """A child that is kept running. Between its death and its next start, `restart_at` is the time of that start."""

    command: ChildCommand
    stage: Stage
    before: Callable[[], None]
    watch: LogWatch
    process: Popen[bytes]
    started: float
    restarts: Restarts = field(default_factory=Restarts)
    restart_at: float | None = None

    def status(self) -> dict[str, Any]:
        """Return its entry in the status file, with Unix times."""
        restart_at = self.restart_at
        return {
            "name": self.command.name,
            "restarts": self.restarts.count,
            "last_end": self.restarts.last_end,
            "last_end_at": self.restarts.last_end_at,
            "next_start_at": None if restart_at is None else time() + restart_at - monotonic(),
        }


class StatusFile:
    """The file from which the console reads the restarts of all children."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, services: Iterable[_Service]) -> None:
        """Replace the file atomically. Raises OSError."""
        entries = [service.status() for service in services]
        # With the pid, a reader recognizes the file of a supervisor that was killed.
        text = json.dumps({"supervisor": os.getpid(), "processes": entries}, indent=2)
        unfinished = self._path.with_name(f"{self._path.name}.new")
        unfinished.write_text(text)
        unfinished.replace(self._path)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


class Supervisor:
    """Starts child processes, restarts those that die, shows errors from their logs and ends them."""

    def __init__(
        self, *, records: Records, interrupts: Interrupts, report: Report, status_file: StatusFile | None = None
    ) -> None:
        self._records = records
        self._interrupts = interrupts
        self._report = report
        self._status_file = status_file
        self._services: list[_Service] = []
        self._problems: set[str] = set()

    def start(self, command: ChildCommand, *, stage: Stage, before: Callable[[], None] = lambda: None) -> None:
        """Start a child and keep it running. ``before`` is called before every start, restarts included."""
        watch = LogWatch(command.log)
        before()
        service = _Service(
            command=command,
            stage=stage,
            before=before,
            watch=watch,
            process=self._spawn(command),
            started=monotonic(),
        )
        self._services.append(service)
        self._write_status()

    def run_once(self, command: ChildCommand) -> None:
        """Run a command and wait for its end. If it fails, show the end of its log and raise LaunchError.

        Raises RefusedStart if it, or any child, refuses to start.
        """
        process = self._spawn(command)
        try:
            self._wait(command, lambda: process.poll() is not None, pid=lambda: process.pid)
        finally:
            processes.end(process, asking=command.stop_signal, patience=2.0)
            self._records.remove(name=command.name)
        if process.returncode in REFUSALS:
            raise _refusal(command, process.returncode)
        if process.returncode != 0:
            self._show_tail(command)
            raise LaunchError(
                f"`{command.name}` failed: {processes.how_it_ended(process.returncode)}. See its log: {command.log}."
            )

    def wait_for(self, condition: Callable[[], bool], *, name: str) -> None:
        """Keep all children running until the child with this name has made the condition true.

        Shows the end of the child's log and raises LaunchError if it makes no progress, or dies at once several times.
        Raises RefusedStart as soon as any child refuses to start.
        """
        service = next(service for service in self._services if service.command.name == name)

        def is_true() -> bool:
            if service.restarts.quick_deaths >= MAX_FAILED_STARTS:
                self._show_tail(service.command)
                how = service.restarts.last_end
                raise LaunchError(
                    f"{name} died {MAX_FAILED_STARTS} times in a row ({how}). See its log: {service.command.log}."
                )
            return condition()

        self._wait(service.command, is_true, pid=lambda: service.process.pid)

    def _wait(self, command: ChildCommand, condition: Callable[[], bool], *, pid: Callable[[], int]) -> None:
        last = monotonic() + MAX_SECONDS
        progress, watched = Progress(pid(), written=lambda: command.log.stat().st_size), pid()
        while not condition():
            if pid() != watched:  # restarted
                progress, watched = Progress(pid(), written=lambda: command.log.stat().st_size), pid()
            stalled = progress.seconds_without() > PATIENCE
            if stalled or monotonic() > last:
                self._show_tail(command)
                reason = f"no progress for {PATIENCE:.0f} s" if stalled else f"not within {MAX_SECONDS:.0f} s"
                raise LaunchError(f"{command.name} did not become ready: {reason}. See its log: {command.log}.")
            self.check_children(is_starting=True)
            self._interrupts.pause(0.03)

    def keep_until(self, condition: Callable[[], bool], *, seconds: float) -> bool:
        """Keep all children running until the condition is true. Return False if that takes too long."""
        deadline = monotonic() + seconds
        while not condition():
            if monotonic() > deadline:
                return False
            self.check_children(is_starting=True)
            self._interrupts.pause(0.05)
        return True

    def is_running(self, name: str) -> bool:
        return any(service.command.name == name and service.process.poll() is None for service in self._services)

    def run_forever(self) -> None:
        """Keep all children running, however often they die. Raises Stopped at a stop signal."""
        while True:
            self.check_children()
            for service in self._services:
                self._attempt(service.watch.rotate, f"the log of {service.command.name} cannot be rotated")
            waits = [service.restart_at - monotonic() for service in self._services if service.restart_at is not None]
            self._interrupts.pause(min([1.0, *waits]))

    def check_children(self, *, is_starting: bool = False) -> None:
        """Show new errors from the logs, and restart children that have died.

        Raises RefusedStart if one refuses to start while the platform ``is_starting``. Later it is restarted like any
        other: the cause, such as a clock that was set, may pass.
        """
        for service in self._services:
            for line in service.watch.serious_lines():
                self._report.line(f"{service.command.name:>10} | {line[:300]}")
            if service.restart_at is not None:
                if monotonic() >= service.restart_at:
                    self._restart(service)
            elif service.process.poll() is not None:
                # Descendants of the dead child must not keep running next to its successor.
                processes.kill_group(service.process)
                how, code = processes.how_it_ended(service.process.returncode), service.process.returncode
                if code in REFUSALS:
                    refusal = _refusal(service.command, code)
                    if is_starting:
                        raise refusal
                    how = f"{how}, {refusal}"
                self._plan_restart(service, how, lived=monotonic() - service.started)

    def _restart(self, service: _Service) -> None:
        service.restart_at, service.started = None, monotonic()
        service.restarts.count += 1
        try:
            service.before()
            service.process = self._spawn(service.command)
        except (OSError, SubprocessError) as failed:
            # For example because the system has neither memory nor process ids left: the others must go on.
            self._plan_restart(service, f"cannot be started: {failed}", lived=0.0)
        else:
            self._write_status()

    def _plan_restart(self, service: _Service, how: str, *, lived: float) -> None:
        delay = service.restarts.delay_after(how, lived=lived)
        self._report.step(f"{service.command.name} died ({how}), restarting in {delay:.1f} s")
        service.restart_at = monotonic() + delay
        self._write_status()

    def _spawn(self, command: ChildCommand) -> Popen[bytes]:
        process = processes.start(command)
        add = partial(self._records.add, command=command, process=process)
        self._attempt(add, f"the process id of {command.name} cannot be stored")
        return process

    def _write_status(self) -> None:
        if self._status_file is not None:
            write = partial(self._status_file.write, self._services)
            self._attempt(write, "the state of the processes cannot be stored")

    def _attempt(self, action: Callable[[], object], problem: str) -> None:
        """Run an action that no child depends on. A failure, such as a full disk, is reported once until a success."""
        try:
            action()
        except OSError as failed:
            if problem not in self._problems:
                self._problems.add(problem)
                self._report.step(f"{problem}: {failed.strerror}")
        else:
            self._problems.discard(problem)

    def _show_tail(self, command: ChildCommand) -> None:
        for line in tail(command.log, lines=LAST_LINES):
            self._report.line(f"{command.name:>10} | {line[:300]}")

    def stop(self) -> None:
        """End all children, stage by stage. Takes little longer than the sum of STAGE_PATIENCE."""
        for stage in Stage:
            services = [service for service in self._services if service.stage is stage]
            for service in services:
                if service.process.poll() is None:
                    service.process.send_signal(service.command.stop_signal)
            deadline = monotonic() + STAGE_PATIENCE[stage]
            while any(service.process.poll() is None for service in services):
                if monotonic() > deadline or self._interrupts.stop_requested_twice:
                    break
                self._interrupts.rest(0.1)
            for service in services:
                processes.end(service.process, asking=service.command.last_signal, patience=0.4)
                self._records.remove(name=service.command.name)
        self._services.clear()
        if self._status_file is not None:
            self._status_file.remove()


def _refusal(command: ChildCommand, code: int) -> RefusedStart:
    lines = reversed(tail(command.log, lines=LAST_LINES))
    reason = next((line.removeprefix(REASON) for line in lines if line.startswith(REASON)), f"see {command.log}")
    return RefusedStart(f"{command.name} refuses to start: {reason}", exit_code=code)
