"""Workers that stop, die or never start: every background response ends, and no stored call is repeated."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pytest
import redis
from django.conf import settings

from core.clock import now
from responses.models import Response
from server.tasks import sweep_dead_runs
from tenants import scope
from tenants.models import UsageRecord
from tests.support.api import Api, MakeApi
from tests.support.background import ended, text_of
from tests.support.chunks import chunk, text
from tests.support.machine_clock import machine_time
from tests.support.mcp_requests import calling, of, tool
from tests.support.mcp_servers import McpServer
from tests.support.streams import types
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually
from tests.support.workers import MakeWorker, WorkerProcess

pytestmark = pytest.mark.slow
BRIEF = {"LEASE_SECONDS": "3", "WORKER_DRAIN_SECONDS": "1"}


def row(api: Api, response_id: str) -> Response:
    """Return the stored response."""
    with scope.team(api.caller.team.pk):
        return Response.objects.get(pk=response_id)


def ledger(api: Api) -> list[str]:
    """Return the outcomes of the team's upstream calls."""
    with scope.team(api.caller.team.pk):
        return [one.outcome for one in UsageRecord.objects.filter(team=api.caller.team).order_by("id")]


def queue(api: Api, script: Script, *tools: object) -> str:
    """Queue a response and return its id."""
    created = api.create(model=script.model, input="Go.", background=True, tools=[*tools])
    response_id: str = created["id"]
    return response_id


def test_a_stopping_worker_releases_its_run_during_a_turn(api: Api, script: Script, make_worker: MakeWorker) -> None:
    gate, first = Gate(), make_worker(**BRIEF)
    script.then(stream(chunk(content="Hal"), gate)).say("Hello")
    response_id = queue(api, script)
    gate.wait_until_reached()
    assert first.stop() < 6
    waiting = row(api, response_id)
    assert (waiting.status, waiting.lease_until, waiting.attempt) == ("in_progress", None, 0)
    assert script.received[0].was_closed()
    make_worker(**BRIEF)
    assert text_of(ended(api, response_id)) == ["Hal", "Hello"]
    assert ledger(api) == ["interrupted", "stop"]


def test_the_first_output_of_a_resumed_run_reaches_its_follower_immediately(
    api: Api, script: Script, make_worker: MakeWorker
) -> None:
    before, after = Gate(), Gate()
    # Both happen before the run, because a new process stores all deltas at once.
    workers = [make_worker(**BRIEF), make_worker(**BRIEF)]
    script.then(stream(before), stream(chunk(content="Hel"), after, *text("lo")))
    with api.stream(model=script.model, input="Go.", background=True) as live:
        response_id = live.next()["response"]["id"]
        before.wait_until_reached()
        owner = row(api, response_id).lease_owner or ""
        (executing,) = [each for each in workers if f":{each._process.pid}:" in owner]
        executing.stop()
        stopped = machine_time()
        while live.next()["type"] != "response.output_text.delta":
            pass
        # Without a follower, deltas are stored every ten seconds.
        assert machine_time() - stopped < 5
        after.open()
        assert types(live.rest())[-1] == "response.completed"


def test_repeated_stop_signals_do_not_prevent_the_release_of_runs(
    api: Api, script: Script, make_worker: MakeWorker
) -> None:
    gate, first = Gate(), make_worker(**{**BRIEF, "WORKER_DRAIN_SECONDS": "2"})
    script.then(stream(chunk(content="Hal"), gate))
    response_id = queue(api, script)
    gate.wait_until_reached()

    def has_ended() -> bool:
        first._process.send_signal(signal.SIGTERM)
        return first._process.poll() is not None

    eventually(has_ended)
    waiting = row(api, response_id)
    assert (waiting.status, waiting.lease_until, waiting.attempt) == ("in_progress", None, 0)
    assert first._process.poll() == 0


@pytest.mark.nightly
def test_a_stopping_worker_waits_for_a_step(
    reaching: Api, script: Script, served: McpServer, make_worker: MakeWorker
) -> None:
    """The result of the active call is stored; the next worker executes the turn after it."""
    first = make_worker(**{**BRIEF, "WORKER_DRAIN_SECONDS": "5"})
    script.then(calling(("box__note", "{}")))
    script.call(box__wait="{}").say("Done.")
    response_id = queue(reaching, script, tool(served))
    served.wait_for_calls(2)
    first._process.send_signal(signal.SIGTERM)
    served.opened.set()
    first.stop()
    assert (len(script.received), row(reaching, response_id).status) == (2, "in_progress")
    make_worker(**BRIEF)
    assert text_of(ended(reaching, response_id)) == ["Done."]
    assert served.names() == ["note", "wait"]


def test_a_run_of_a_dead_worker_is_resumed_without_a_gap_in_its_log(
    api: Api, script: Script, make_worker: MakeWorker
) -> None:
    gate, first = Gate(), make_worker(**BRIEF)
    script.then(stream(chunk(content="Hal"), gate)).say("Hello")
    response_id = queue(api, script)
    gate.wait_until_reached()
    with api.follow(response_id) as live:
        while live.next()["type"] != "response.output_text.delta":
            pass
        first.stop(signal.SIGKILL)
        make_worker(**BRIEF)
        live.rest()
    assert text_of(ended(api, response_id)) == ["Hal", "Hello"]
    with api.follow(response_id) as replay:
        events = replay.rest()
    assert types(events).count("response.in_progress") == 1
    assert row(api, response_id).attempt == 2


