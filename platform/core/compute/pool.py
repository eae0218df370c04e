"""Pool of processes for computations on untrusted input: few run at the same time, teams take turns, all have limits.

A request can cause such a computation with a document, a grammar, a schema or an archive. Without the pool, a few
requests could take all processors and the memory of the machine for as long as they like.
"""

import asyncio
import json
import marshal
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.compute import protocol, server
from core.errors import Overloaded, retry_headers
from core.load.turns import Turns
from core.origin import origin
from core.per_loop import PerLoop

_SOURCE_ROOTS = [str(Path(__file__).parents[2]), str(Path(__file__).parents[3])]
# A new request is refused if this many computations of its team are waiting, or of all teams together. The team's limit
# is half the number of requests that may be starting in a web process, so that a team's requests that wait here do not
# delay the starts of other teams.
_MOST_WAITING_OF_TEAM = 32
_MOST_WAITING = 512
_RETRY_SECONDS = (2.0, 6.0)
# The server ends a computation at its time limit; if it has not done so after this much longer, it is broken.
_PATIENCE_SECONDS = 15.0
# A computation is started once more if something else has killed its process.
_ATTEMPTS = 2
_CHUNK = 256 * 1024
_STATUS_BYTES = 64


class TooCostly(Exception):
    """The computation exceeded its limit of time or of memory, or crashed. `is_slow`: it exceeded the time."""

    def __init__(self, *, is_slow: bool = False) -> None:
        self.is_slow = is_slow
        super().__init__("the computation takes too much time or memory")


