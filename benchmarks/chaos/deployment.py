"""A platform of several processes that can be killed one by one: PostgreSQL, Valkey, a web process, beat, workers."""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.stack import (
    MANAGE,
    POSTGRES_SETTINGS,
    Starter,
    answers,
    environment_of,
    home_in,
    manage,
    superuser,
)
from launcher import credentials, database, postgres, processes, valkey
from launcher.home import ServerHome
from launcher.ports import any_free
from launcher.postgres import Cluster
from launcher.processes import ChildCommand
from launcher.valkey import Valkey

_AWAY_SECONDS = 1.0
_LEASE_SECONDS = 5
# Workers are killed so often that the attempts of a response in production would not suffice.
_ATTEMPTS = 100
_READY = "the worker claims background responses"


@dataclass(kw_only=True)
class Server:
    """PostgreSQL or Valkey, with its command and readiness check."""

    name: str
    command: ChildCommand
    is_ready: Callable[[], bool]
    process: subprocess.Popen[bytes]


@dataclass(kw_only=True)
class Worker:
    """A worker process with its log."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def is_ready(self) -> bool:
        """Return whether the worker claims responses."""
        return _READY in self.log.read_text(errors="replace")


@dataclass(kw_only=True)
class Deployment:
    """The running processes. `admin` is a superuser's connection string, `key` an API key."""

    url: str
    admin: str = field(repr=False)
    key: str = field(repr=False)
    postgres: Server
    valkey: Server
    concurrency: int
    environment: Mapping[str, str] = field(repr=False)
    start: Starter
    workers: list[Worker] = field(default_factory=list)
    _started: int = 0

    def add_worker(self) -> None:
        """Start another worker."""
        self._started += 1
        name = f"worker-{self._started}"
        argv = (sys.executable, MANAGE, "worker", "--concurrency", str(self.concurrency))
        process = self.start(name, argv, environment=self.environment)
        self.workers.append(Worker(name=name, process=process, log=self.start.log(name)))

    async def all_working(self) -> None:
        """Wait until every worker claims responses."""
        # If they were killed earlier, no run would make progress.
        await until(lambda: all(worker.is_ready() for worker in self.workers))

    async def kill_worker(self) -> None:
        """Kill the oldest worker and start a new one."""
        await self.all_working()
        _kill(self.workers.pop(0).process, signal.SIGKILL)
        self.add_worker()

    async def restart_valkey(self) -> None:
        """Kill Valkey and start it without data."""
        await self._restart(self.valkey, signal.SIGKILL)

    async def restart_postgres(self) -> None:
        """Stop PostgreSQL immediately and start it; it recovers as after a crash."""
        await self._restart(self.postgres, signal.SIGQUIT)

    async def _restart(self, server: Server, how: signal.Signals) -> None:
        _kill(server.process, how)
        await asyncio.sleep(_AWAY_SECONDS)
        server.process = self.start.run(server.command)
        await until(server.is_ready)


def _kill(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    processes.signal_group(process.pid, how)
    process.wait(30)


async def until(condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
    """Wait for a condition, which is evaluated in a thread. Raises TimeoutError."""
    if not await asyncio.to_thread(processes.wait_until, condition, seconds=seconds):
        raise TimeoutError(f"still waiting after {seconds:g} seconds")


@contextmanager
def running_deployment(*, directory: Path, upstream: str, concurrency: int, workers: int = 2) -> Iterator[Deployment]:
    """Run all processes in a new directory. The upstream serves every model."""
    directory.mkdir(mode=0o711, parents=True)
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, directory, ignore_errors=True)
        start = Starter(directory=directory, undo=undo)
        home = home_in(directory, undo)
        cluster, database_server = _postgres(start, home)
        broker, redis_url = _valkey(start, home)
        environment = {
            **environment_of(directory, cluster, redis_url=redis_url),
            "EGRESS_ALLOW": "127.0.0.1",
            "LEASE_SECONDS": str(_LEASE_SECONDS),
            "BACKGROUND_ATTEMPTS": str(_ATTEMPTS),
        }
        deployment = Deployment(
            url=f"http://127.0.0.1:{any_free()}",
            admin=superuser(cluster),
            key=_prepared(environment, upstream),
            postgres=database_server,
            valkey=broker,
            concurrency=concurrency,
            environment=environment,
            start=start,
        )
        _start_processes(deployment, workers=workers)
        yield deployment


def _postgres(start: Starter, home: ServerHome) -> tuple[Cluster, Server]:
    password = credentials.load(state_dir=start.directory, environment={})["POSTGRES_SUPERUSER_PASSWORD"]
    cluster = postgres.open_cluster(home=home, port=any_free(), password=password)
    command = postgres.command(cluster=cluster, settings=POSTGRES_SETTINGS, log=start.log("postgres"))
    return cluster, _started(start, command, partial(database.is_ready, admin=cluster.admin))


def _valkey(start: Starter, home: ServerHome) -> tuple[Server, str]:
    password = credentials.load(state_dir=start.directory, environment={})["VALKEY_PASSWORD"]
    server = Valkey(program=valkey.find_program(home=home), home=home, port=any_free(), password=password)
    command = valkey.command(valkey=server, log=start.log("valkey"), durable=False)
    return _started(start, command, partial(valkey.is_ready, valkey=server)), server.url


def _started(start: Starter, command: ChildCommand, is_ready: Callable[[], bool]) -> Server:
    process = start.run(command)
    start.wait_for(command.name, ready=is_ready, process=process)
    return Server(name=command.name, command=command, is_ready=is_ready, process=process)


def _prepared(environment: Mapping[str, str], upstream: str) -> str:
    """Migrate, create an API key, route every model to the upstream, and return the key."""
    manage(environment, "migrate")
    made = json.loads(manage(environment, "create_key", "--team", "chaos", "--json"))
    address = ("--base-url", f"{upstream}/v1", "--models", "*", "--default", "--json")
    manage(environment, "add_upstream", "--name", "counting", *address)
    return str(made["key"])


def _start_processes(deployment: Deployment, *, workers: int) -> None:
    port = deployment.url.rpartition(":")[2]
    argv = (sys.executable, MANAGE, "web", "--host", "127.0.0.1", "--port", port)
    web = deployment.start("web", argv, environment={**deployment.environment, "PORT": port})
    deployment.start("beat", (sys.executable, MANAGE, "beat"), environment=deployment.environment)
    for _ in range(workers):
        deployment.add_worker()
    deployment.start.wait_for("web", ready=partial(answers, f"{deployment.url}/readyz"), process=web)
    for worker in deployment.workers:
        deployment.start.wait_for(worker.name, ready=worker.is_ready, process=worker.process)