def test_calls_with_stored_results_are_not_repeated_after_a_crash(
    reaching: Api, script: Script, served: McpServer, make_worker: MakeWorker
) -> None:
    first = make_worker(**BRIEF)
    script.then(calling(("box__note", "{}"))).call(box__wait="{}").say("Done.")
    response_id = queue(reaching, script, tool(served))
    served.wait_for_calls(2)
    first.stop(signal.SIGKILL)
    served.opened.set()
    make_worker(**BRIEF)
    done = ended(reaching, response_id)
    assert (done["status"], text_of(done)) == ("completed", ["Done."])
    assert served.names() == ["note", "wait", "wait"]
    assert [item["name"] for item in of(done, "mcp_call") if item["status"] == "completed"] == ["note", "wait"]


def test_an_unrepeatable_call_in_flight_waits_for_a_person(
    reaching: Api, script: Script, served: McpServer, make_worker: MakeWorker
) -> None:
    first = make_worker(**BRIEF)
    served.make_unrepeatable("wait")
    script.then(calling(("box__wait", "{}")))
    response_id = queue(reaching, script, tool(served))
    served.wait_for_calls(1)
    first.stop(signal.SIGKILL)
    served.opened.set()
    make_worker(**BRIEF)
    waiting = eventually(lambda: reaching.retrieve(response_id).get("pending_decisions"), seconds=30)
    assert [decision["kind"] for decision in waiting or ()] == ["unknown_outcome"]
    assert served.names() == ["wait"]


@pytest.mark.nightly
def test_attempts_are_limited(api: Api, script: Script, make_worker: MakeWorker) -> None:
    response_id = ""
    for _ in range(2):
        gate = Gate()
        script.then(stream(gate))
        doomed = make_worker(**BRIEF, BACKGROUND_ATTEMPTS="2")
        response_id = response_id or queue(api, script)
        gate.wait_until_reached()
        doomed.stop(signal.SIGKILL)
    make_worker(**BRIEF, BACKGROUND_ATTEMPTS="2")
    eventually(lambda: (row(api, response_id).lease_until or now()) < now())
    sweep_dead_runs.apply_async()
    failed = ended(api, response_id)
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")


@pytest.mark.nightly
def test_no_response_is_lost_when_the_broker_loses_all_messages(
    api: Api, script: Script, make_worker: MakeWorker
) -> None:
    script.always(stream(*text("Hello")))
    queued = [queue(api, script) for _ in range(20)]
    redis.Redis.from_url(settings.REDIS_URL).flushall()
    make_worker(**BRIEF)
    assert {ended(api, response_id)["status"] for response_id in queued} == {"completed"}


@pytest.mark.nightly
def test_a_worker_without_a_broker_runs_responses_and_stops_on_request(
    api: Api, script: Script, make_worker: MakeWorker
) -> None:
    lonely = make_worker(**BRIEF, REDIS_URL="redis://127.0.0.1:1/0")
    response_id = queue(api, script.say("Hello"))
    assert text_of(ended(api, response_id)) == ["Hello"]
    assert lonely.stop() < 6
    assert lonely._process.poll() == 0


@pytest.mark.nightly
def test_a_team_with_many_runs_does_not_delay_another_team(
    api: Api, script: Script, other_script: Script, make_api: MakeApi, make_worker: MakeWorker
) -> None:
    gate = Gate()
    script.always(stream(gate, *text("Hello")))
    queued = [queue(api, script) for _ in range(12)]
    # With the usual leases: none may expire on a busy machine, as the run would be claimed again.
    make_worker(concurrency=4, WORKER_DRAIN_SECONDS="1")
    eventually(lambda: len(script.received) == 4, seconds=60)
    other = make_api()
    response_id = queue(other, other_script.say("Quick."))
    assert text_of(ended(other, response_id, seconds=60)) == ["Quick."]
    # Meanwhile, responses of the first team fill all slots and the rest wait.
    assert len(script.received) == 4
    assert [row(api, one).status for one in queued].count("queued") == 8
    gate.open()
    assert {ended(api, one, seconds=60)["status"] for one in queued} == {"completed"}


@contextmanager
def short_of_cpu(worker: WorkerProcess) -> Iterator[None]:
    """Give a worker only half of the CPU time inside the block, in slices of a few milliseconds, as under load."""
    is_over = Event()

    def take_turns() -> None:
        while not is_over.wait(0.01):
            with worker.suspended():
                time.sleep(0.01)

    thread = Thread(target=take_turns)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@pytest.mark.nightly
def test_waiting_runs_leave_slots_free_on_a_busy_worker(
    make_api: MakeApi, script: Script, make_worker: MakeWorker
) -> None:
    gate, teams = Gate(), [make_api(), make_api()]
    # While a single team uses a worker, its load limits nothing.
    script.say("Hello").say("Hello")
    with short_of_cpu(make_worker()):
        for api in teams:
            ended(api, queue(api, script))
        script.always(stream(chunk(content="Hel"), gate, *text("lo")))
        runs = [(api, queue(api, script)) for _ in range(25) for api in teams]
        eventually(lambda: len(script.received) == 2 + len(runs), seconds=60)
    gate.open()
    for api, response_id in runs:
        assert ended(api, response_id, seconds=60)["status"] == "completed"
