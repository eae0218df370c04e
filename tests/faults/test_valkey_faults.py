"""Faults of a separate Valkey: clients get answers, and everything works as before afterwards."""

import json
import logging
import shutil
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import Any

import httpx2
import pytest
import redis
from django.contrib.auth.models import User
from kombu import Consumer, Exchange, Queue
from kombu.common import ignore_errors

from core.work.heartbeats import BEAT_SECONDS
from launcher import processes, valkey
from launcher.address import any_free_port
from launcher.home import server_home
from launcher.valkey import Valkey
from limits.script import SHA
from server.celery import app
from tests.support import workers
from tests.support.api import Api, Caller, MakeCaller, ok
from tests.support.background import ended, text_of
from tests.support.chunks import chunk, text
from tests.support.deployment import small_disk
from tests.support.limits import limit
from tests.support.machine_clock import machine_time
from tests.support.sampling import rest_at_night
from tests.support.schedulers import running_scheduler
from tests.support.targets import Targets, several_targets, upstream_id
from tests.support.upstream import Gate, Script, ScriptedUpstream, stream, whole
from tests.support.waiting import PATIENCE, eventually
from tests.support.web import WebProcess, running_web
from tests.support.workers import running_worker

pytestmark = pytest.mark.slow
RECOVERY_SECONDS = 10.0
LONGEST_ANSWER = 10.0
# An answer that does not depend on Valkey takes a tenth of a second.
USUAL_ANSWER = 1.0
# The most frequent task.
TASK_INTERVAL = 5.0
NO_MONEY = whole({"error": {"message": "No money.", "code": "insufficient_quota"}}, status=402)
WRONG_KEY = whole({"error": {"message": "Wrong key.", "code": "invalid_api_key"}}, status=401)
PASSWORD = "correct horse battery"


@dataclass
class Broker:
    """A running Valkey, which keeps nothing on disk unless it is started as `durable`."""

    server: Valkey
    log: Path
    process: "Popen[bytes] | None" = None

    @property
    def client(self) -> "redis.Redis":
        """A client of it."""
        return redis.Redis.from_url(self.server.url)

    def start(self, *, durable: bool = False) -> None:
        """Start it and wait until it answers."""
        self.process = processes.start(valkey.command(valkey=self.server, log=self.log, durable=durable))
        assert processes.wait_until(partial(valkey.is_ready, valkey=self.server), seconds=90)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it, with its data."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def notes(self, pattern: str) -> list[Any]:
        """Return the stored states of the processes whose names match."""
        found = [self.client.get(key) for key in self.client.scan_iter(f"platform:process:{pattern}", count=1000)]
        return [json.loads(note) for note in found if note]


@dataclass(frozen=True)
class Deployment:
    """The web process and the Valkey that it uses, like its worker and its scheduler."""

    web: WebProcess
    broker: Broker

    def is_scheduling(self, *, since: float) -> bool:
        """Return true if a task was sent and executed since then."""
        ended: Any = self.broker.client.hvals("platform:tasks")
        facts = [note["facts"] for note in self.broker.notes("beat:*")]
        # A task that was executed now may have been sent before the fault.
        sent = [each["sent_at"] for each in facts if each.get("active") and each["sent_at"] > since]
        return bool(sent) and any(json.loads(run)["ended_at"] > min(sent) for run in ended)


