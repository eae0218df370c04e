"""Program that starts a process for each computation; started by the pool, which sends requests to its standard input.

A process that is forked from this small one costs 2 ms, has the libraries already loaded, and knows nothing of other
computations. This program itself reads no untrusted input. It ends, and with it everything that it has started, when
the pool closes the connection or dies.
"""

import ctypes
import gc
import importlib
import json
import marshal
import os
import resource
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from core.compute import protocol

# Requests come first: computations must not slow down the web process on a busy machine.
_NICENESS = 10
_REQUEST_BYTES = 4096
_CHUNK = 1024 * 1024
_OPEN_FILES = 64
_PR_SET_PDEATHSIG = 1
_POLL_MS = 1000


@dataclass(frozen=True, slots=True)
class _Running:
    """A running computation. The server keeps its end of the connection open to notice when the pool closes its end."""

    connection: socket.socket
    status: int
    ends: float


class Server:
    """Starts and ends the processes of one pool."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._running: dict[int, _Running] = {}
        self._slow: set[int] = set()
        self._poll = select.poll()
        # The handler does nothing; the signal ends the poll through this socket.
        self._awake, waking = socket.socketpair()
        self._awake.settimeout(0)
        waking.settimeout(0)
        signal.set_wakeup_fd(waking.detach())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._poll.register(self._awake, select.POLLIN)
        self._poll.register(control, select.POLLIN)

    def serve(self) -> None:
        """Serve requests until the pool closes the connection."""
        while True:
            nearest = min((running.ends for running in self._running.values()), default=None)
            # At least each second: a signal that arrives just before the poll would otherwise go unnoticed until the
            # next one.
            wait = _POLL_MS if nearest is None else max(0, min(_POLL_MS, int((nearest - time.monotonic()) * 1000) + 1))
            ready = dict(self._poll.poll(wait))
            with suppress(BlockingIOError):
                self._awake.recv(_REQUEST_BYTES)
            self._reap()
            self._kill_expired_and_abandoned(ready)
            if self._control.fileno() in ready and not self._accept():
                break
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)

    def _accept(self) -> bool:
        """Start the computation of a request. Return false at the end of the connection."""
        try:
            # Receives one message even if several are waiting: the kernel does not join messages that carry files.
            message, files, _, _ = socket.recv_fds(self._control, _REQUEST_BYTES, 2)
        except ConnectionError:
            return False
        if not message:
            return False
        request = json.loads(message)
        connection, status = socket.socket(fileno=files[0]), files[1]
        # Each library is imported only once: all later processes inherit it.
        for name in request["imports"]:
            importlib.import_module(name)
        module, _, name = request["function"].partition(":")
        function = getattr(importlib.import_module(module), name)
        gc.freeze()
        pid = os.fork()
        if not pid:
            self._become(connection, request, function)
        self._running[pid] = _Running(connection, status, time.monotonic() + request["seconds"])
        # No events are requested, as hang-ups are always reported.
        self._poll.register(connection, 0)
        return True

    def _become(self, connection: socket.socket, request: dict[str, Any], function: Any) -> None:
        """Continue as the process of one computation; never returns."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            for running in self._running.values():
                running.connection.close()
                os.close(running.status)
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            _limit(request)
            arguments = marshal.loads(_read(connection))  # noqa: S302 - written by the pool
            kind, result = _outcome(function, arguments, request["result"])
            connection.sendall(protocol.LENGTH.pack(len(result)) + kind)
            connection.sendall(result)
        except BaseException:
            os._exit(1)
        os._exit(0)

    def _kill_expired_and_abandoned(self, ready: dict[int, int]) -> None:
        now = time.monotonic()
        for pid, running in self._running.items():
            if now >= running.ends:
                self._slow.add(pid)
            elif not ready.get(running.connection.fileno(), 0) & (select.POLLHUP | select.POLLERR):
                continue
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        for pid in list(self._running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            running = self._running.pop(pid)
            self._poll.unregister(running.connection)
            reason = _reason(os.waitstatus_to_exitcode(status), is_slow=pid in self._slow)
            self._slow.discard(pid)
            with suppress(BrokenPipeError):
                os.write(running.status, reason)
            # In this order: at the end of the connection, the pool reads the reason.
            os.close(running.status)
            running.connection.close()


def _reason(code: int, *, is_slow: bool) -> bytes:
    if code == -signal.SIGXCPU or (code == -signal.SIGKILL and is_slow):
        return protocol.TOO_SLOW
    if code in {-signal.SIGKILL, -signal.SIGTERM}:
        return protocol.KILLED
    return protocol.EXITED if code == 0 else protocol.CRASHED


def _read(connection: socket.socket) -> bytes:
    head = connection.recv(protocol.LENGTH.size, socket.MSG_WAITALL)
    (left,) = protocol.LENGTH.unpack(head)
    content = bytearray(left)
    view = memoryview(content)
    while left:
        received = connection.recv_into(view[-left:], min(left, _CHUNK))
        if not received:
            raise EOFError
        left -= received
    return bytes(content)


def _limit(request: dict[str, Any]) -> None:
    os.nice(_NICENESS)
    # The soft limit's signal tells the reason. Code injected through a parser could ignore it, but not the hard limit.
    resource.setrlimit(resource.RLIMIT_CPU, (request["cpu"], request["cpu"] + 1))
    for kind, limit in (
        (resource.RLIMIT_AS, request["memory"]),
        # Nothing is written to disk: neither files nor core dumps, which would contain the input.
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(kind, (limit, limit))


def _outcome(function: Any, arguments: Any, most: int) -> tuple[bytes, bytes]:
    try:
        result = function(*arguments)
    except MemoryError:
        return protocol.TOO_LARGE, b""
    # Parsers raise exceptions of many types for hostile input.
    except Exception as error:
        return protocol.FAILED, type(error).__name__.encode()
    return (protocol.DONE, result) if len(result) <= most else (protocol.TOO_LARGE, b"")


if __name__ == "__main__":
    control = socket.socket(fileno=os.dup(0))
    Server(control).serve()
