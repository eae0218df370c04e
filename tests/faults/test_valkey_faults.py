"""Clients while Valkey fails, with a Valkey of their own: an answer, and everything as before afterwards."""

import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import Popen

import httpx2
import pytest
import redis

from launcher import processes, valkey
from launcher.address import any_free_port
from launcher.home import server_home
from launcher.processes import ChildCommand
from launcher.valkey import Valkey
from tests.support import workers
from tests.support.api import Api, Caller, MakeCaller, ok
from tests.support.background import ended, text_of
from tests.support.chunks import chunk, text
from tests.support.limits import limit
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually
from tests.support.web import running_web
from tests.support.workers import running_worker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
RECOVERY_SECONDS = 10.0
LONGEST_ANSWER = 10.0


@dataclass
class Broker:
    """A running Valkey."""

    server: Valkey
    command: ChildCommand
    process: "Popen[bytes]"

    @property
    def client(self) -> "redis.Redis":
        """A client of it."""
        return redis.Redis.from_url(self.server.url)

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.process = processes.start(self.command)
        assert processes.wait_until(partial(valkey.is_ready, valkey=self.server), seconds=30)


@dataclass(frozen=True)
class Deployment:
    """The web process and the Valkey that it uses, like its worker."""

    url: str
    broker: Broker


@pytest.fixture(scope="module")
def deployment(upstream: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A web process and a worker with a Valkey of their own, which keeps nothing on disk."""
    directory = tmp_path_factory.mktemp("valkey")
    home = server_home(state_dir=directory)
    server = Valkey(program=valkey.find_program(home=home), home=home, port=any_free_port(), password="secret")
    command = valkey.command(valkey=server, log=Path(directory) / "valkey.log", durable=False)
    broker = Broker(server, command, processes.start(command))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home.directory, ignore_errors=True)
        stack.callback(lambda: processes.end(broker.process, asking=signal.SIGKILL, patience=5))
        assert processes.wait_until(partial(valkey.is_ready, valkey=server), seconds=30)
        # Workers with another Valkey would claim its runs.
        for other in workers.RUNNING:
            stack.enter_context(other.suspended())
        web = stack.enter_context(running_web(REDIS_URL=server.url))
        stack.enter_context(running_worker(REDIS_URL=server.url))
        yield Deployment(url=web.url, broker=broker)


@pytest.fixture
def own(deployment: Deployment, http: httpx2.Client, caller: Caller) -> Api:
    """The API of a team without limits on the deployment."""
    return Api(http, url=deployment.url, caller=caller)


@pytest.fixture
def limited(deployment: Deployment, http: httpx2.Client, make_caller: MakeCaller) -> Api:
    """The API of a key with a limit that is never reached."""
    caller = make_caller()
    limit(caller, requests_per_minute=1000)
    return Api(http, url=deployment.url, caller=caller)


@contextmanager
def hanging(broker: Broker) -> Iterator[None]:
    """Stop it without closing connections."""
    broker.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        broker.process.send_signal(signal.SIGCONT)


@contextmanager
def gone(broker: Broker) -> Iterator[None]:
    """Kill it; afterwards it starts without data."""
    broker.process.kill()
    broker.process.wait()
    try:
        yield
    finally:
        broker.start()


@contextmanager
def full(broker: Broker) -> Iterator[None]:
    """Let it refuse all commands that need memory."""
    broker.client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        broker.client.config_set("maxmemory", 0)


@contextmanager
def read_only(broker: Broker) -> Iterator[None]:
    """Make it a replica of a server that is not there, as after a failover."""
    broker.client.replicaof("127.0.0.1", "1")
    try:
        yield
    finally:
        broker.client.replicaof("NO", "ONE")


@pytest.fixture(params=[hanging, gone, full, read_only], ids=lambda fault: fault.__name__)
def fault(request: pytest.FixtureRequest, deployment: Deployment) -> AbstractContextManager[None]:
    """A fault that lasts for a block."""
    broken: AbstractContextManager[None] = request.param(deployment.broker)
    return broken


def test_clients_get_answers_while_valkey_fails_and_limits_return(
    fault: AbstractContextManager[None], own: Api, limited: Api, script: Script
) -> None:
    script.always(stream(*text("Hello")))
    body = {"model": script.model, "input": "Hi"}
    assert limited.post("/responses", body).status_code == 200
    with fault:
        began = time.monotonic()
        assert own.create(**body)["status"] == "completed"
        refused = limited.post("/responses", body)
        assert time.monotonic() - began < 2 * LONGEST_ANSWER
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "limits_unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        queued = own.create(background=True, **body)
        # The worker polls the database.
        assert text_of(ended(own, queued["id"], seconds=RECOVERY_SECONDS)) == ["Hello"]
    eventually(lambda: limited.post("/responses", body).status_code == 200, seconds=RECOVERY_SECONDS)
    eventually(lambda: httpx2.get(f"{own._url.removesuffix('/v1')}/readyz").status_code == 200, seconds=10)


def test_a_follower_on_another_process_misses_nothing(
    fault: AbstractContextManager[None], own: Api, script: Script
) -> None:
    """The web process follows a run of the worker, with only the database between them."""
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, *text("lo")))
    made = own.create(model=script.model, input="Hi", background=True)
    gate.wait_until_reached()
    with own.follow(made["id"]) as live:
        live.next()
        with fault:
            gate.open()
            live.rest()  # compares with what is stored, and checks the numbers of the events
    assert text_of(ok(own.get(f"/responses/{made['id']}"))) == ["Hello"]