@pytest.fixture(scope="module")
def deployment(upstream: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A web process, a worker and a scheduler with a Valkey of their own."""
    directory = tmp_path_factory.mktemp("valkey")
    home = server_home(state_dir=directory)
    server = Valkey(program=valkey.find_program(home=home), home=home, port=any_free_port(), password="secret")
    broker = Broker(server, Path(directory) / "valkey.log")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home.directory, ignore_errors=True)
        stack.callback(broker.kill)
        broker.start()
        # Workers with another Valkey would claim its runs.
        for other in workers.RUNNING:
            stack.enter_context(other.suspended())
        web = stack.enter_context(running_web(REDIS_URL=server.url))
        stack.enter_context(running_worker(REDIS_URL=server.url))
        stack.enter_context(running_scheduler(REDIS_URL=server.url))
        running = Deployment(web, broker)
        eventually(lambda: running.is_scheduling(since=0.0), seconds=60)
        yield running


@pytest.fixture
def own(deployment: Deployment, http: httpx2.Client, caller: Caller) -> Api:
    """The API of a team without limits on the deployment."""
    return Api(http, url=deployment.web.url, caller=caller)


@pytest.fixture
def limited(deployment: Deployment, http: httpx2.Client, make_caller: MakeCaller) -> Api:
    """The API of a key with a limit that is never reached."""
    caller = make_caller()
    limit(caller, requests_per_minute=1000)
    return Api(http, url=deployment.web.url, caller=caller)


@contextmanager
def hanging(broker: Broker) -> Iterator[None]:
    """Stop it without closing connections."""
    broker.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        broker.signal(signal.SIGCONT)


@contextmanager
def gone(broker: Broker) -> Iterator[None]:
    """Kill it; afterwards it starts without data."""
    broker.kill()
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
    """Make it a replica of a missing server, as after a failover."""
    broker.client.replicaof("127.0.0.1", "1")
    try:
        yield
    finally:
        broker.client.replicaof("NO", "ONE")


@contextmanager
def disk_full(broker: Broker) -> Iterator[None]:
    """Start it with the append-only file that `up` gives it, on a disk that is full."""
    with small_disk(broker.server.home.make("valkey"), kilobytes=4096) as disk:
        broker.kill()
        broker.start(durable=True)
        with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass
        # The last page of its file may have free space.
        eventually(lambda: _is_refused(broker.client))
        try:
            yield
        finally:
            (disk / "filler").unlink()


def _is_refused(client: "redis.Redis") -> bool:
    try:
        client.set("filler", bytes(4096))
    except redis.ResponseError as error:
        return "MISCONF" in str(error)
    return False


@pytest.fixture(
    params=rest_at_night([hanging, gone, full, read_only, disk_full], first=1), ids=lambda fault: fault.__name__
)
def fault(request: pytest.FixtureRequest, deployment: Deployment) -> AbstractContextManager[None]:
    """A fault that lasts for a block."""
    broken: AbstractContextManager[None] = request.param(deployment.broker)
    return broken


# -- the API -----------------------------------------------------------------------------------------------------------


def _seconds(create: Callable[[], Any]) -> float:
    """Return how long it takes to create a response."""
    began = machine_time()
    assert create()["status"] == "completed"
    return machine_time() - began


def test_clients_get_answers_while_valkey_fails_and_limits_return(
    fault: AbstractContextManager[None], deployment: Deployment, own: Api, limited: Api, script: Script
) -> None:
    script.always(stream(*text("Hello")))
    body = {"model": script.model, "input": "Hi"}
    assert limited.post("/responses", body).status_code == 200
    with fault:
        unlimited = [_seconds(lambda: own.create(**body))]
        began = machine_time()
        refused = limited.post("/responses", body)
        assert machine_time() - began < LONGEST_ANSWER
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "limits_unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        unlimited += [_seconds(lambda: own.create(**body)) for _ in range(2)]
        # A busy machine may delay a request, but Valkey delays none.
        assert min(unlimited) < USUAL_ANSWER
        assert max(unlimited) < LONGEST_ANSWER / 2
        queued = own.create(background=True, **body)
        # The worker polls the database.
        assert text_of(ended(own, queued["id"], seconds=RECOVERY_SECONDS)) == ["Hello"]
    eventually(lambda: limited.post("/responses", body).status_code == 200, seconds=RECOVERY_SECONDS)
    eventually(
        lambda: httpx2.get(f"{deployment.web.url}/readyz", timeout=PATIENCE).status_code == 200,
        seconds=RECOVERY_SECONDS,
    )


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


@pytest.fixture
def targets(upstream: ScriptedUpstream, database: None) -> Iterator[Targets]:
    """A model with several targets."""
    with several_targets(upstream) as made:
        yield made


def test_targets_that_fail_are_left_out_while_valkey_fails(
    fault: AbstractContextManager[None], deployment: Deployment, own: Api, targets: Targets
) -> None:
    first, second = targets.add().then(NO_MONEY), targets.add().always(stream(*text("Hello")))
    with fault:
        for _ in range(3):
            assert _seconds(lambda: own.create(model=targets.name, input="Hi")) < LONGEST_ANSWER
        assert (len(first.received), len(second.received)) == (1, 3)
    # The process adds its own view to the new, or again usable, Valkey.
    key = f"{upstream_id(first)}:{first.model}"
    eventually(lambda: deployment.broker.client.hexists("platform:targets", key), seconds=RECOVERY_SECONDS)
    own.create(model=targets.name, input="Hi")
    assert len(first.received) == 1


def test_a_target_is_probed_while_valkey_fails(fault: AbstractContextManager[None], own: Api, targets: Targets) -> None:
    first, second = targets.add().then(WRONG_KEY), targets.add().always(stream(*text("Hello")))
    own.create(model=targets.name, input="Hi")
    first.always(stream(*text("Hello")))
    with fault:
        time.sleep(1.0)
        eventually(lambda: bool(own.create(model=targets.name, input="Hi")) and len(first.received) == 2)
        before = len(second.received)
        own.create(model=targets.name, input="Hi")
        assert (len(first.received), len(second.received)) == (3, before)


def test_each_process_keeps_to_the_limits_of_targets_while_valkey_fails(
    fault: AbstractContextManager[None], own: Api, targets: Targets
) -> None:
    hello = stream(*text("Hello"))
    first, second = targets.add(requests_per_minute=2, concurrent_requests=5).always(hello), targets.add().always(hello)
    own.create(model=targets.name, input="Hi")
    with fault:
        for _ in range(3):
            assert _seconds(lambda: own.create(model=targets.name, input="Hi")) < LONGEST_ANSWER
        assert (len(first.received), len(second.received)) == (2, 2)


def test_only_targets_with_limits_run_the_script_of_limits(deployment: Deployment, own: Api, targets: Targets) -> None:
    def runs_script(model: str) -> bool:
        client: Any = deployment.broker.client
        with client.monitor() as monitor:
            own.create(model=model, input="Hi")
            client.echo(model)
            commands = iter(lambda: monitor.next_command()["command"], f"ECHO {model}")
            return any(SHA in command for command in list(commands))

    hello = stream(*text("Hello"))
    targets.add().always(hello)
    # Redis may not know the script yet, and then gets its text.
    with several_targets(targets.upstream) as limited:
        limited.add(requests_per_minute=100).always(hello)
        own.create(model=limited.name, input="Hi")
        # After a fault, the process counts by itself for a moment.
        eventually(lambda: runs_script(limited.name))
        assert not runs_script(targets.name)


# -- scheduled tasks ---------------------------------------------------------------------------------------------------


def test_scheduled_tasks_continue_after_a_fault(fault: AbstractContextManager[None], deployment: Deployment) -> None:
    with fault:
        # Tasks become due, and the worker asks for them.
        time.sleep(1.5 * TASK_INTERVAL)
    # The scheduler reports with its heartbeat that it has sent a task.
    seconds = RECOVERY_SECONDS + TASK_INTERVAL + BEAT_SECONDS
    eventually(partial(deployment.is_scheduling, since=time.time()), seconds=seconds)


def test_a_task_may_take_longer_than_its_connection_lives(deployment: Deployment) -> None:
    """Celery's worker ends with an error of other kinds."""
    connection = app.connection_for_read(deployment.broker.server.url)
    queue = connection.SimpleQueue("unconfirmed")
    queue.put("task")
    task = queue.get(timeout=LONGEST_ANSWER)
    with suppress(queue.Empty):
        # The connection is waiting for another task when it is lost.
        queue.get(timeout=0.1)
    # Like the connection for remote control.
    broadcast = Queue("broadcast", Exchange("broadcasts", type="fanout"), auto_delete=True)
    Consumer(connection.channel(), [broadcast]).consume()
    with gone(deployment.broker):
        with suppress(Exception):
            connection.collect()
        ignore_errors(connection, connection.close)
    task.ack_log_error(logging.getLogger(__name__), connection.connection_errors)


# -- the console -------------------------------------------------------------------------------------------------------


@pytest.fixture
def name(database: None) -> str:
    """The name of an administrator."""
    name = f"person-{uuid.uuid4().hex}"
    User.objects.create_superuser(name, password=PASSWORD)
    return name


@contextmanager
def _browser(deployment: Deployment) -> Iterator[httpx2.Client]:
    """Open the page for signing in."""
    with httpx2.Client(base_url=deployment.web.url, headers={"accept": "text/html"}, timeout=PATIENCE) as browser:
        assert browser.get("/account/login/").status_code == 200
        yield browser


def _send(browser: httpx2.Client, path: str, **fields: str) -> httpx2.Response:
    """Send a form with the password."""
    form = {"password": PASSWORD, "csrfmiddlewaretoken": browser.cookies["csrftoken"], **fields}
    return browser.post(path, data=form)


def test_the_console_works_without_valkey_except_for_passwords(
    fault: AbstractContextManager[None], deployment: Deployment, name: str
) -> None:
    with _browser(deployment) as signed_in, _browser(deployment) as other:
        assert _send(signed_in, "/account/login/", login=name).status_code == 302
        written = deployment.web.written
        with fault:
            for browser, path in ((other, "/account/login/"), (signed_in, "/account/reauthenticate/")):
                began = machine_time()
                # Passwords could be guessed if the attempts were not counted.
                page = _send(browser, path, login=name)
                assert machine_time() - began < LONGEST_ANSWER
                assert (page.status_code, int(page.headers["retry-after"])) == (503, 2)
                assert "Limits cannot be checked at the moment." in page.text
            for path in ("/account/login/", "/admin/", "/admin/system/", "/admin/system/health/"):
                began = machine_time()
                assert signed_in.get(path, follow_redirects=True).status_code == 200
                assert machine_time() - began < LONGEST_ANSWER
        # The attempt above is not executed afterwards, as its lock would block all users for ten seconds.
        eventually(lambda: _send(other, "/account/login/", login=name).status_code == 302, seconds=RECOVERY_SECONDS / 2)
    assert "Traceback" not in deployment.web.output(since=written)
