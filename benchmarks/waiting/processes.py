"""The processes of a platform whose clock can be set, with processes that are stopped and started together."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import psycopg

from benchmarks.load import resident_mb
from benchmarks.stack import MANAGE, STATEMENTS, Server, Servers, is_up
from launcher import processes
from launcher.address import any_free_port
from tests.support.clocks import ShiftedClock

SLOTS = 2
"""The number of slots of each worker."""
_PATIENCE_SECONDS = 60.0
_USED = "SELECT coalesce(sum(calls), 0)::int, coalesce(sum(rows), 0)::int," + (
    " coalesce(sum(shared_blks_hit + shared_blks_read), 0)::int" + STATEMENTS
)


@contextmanager
def running_clock() -> Iterator[ShiftedClock]:
    """Give the clock to all processes that this one starts, also to PostgreSQL and Valkey."""
    with TemporaryDirectory(prefix="clock-") as directory:
        # PostgreSQL and Valkey run under an account of their own.
        Path(directory).chmod(0o755)
        clock = ShiftedClock(Path(directory))
        with patch.dict(os.environ, clock.variables):
            yield clock


@dataclass(frozen=True, kw_only=True)
class Work:
    """The platform's statements in an interval without requests, with their rows and the blocks that they read."""

    statements: int
    rows: int
    blocks: int


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The memory of the web process and of one worker, in MiB."""

    web: float
    worker: float


@dataclass(kw_only=True)
class Platform:
    """A web process, workers and a scheduler, which are stopped and started together."""

    servers: Servers
    key: str
    workers: int
    web_port: int = field(default_factory=any_free_port)
    _running: dict[str, Server] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The URL of the web process, which stays the same."""
        return f"http://127.0.0.1:{self.web_port}"

    def start(self) -> None:
        """Start all processes and wait until they work."""
        options = ("--host", "127.0.0.1", "--port", str(self.web_port), "--processes", "1")
        self._start("beat", "beat", log_line="this scheduler is active")
        for number in range(1, self.workers + 1):
            line = "the worker claims background responses"
            self._start(f"worker-{number}", "worker", "--concurrency", str(SLOTS), log_line=line)
        web = self._start("web", "web", *options)
        web.is_ready = partial(is_up, f"{self.url}/readyz")
        for server in self._running.values():
            self.servers.wait_for(server)

    def _start(self, name: str, *argv: str, log_line: str = "") -> Server:
        log = self.servers.log(name)
        size = log.stat().st_size if log.exists() else 0
        server = self.servers.start(name, sys.executable, MANAGE, *argv, PORT=str(self.web_port))
        server.is_ready = lambda: log_line in log.read_text(errors="replace")[size:]
        self._running[name] = server
        return server

    def stop(self) -> None:
        """Stop all processes with SIGTERM, as a service manager does."""
        for server in self._running.values():
            server.process.send_signal(signal.SIGTERM)
        for server in self._running.values():
            processes.end(server.process, asking=signal.SIGTERM, patience=_PATIENCE_SECONDS)

    def kill(self) -> None:
        """Kill all processes."""
        for server in self._running.values():
            processes.kill_group(server.process)
        for server in self._running.values():
            server.process.wait(_PATIENCE_SECONDS)

    def memory(self) -> Memory:
        """Return the memory of the processes at the moment."""
        web, worker = (resident_mb(self._running[name].process.pid) for name in ("web", "worker-1"))
        return Memory(web=web, worker=worker)

    def work(self) -> Work:
        """Return what PostgreSQL has done for the platform so far."""
        with psycopg.connect(self.servers.admin) as connection:
            statements, rows, blocks = connection.execute(_USED.encode()).fetchone() or (0, 0, 0)
        return Work(statements=statements, rows=rows, blocks=blocks)
