"""A platform of several processes that can be killed one by one: PostgreSQL, Valkey, web processes, beat, workers."""

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.load import Target
from benchmarks.stack import MANAGE, Server, Servers, is_up, running_servers
from launcher import processes
from launcher.address import any_free_port

_AWAY_SECONDS = 1.0
_LEASE_SECONDS = 5
# Workers are killed so often that the attempts of a response in production would not suffice.
_ATTEMPTS = 100
_READY = "the worker claims background responses"


@dataclass(kw_only=True)
class Deployment:
    """The running processes. A web process that is replaced keeps its address."""

    servers: Servers
    concurrency: int
    targets: Sequence[Target]
    workers: list[Server] = field(default_factory=list)
    webs: list[Server] = field(default_factory=list)
    _started: int = 0

    @property
    def platform(self) -> Target:
        """One of the web processes."""
        return self.targets[0]

    @property
    def admin(self) -> str:
        """Connection string of a superuser."""
        return self.servers.admin

    def add_worker(self) -> None:
        """Start another worker without waiting for it."""
        self._started += 1
        name = f"worker-{self._started}"
        argv = (sys.executable, MANAGE, "worker", "--concurrency", str(self.concurrency))
        worker = self.servers.start(name, *argv)
        worker.is_ready = lambda: _READY in self.servers.log(name).read_text(errors="replace")
        self.workers.append(worker)

    def add_web(self, target: Target) -> None:
        """Start a web process at an address without waiting for it."""
        host, port = target.url.removeprefix("http://").split(":")
        argv = (sys.executable, MANAGE, "web", "--host", host, "--port", port)
        web = self.servers.start(target.name, *argv, PORT=port)
        web.is_ready = partial(is_up, f"{target.url}/readyz")
        self.webs.append(web)

    async def all_working(self) -> None:
        """Wait until every worker claims responses and every web process is ready."""
        # If they were killed earlier, no run would make progress.
        await until(lambda: all(server.is_ready() for server in (*self.workers, *self.webs)))

    async def kill_worker(self) -> None:
        """Kill the oldest worker and start a new one."""
        await self.all_working()
        _kill(self.workers.pop(0), signal.SIGKILL)
        self.add_worker()

    async def kill_web(self) -> None:
        """Kill the web process that was started first and start it again."""
        await self.all_working()
        killed = self.webs.pop(0)
        _kill(killed, signal.SIGKILL)
        self.add_web(next(target for target in self.targets if target.name == killed.command.name))

    async def restart_valkey(self) -> None:
        """Kill Valkey and start it without data."""
        await self._restart(self.servers.valkey, signal.SIGKILL)

    async def restart_postgres(self) -> None:
        """Stop PostgreSQL immediately and start it; it recovers as after a crash."""
        await self._restart(self.servers.postgres, signal.SIGQUIT)

    async def _restart(self, server: Server, how: signal.Signals) -> None:
        _kill(server, how)
        await asyncio.sleep(_AWAY_SECONDS)
        server.process = self.servers.run(server.command, is_ready=None).process
        await until(server.is_ready)


def _kill(server: Server, how: signal.Signals) -> None:
    processes.signal_group(server.process.pid, how)
    server.process.wait(30)


async def until(condition: Callable[[], bool], *, seconds: float = 600.0) -> None:
    """Wait for a condition, which is evaluated in a thread. Raises TimeoutError."""
    if not await asyncio.to_thread(processes.wait_until, condition, seconds=seconds):
        raise TimeoutError(f"still waiting after {seconds:g} seconds")


@contextmanager
def running_deployment(
    *, directory: Path, upstream: str, concurrency: int, workers: int = 2, webs: int = 2
) -> Iterator[Deployment]:
    """Run all processes in a new directory. The upstream serves every model."""
    with running_servers(directory, durable=False) as servers:
        servers.environment |= {
            "EGRESS_ALLOW": "127.0.0.1",
            "LEASE_SECONDS": str(_LEASE_SECONDS),
            "BACKGROUND_ATTEMPTS": str(_ATTEMPTS),
        }
        headers = {"Authorization": f"Bearer {servers.route(upstream)}"}
        urls = [f"http://127.0.0.1:{any_free_port()}" for _ in range(webs)]
        targets = [
            Target(name=f"web-{number}", url=url, pid=0, api="responses", headers=headers)
            for number, url in enumerate(urls, 1)
        ]
        servers.start("beat", sys.executable, MANAGE, "beat")
        deployment = Deployment(targets=targets, servers=servers, concurrency=concurrency)
        for target in targets:
            deployment.add_web(target)
        for _ in range(workers):
            deployment.add_worker()
        for server in (*deployment.webs, *deployment.workers):
            servers.wait_for(server)
        yield deployment
