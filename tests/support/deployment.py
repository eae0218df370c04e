"""A separate deployment whose parts tests can stop: PostgreSQL, Valkey, a web process, a worker and beat."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import psutil
import psycopg
import pytest
import redis
from psycopg.conninfo import make_conninfo

from benchmarks.stack import MANAGE, Server, Servers, is_up, running_servers
from launcher import postgres, processes
from launcher.address import any_free_port
from launcher.home import run_as
from tests.support import chunks
from tests.support.api import Api
from tests.support.background import text_of
from tests.support.machine_clock import machine_time
from tests.support.management import ForkedPrograms
from tests.support.network import Network
from tests.support.programs import skip
from tests.support.upstream import Script, ScriptedUpstream, running_upstream, stream
from tests.support.waiting import HANGS_AFTER, eventually
from tests.support.web import ROOT

RECOVERY_SECONDS = 10.0
"""The time within which the deployment must work again after the end of a fault."""
_STEADY_SECONDS = 3.0
"""The time without a failure after which the deployment is taken for recovered."""
# Between two requests of a client of `load`: without a pause, a load takes all CPU time of the machine.
_PAUSE_SECONDS = 0.05
DATABASE_TIMEOUT_SECONDS = 4
MAX_CONNECTIONS = 60
_SETTINGS = {
    **postgres.COMMON_SETTINGS,
    "shared_buffers": "32MB",
    "max_connections": str(MAX_CONNECTIONS),
    "fsync": "off",
}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer that a client received: `code` is that of an error, `response_id` and `text` are those of a response.

    `began` is the `machine_time` of the request, `seconds` the time by it until the whole answer was there.
    """

    status: int
    code: str | None
    response_id: str | None
    text: list[str]
    retry_after: str | None
    began: float
    seconds: float


class Answers(list[Answer]):
    """The answers of a load. `latest` is the time at which each client sent its latest request."""

    def __init__(self) -> None:
        super().__init__()
        self.latest: dict[int, float] = {}


