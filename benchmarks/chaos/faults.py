"""Random faults of a platform of several processes, each for a few seconds with a pause before the next one."""

import asyncio
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import psutil
import psycopg
import redis

from benchmarks.chaos.checking_upstream import CheckingUpstream, Fault
from benchmarks.chaos.deployment import until
from benchmarks.load import Target
from benchmarks.stack import MANAGE, ROOT, Server, Servers, is_up, running_servers
from launcher import processes
from launcher.address import any_free_port

RECOVERY_SECONDS = 10.0
"""A request that begins within this time after the end of a fault counts as hit by it, too."""
_LEASE_SECONDS = 5
_STOP_SECONDS = 60.0
_READY_SECONDS = 600.0
_PAUSED_SECONDS = 3.0
_AWAY_SECONDS = 1.0
_UPSTREAM_SECONDS = 4.0
_WORKS = "the worker claims background responses"


@dataclass(kw_only=True)
class Window:
    """The time from the start to the end of a fault, in monotonic seconds."""

    kind: str
    began: float
    ended: float = float("inf")

    def hits(self, began: float, ended: float) -> bool:
        """Return whether the fault affects a request that lasted from `began` to `ended`."""
        return began < self.ended + RECOVERY_SECONDS and ended > self.began


class Platform:
    """The processes of the platform by name. A process that is started again keeps its name and its address."""

    def __init__(self, servers: Servers, *, key: str, workers: int = 2, webs: int = 2) -> None:
        self.servers = servers
        headers = {"Authorization": f"Bearer {key}"}
        self.targets = [
            Target(name=f"web-{n}", url=f"http://127.0.0.1:{any_free_port()}", pid=0, api="responses", headers=headers)
            for n in range(1, webs + 1)
        ]
        self._starts: dict[str, Callable[[], Server]] = {
            target.name: partial(self._start_web, target) for target in self.targets
        }
        self._starts |= {f"worker-{n}": partial(self._start_worker, f"worker-{n}") for n in range(1, workers + 1)}
        self._starts["beat-1"] = partial(servers.start, "beat-1", sys.executable, MANAGE, "beat")
        if shutil.which("bwrap"):
            address = f"127.0.0.1:{any_free_port()}"
            servers.environment |= {"SANDBOX_URL": address, "SANDBOX_TOKEN": secrets.token_urlsafe(32)}
            self._starts["sandbox-1"] = partial(self._start_sandbox, address)
        self.running: dict[str, Server] = {}

    @property
    def has_sandbox(self) -> bool:
        """True if programs can be isolated on this machine."""
        return "sandbox-1" in self._starts

    def start(self) -> None:
        """Start all processes and wait until they are ready."""
        for name, start in self._starts.items():
            self.running[name] = start()
        for server in self.running.values():
            self.servers.wait_for(server)

    def names(self, kind: str) -> Sequence[str]:
        """Return the names of the processes of a kind."""
        return [name for name in self._starts if name.startswith(f"{kind}-")]

    def _start_web(self, target: Target) -> Server:
        host, port = target.url.removeprefix("http://").split(":")
        argv = (sys.executable, MANAGE, "web", "--host", host, "--port", port, "--processes", "1")
        web = self.servers.start(target.name, *argv, PORT=port)
        web.is_ready = partial(is_up, f"{target.url}/readyz")
        return web

    def _start_worker(self, name: str) -> Server:
        log = self.servers.log(name)
        seen = log.stat().st_size if log.exists() else 0
        worker = self.servers.start(name, sys.executable, MANAGE, "worker", "--concurrency", "100")
        worker.is_ready = lambda: _WORKS in log.read_text(errors="replace")[seen:]
        return worker

    def _start_sandbox(self, address: str) -> Server:
        token = self.servers.environment["SANDBOX_TOKEN"]
        settings = {"SANDBOX_LISTEN": address, "SANDBOX_TOKEN": token, "PATH": os.environ["PATH"]}
        command = processes.ChildCommand(
            name="sandbox-1",
            argv=(sys.executable, MANAGE, "sandbox"),
            log=self.servers.log("sandbox-1"),
            directory=ROOT,
            environment=settings,
        )
        host, port = address.split(":")
        sandbox = self.servers.run(command, is_ready=None)
        sandbox.is_ready = partial(_accepts, host, int(port))
        return sandbox

    async def wait_until_ready(self) -> None:
        """Wait until all processes are ready."""
        await until(lambda: all(server.is_ready() for server in self.running.values()), seconds=_READY_SECONDS)

    def kill(self, name: str) -> None:
        """Kill a process and start it again, without waiting until it is ready."""
        killed = self.running[name].process
        processes.kill_group(killed)
        killed.wait(30)
        self.running[name] = self._starts[name]()

    async def restart(self, name: str) -> None:
        """Replace a process and wait until the new one is ready. Raises RuntimeError unless it exits with 0."""
        process = self.running[name].process
        process.send_signal(signal.SIGTERM)
        try:
            code = await asyncio.to_thread(process.wait, _STOP_SECONDS)
        except subprocess.TimeoutExpired:
            processes.kill_group(process)
            raise RuntimeError(f"{name} did not stop within {_STOP_SECONDS:g} s") from None
        if code:
            raise RuntimeError(f"{name} exited with {code}")
        self.running[name] = self._starts[name]()
        await until(self.running[name].is_ready, seconds=_READY_SECONDS)