class ComputationFailed(Exception):
    """The computation raised an exception; its type is the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """A function that computes bytes from untrusted input, and its limits.

    `function` has the form `module:name`. `imports` are the libraries that the module imports: they are loaded before
    the process starts. `cpu_seconds` limits the CPU time, `seconds` the time since the start. `memory` and `result` are
    limits in bytes.
    """

    function: str
    imports: tuple[str, ...] = ()
    cpu_seconds: int
    seconds: float
    memory: int
    result: int


@dataclass(slots=True)
class _Settings:
    processes: int = 3
    refuses: bool = True
    observe: Callable[[str], None] = lambda _: None


_settings = _Settings()
_team: ContextVar[str] = ContextVar("_team", default="")


def configure(*, processes: int, refuses: bool, observe: Callable[[str], None]) -> None:
    """Set how many computations run at the same time, and whether requests are refused while too many wait.

    `observe` is called with each outcome: done, too_costly, refused or repeated.
    """
    _settings.processes, _settings.refuses, _settings.observe = processes, refuses, observe


def waiting() -> int:
    """Return how many computations wait for a place."""
    return sum(turns.waiting for turns in _turns.values())


@contextmanager
def of_team(team_id: str) -> Iterator[None]:
    """Put the computations of the block, and of tasks that it starts, into the queue of a team.

    Computations of a request use the queue of its caller's team by default.
    """
    token = _team.set(team_id)
    try:
        yield
    finally:
        _team.reset(token)


def team() -> str:
    """Return the team in whose queue a computation would wait."""
    return _team.get() or origin().caller.team_id


async def compute(computation: Computation, *arguments: Any, waits: bool = False) -> bytes:
    """Return the result of a computation. The arguments are None, numbers, text, bytes, or lists or dicts of these.

    Raises `TooCostly` or `ComputationFailed`. If too many others are waiting, raises `Overloaded`, or waits too if
    `waits` is true, as a computation for a run that has begun should.
    """
    request = marshal.dumps(arguments)
    turns, team_id = _turns(), team()
    if _settings.refuses and not waits:
        _check_queue(turns, team_id)
    async with turns.turn(team_id):
        for _ in range(_ATTEMPTS):
            result, status = await _start(computation, request)
            if status != protocol.KILLED:
                break
            _settings.observe("repeated")
    match result[:1]:
        case protocol.DONE if status == protocol.EXITED:
            _settings.observe("done")
            return result[1:]
        case protocol.FAILED if status == protocol.EXITED:
            _settings.observe("done")
            raise ComputationFailed(result[1:].decode(errors="replace"))
    _settings.observe("too_costly")
    raise TooCostly(is_slow=status == protocol.TOO_SLOW)


# -- turns -------------------------------------------------------------------------------------------------------------


@PerLoop
def _turns() -> Turns:
    # A team gets all places but one, which other teams may need: otherwise its long computations would delay their
    # short ones.
    return Turns(_settings.processes, of_key=max(1, _settings.processes - 1))


def _check_queue(turns: Turns, team_id: str) -> None:
    is_full = turns.waiting_of(team_id) >= _MOST_WAITING_OF_TEAM or turns.waiting >= _MOST_WAITING
    if is_full and not turns.has_place(team_id):
        _settings.observe("refused")
        raise Overloaded(
            "Too many documents, grammars or other inputs wait to be read. Please try again later.",
            headers=retry_headers(random.uniform(*_RETRY_SECONDS)),  # noqa: S311 - no secret
        )


# -- processes ---------------------------------------------------------------------------------------------------------


class _Server:
    """The program that starts the processes. Each process of the platform starts one, with its first request."""

    def __init__(self) -> None:
        # Event loops of several threads may use it.
        self._lock = threading.Lock()
        self._started: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._owner = 0

    def send(self, message: bytes, files: list[int]) -> "subprocess.Popen[bytes]":
        """Send a request and return the server. Starts a server if none is running."""
        with self._lock:
            process, control = self._running()
            try:
                socket.send_fds(control, [message], files)
            except ConnectionError:
                # The server has just died.
                process.kill()
                process.wait()
                process, control = self._running()
                socket.send_fds(control, [message], files)
            return process

    def _running(self) -> "tuple[subprocess.Popen[bytes], socket.socket]":
        # A forked process must not share the server of its parent.
        if self._started is None or self._owner != os.getpid() or self._started[0].poll() is not None:
            ours, theirs = socket.socketpair()
            with theirs:
                # The empty environment contains no secrets. The server has a session of its own, because Ctrl-C in a
                # terminal also reaches this process, which finishes its runs first.
                process = subprocess.Popen(
                    [sys.executable, "-I", "-c", _PROGRAM, *_SOURCE_ROOTS],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    env={},
                    start_new_session=True,
                )
            self._started, self._owner = (process, ours), os.getpid()
        return self._started


# -I keeps other directories off the import path.
_PROGRAM = (
    f"import runpy, sys; sys.path[1:1] = sys.argv[1:]; runpy.run_module({server.__name__!r}, run_name='__main__')"
)
_server = _Server()


async def _start(computation: Computation, request: bytes) -> tuple[bytes, bytes]:
    """Run a computation in a process. Return its output, which begins with a byte for its kind, and its status."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    status, written = os.pipe()
    try:
        with theirs, ours:
            ours.settimeout(0)
            message = {
                "function": computation.function,
                "imports": computation.imports,
                "cpu": computation.cpu_seconds,
                "seconds": computation.seconds,
                "memory": computation.memory,
                "result": computation.result,
            }
            started = _server.send(json.dumps(message).encode(), [theirs.fileno(), written])
            theirs.close()
            os.close(written)
            written = -1
            try:
                async with asyncio.timeout(computation.seconds + _PATIENCE_SECONDS):
                    with suppress(ConnectionError):
                        await loop.sock_sendall(ours, protocol.LENGTH.pack(len(request)))
                        await loop.sock_sendall(ours, request)
                    result = await _receive(ours, computation.result)
            except TimeoutError:
                started.kill()
                return b"", protocol.KILLED
            if result is None:
                return b"", protocol.CRASHED
        # The status is written before the connection ends; it is empty if the server has died, and the process with it.
        return result, os.read(status, _STATUS_BYTES) or protocol.KILLED
    finally:
        os.close(status)
        if written >= 0:
            os.close(written)


async def _receive(connection: socket.socket, most: int) -> bytes | None:
    """Return the complete output of a process; empty if it is incomplete, None if its result exceeds `most` bytes."""
    loop, head, received = asyncio.get_running_loop(), protocol.LENGTH.size, bytearray()
    with suppress(ConnectionError):
        while chunk := await loop.sock_recv(connection, _CHUNK):
            received += chunk
            if len(received) > head + 1 + most:
                return None
    is_complete = len(received) > head and len(received) == head + 1 + protocol.LENGTH.unpack_from(received)[0]
    return bytes(received[head:]) if is_complete else b""