@dataclass(kw_only=True)
class Deployment:
    """The running processes. The upstream serves every model."""

    servers: Servers
    upstream: ScriptedUpstream
    url: str
    api: Api
    secret: str
    http: httpx2.Client
    spare_port: int

    @property
    def postgres(self) -> Server:
        """The database server."""
        return self.servers.postgres

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Execute a statement as superuser and return its rows."""
        with psycopg.connect(self.servers.admin, autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    # -- faults --------------------------------------------------------------------------------------------------------

    def stop(self, server: Server, how: signal.Signals) -> None:
        """Stop a server."""
        processes.signal_group(server.process.pid, how)
        server.process.wait(30)

    def kill(self, server: Server) -> None:
        """Kill a server and all of its processes."""
        leader = psutil.Process(server.process.pid)
        for process in [leader, *leader.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        server.process.wait(30)

    def start_standby(self) -> Server:
        """Start a standby of the database server at the second host of the URL, and let commits wait for it."""
        cluster = self.servers.cluster
        home = cluster.home
        standby = replace(cluster, data=home.make("standby"), port=self.spare_port)
        program = str(cluster.programs.directory / "pg_basebackup")
        arguments = ["-d", cluster.admin, "-D", str(standby.data), "-R", "--checkpoint=fast"]
        done = run_as([program, *arguments], account=home.account, directory=home.directory)
        assert done.returncode == 0, done.stderr
        command = postgres.command(cluster=standby, settings=_SETTINGS, log=self.servers.log("standby"))
        server = self.servers.run(command, is_ready=partial(postgres.is_ready, admin=standby.admin))
        self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.sql("SELECT pg_reload_conf()")
        eventually(lambda: self.sql("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"))
        return server

    def promote(self, standby: Server) -> None:
        """Make the standby the database server."""
        self.servers.postgres = standby
        self.servers.admin = make_conninfo(self.servers.admin, port=self.spare_port)
        self.sql("SELECT pg_promote()")
        self.sql("ALTER SYSTEM RESET synchronous_standby_names")
        self.sql("SELECT pg_reload_conf()")

    def start(self, server: Server) -> None:
        """Start a server again and wait until it accepts connections."""
        server.process = self.servers.run(server.command, is_ready=server.is_ready).process

    @contextmanager
    def paused(self, server: Server) -> Iterator[None]:
        """Suspend a server and all of its processes inside the block."""
        leader = psutil.Process(server.process.pid)
        # The leader first: it would start new processes, or consider its suspended children dead.
        leader.suspend()
        family = leader.children(recursive=True)
        for child in family:
            child.suspend()
        try:
            yield
        finally:
            for process in [*family, leader]:
                with suppress(psutil.NoSuchProcess):
                    process.resume()

    # -- state ---------------------------------------------------------------------------------------------------------

    def readiness(self) -> int:
        """Return the status of `/readyz`."""
        return self.http.get(f"{self.url}/readyz").status_code

    def ask(self, model: str, *, text: str = "Hi") -> Answer:
        """Create a response and return what the client receives."""
        began = machine_time()
        answer = self.api.post("/responses", {"model": model, "input": text})
        body = answer.json()
        return Answer(
            status=answer.status_code,
            code=body["error"]["code"] if body.get("error") else None,
            response_id=body.get("id"),
            text=text_of(body) if answer.status_code == 200 else [],
            retry_after=answer.headers.get("retry-after"),
            began=began,
            seconds=machine_time() - began,
        )

    def wait_until_recovered(self, model: str) -> None:
        """Wait until the deployment is ready and answers; fails after `RECOVERY_SECONDS`."""
        eventually(lambda: self.readiness() == 200 and self.ask(model).status == 200, seconds=RECOVERY_SECONDS)

    def wait_until_steady(self, model: str, answers: Answers) -> float:
        """Wait until neither readiness nor the load has failed for some seconds; return the beginning of these seconds.

        To be called at the end of a fault: fails if that is later than `RECOVERY_SECONDS` from now.
        """
        ended = since = machine_time()
        # Until requests of that time are answered, they may still fail.
        while min(answers.latest.values()) < since + _STEADY_SECONDS:
            looked = machine_time()
            if self.readiness() != 200 or self.ask(model).status != 200:
                since = looked
            since = max([since, *(answer.began for answer in [*answers] if answer.status != 200)])
            assert since < ended + RECOVERY_SECONDS, "it has not recovered, or not for long"
            assert looked < ended + 3 * RECOVERY_SECONDS, "a request is not answered"
            time.sleep(0.1)
        return since

    def assert_nothing_lost(self, answers: "list[Answer]", *, steady: float = 0.0, codes: Collection[str] = ()) -> None:
        """Assert that each answer is correct and stored, or is one of these errors and asks for a retry.

        Requests after `steady`, the result of `wait_until_steady`, may neither fail nor wait; by default, none may.
        """
        failures = [answer for answer in answers if answer.status != 200]
        assert [each for each in failures if each.status != 503 or each.code not in codes] == []
        assert [each for each in failures if not each.retry_after] == []
        later = [answer for answer in answers if answer.began > steady]
        assert [each for each in later if each.status != 200 or each.seconds > RECOVERY_SECONDS] == []
        completed = [answer for answer in answers if answer.status == 200]
        assert [each for each in completed if each.text != ["Hello"]] == []
        for answer in completed:
            stored = self.api.retrieve(str(answer.response_id))
            assert (stored["status"], text_of(stored)) == ("completed", ["Hello"])

    def unfinished(self) -> int:
        """Return the number of runs without a terminal state."""
        ((number,),) = self.sql("SELECT count(*) FROM responses_response WHERE ended_at IS NULL")
        return int(number)

    def task_runs(self) -> set[bytes]:
        """Return the notes about the latest run of each scheduled task."""
        with redis.Redis.from_url(self.servers.environment["REDIS_URL"]) as client:
            notes: Any = client.hvals("platform:tasks")
            return set(notes)

    @contextmanager
    def load(self, model: str, *, clients: int = 4) -> Iterator[Answers]:
        """Create responses one after the other from several clients inside the block; yields their answers."""
        answers = Answers()
        errors: list[BaseException] = []
        over = threading.Event()

        def create(client: int) -> None:
            try:
                while not over.is_set():
                    answers.latest[client] = machine_time()
                    answers.append(self.ask(model))
                    over.wait(_PAUSE_SECONDS)
            except BaseException as error:
                errors.append(error)

        answers.latest.update(dict.fromkeys(range(clients), machine_time()))
        threads = [threading.Thread(target=create, args=[client]) for client in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield answers
        finally:
            over.set()
            for thread in threads:
                thread.join(60)
        if errors:
            raise errors[0]

    @contextmanager
    def script(self) -> Iterator[Script]:
        """Yield a script of a model that always says hello, unless the test scripts it otherwise."""
        with self.upstream.script() as script:
            script.always(stream(*chunks.text("Hel", "lo")))
            yield script


@contextmanager
def small_disk(directory: Path, *, kilobytes: int) -> Iterator[Path]:
    """Mount a new file system of this size on a directory inside the block. Skips the test if that is not possible,
    except in CI."""
    directory.mkdir(exist_ok=True)
    owner = directory.stat()
    options = f"size={kilobytes}k,uid={owner.st_uid},gid={owner.st_gid},mode=700"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        skip(f"mounting a file system is not possible here: {done.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(disk: Path) -> None:
    """Write a file until nothing more fits."""
    with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(1024))


@contextmanager
def running_deployment(*, network: Network | None = None, **variables: str) -> Iterator[Deployment]:
    """Run a deployment with additional environment variables in a new directory.

    With a network, the web process, the worker and beat run in its namespaces.
    """
    directory = ROOT / ".test-run" / f"state-{os.getpid()}-deployment"
    shutil.rmtree(directory, ignore_errors=True)
    # Not on all addresses: another process may have the port on one of them.
    settings = _SETTINGS | ({"listen_addresses": f"127.0.0.1,{network.addresses['postgres']}"} if network else {})
    with (
        running_upstream(host=network.addresses["upstream"] if network else "127.0.0.1") as upstream,
        running_servers(directory, settings=settings, durable=False, programs=ForkedPrograms()) as servers,
        httpx2.Client(timeout=HANGS_AFTER) as http,
    ):
        spare_port, port = any_free_port(), any_free_port()
        host = network.web_address if network else "127.0.0.1"
        (servers.directory / "tmp").mkdir()
        if network:
            network.attach(servers)
        else:
            # The second server starts only in the test of a failover.
            database = servers.environment["DATABASE_URL"]
            servers.environment["DATABASE_URL"] = database.replace("/benchmark", f",127.0.0.1:{spare_port}/benchmark")
        servers.environment |= {
            "ALLOWED_HOSTS": host,
            "TMPDIR": str(servers.directory / "tmp"),
            "EGRESS_ALLOW": f"127.0.0.1,{network.addresses['upstream']}" if network else "127.0.0.1",
            "LEASE_SECONDS": "3",
            "DATABASE_TIMEOUT_SECONDS": str(DATABASE_TIMEOUT_SECONDS),
            "WEBHOOK_CONCURRENCY": "4",
            **variables,
        }
        key = servers.route(upstream.url.removesuffix("/v1"))

        def program(name: str) -> tuple[str, ...]:
            namespace = network.command(name) if network else ()
            return (*namespace, sys.executable, MANAGE, name)

        beat = servers.start("beat", *program("beat"))
        worker = servers.start("worker", *program("worker"))
        address = ("--host", host, "--port", str(port), "--processes", "1")
        web = servers.start("web", *program("web"), *address, PORT=str(port))
        url = f"http://{host}:{port}"
        beat.is_ready = lambda: "this scheduler is active" in servers.log("beat").read_text()
        web.is_ready = partial(is_up, f"{url}/readyz")
        worker.is_ready = lambda: "the worker claims background responses" in servers.log("worker").read_text()
        for server in (web, worker, beat):
            servers.wait_for(server)
        try:
            yield Deployment(
                servers=servers,
                upstream=upstream,
                url=url,
                api=Api(http, url=url, secret=key),
                secret=key,
                http=http,
                spare_port=spare_port,
            )
        finally:
            # No data is kept, so no graceful shutdown is needed.
            for server in (web, worker, beat):
                processes.kill_group(server.process)


def script_fixture() -> Any:
    """Return a fixture of `Deployment.script` for `deployment`, which must work before and after the test."""

    @pytest.fixture
    def script(deployment: Deployment) -> Iterator[Script]:
        with deployment.script() as script:
            deployment.wait_until_recovered(script.model)
            yield script
            deployment.wait_until_recovered(script.model)

    return script