def _accepts(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=2):
        return True
    return False


class Faults:
    """The faults by name. `windows` are the times of past faults, `broken` forbidden events during a fault."""

    def __init__(
        self, platform: Platform, upstream: CheckingUpstream, *, seed: int, log: Callable[[str], None]
    ) -> None:
        self._platform, self._upstream, self._random, self._log = platform, upstream, Random(seed), log
        self.windows: list[Window] = []
        self.broken: list[str] = []
        upstream_faults: Sequence[Fault] = ("refuses", "hangs", "cuts", "answers 500")
        self.kinds: Mapping[str, Callable[[], Awaitable[None]]] = {
            **{
                f"{kind} killed": partial(self._kill, kind)
                for kind in ("web", "worker", "beat", "sandbox")
                if platform.names(kind)
            },
            "Valkey killed": self._kill_valkey,
            "Valkey flushed": self._flush_valkey,
            "Valkey paused": partial(self._pause, platform.servers.valkey),
            "PostgreSQL restarted": partial(self._restart_postgres, signal.SIGINT),
            "PostgreSQL crashed": partial(self._restart_postgres, signal.SIGQUIT),
            "PostgreSQL paused": partial(self._pause, platform.servers.postgres),
            "database sessions ended": self._end_sessions,
            **{f"upstream {fault}": partial(self._fail_upstream, fault) for fault in upstream_faults},
            "web replaced": partial(self._replace, "web"),
            "workers replaced": partial(self._replace, "worker"),
        }

    async def run(self, *, seconds: float, pause: float, only: Sequence[str] = ()) -> None:
        """Cause faults for some seconds. All kinds, or the kinds in `only`, are equally frequent and in random order.

        The time from the recovery after a fault to the next fault is `pause` seconds on average.
        """
        end, kinds, waiting = time.monotonic() + seconds, only or list(self.kinds), list[str]()
        while True:
            waiting = waiting or self._random.sample(kinds, len(kinds))
            await asyncio.sleep(pause * self._random.uniform(0.4, 1.6))
            try:
                await self._platform.wait_until_ready()
            except TimeoutError:
                self.broken.append(f"after {self.windows[-1:]}, some process did not become ready again")
            if time.monotonic() > end:
                return
            window = Window(kind=waiting.pop(), began=time.monotonic())
            self.windows.append(window)
            try:
                await self.kinds[window.kind]()
            except Exception as failed:
                # The report of half an hour must not be lost because of one fault.
                self.broken.append(f"{window.kind}: {failed!r}")
            window.ended = time.monotonic()
            self._log(f"{window.kind}, {window.ended - window.began:.1f} s")
            await asyncio.sleep(RECOVERY_SECONDS)

    async def _kill(self, kind: str) -> None:
        self._platform.kill(self._random.choice(self._platform.names(kind)))

    async def _replace(self, kind: str) -> None:
        for name in self._platform.names(kind):
            await self._platform.restart(name)

    async def _kill_valkey(self) -> None:
        await self._restart(self._platform.servers.valkey, signal.SIGKILL)

    async def _flush_valkey(self) -> None:
        client = redis.Redis.from_url(self._platform.servers.environment["REDIS_URL"])
        await asyncio.to_thread(client.flushall)
        client.close()

    async def _restart_postgres(self, how: signal.Signals) -> None:
        await self._restart(self._platform.servers.postgres, how)

    async def _restart(self, server: Server, how: signal.Signals) -> None:
        server.process.send_signal(how)
        await asyncio.to_thread(server.process.wait, 60)
        await asyncio.sleep(_AWAY_SECONDS)
        server.process = self._platform.servers.run(server.command, is_ready=None).process
        await until(server.is_ready)

    async def _pause(self, server: Server) -> None:
        root = psutil.Process(server.process.pid)
        paused = [root, *root.children(recursive=True)]
        for process in paused:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        await asyncio.sleep(_PAUSED_SECONDS)
        for process in paused:
            with suppress(psutil.NoSuchProcess):
                process.resume()

    async def _end_sessions(self) -> None:
        def end() -> None:
            with psycopg.connect(self._platform.servers.admin, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
                )

        await asyncio.to_thread(end)

    async def _fail_upstream(self, fault: Fault) -> None:
        await self._upstream.fail(fault, seconds=_UPSTREAM_SECONDS)


@contextmanager
def running_platform(directory: Path, *, upstream: str) -> Iterator[Platform]:
    """Run PostgreSQL and Valkey, durable as in production, and prepare the processes of the platform."""
    with running_servers(directory) as servers:
        servers.environment |= {
            "EGRESS_ALLOW": "127.0.0.1",
            "LEASE_SECONDS": str(_LEASE_SECONDS),
            "DRAIN_DELAY_SECONDS": "1",
            "DRAIN_SECONDS": "5",
            "WORKER_DRAIN_SECONDS": "5",
        }
        yield Platform(servers, key=servers.route(upstream))
