"""Usage of killed processes: the process that ends or continues a run writes the missing records as estimates."""

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import datetime
from decimal import Decimal
from typing import Any

import httpx2
import pytest

from core.clock import now
from core.errors import Failure
from core.work.leases import take
from engine.events.response_body import failed
from limits import guard, services, status_sync
from responses.lifecycle import dead_processes, resume, sweeper
from responses.lifecycle.cancel import cancel_run, fail_run, requeue_run
from responses.models import EventBatch, Response, ToolCall
from responses.runs import open_calls
from responses.runs.identity import RequestInfo
from tenants import directory, scope
from tenants.models import Reservation, UsageRecord
from tenants.prices import PriceEntry, PriceList
from tests.support.api import Api, Caller, ok
from tests.support.background import ended
from tests.support.chunks import chunk, usage
from tests.support.mcp_requests import calling, tool
from tests.support.mcp_servers import McpServer
from tests.support.model_capabilities import describe
from tests.support.sampling import rest_at_night
from tests.support.search_engine import engine, search_server
from tests.support.targets import body_of, several_targets
from tests.support.upstream import Answer, Cut, Gate, Script, ScriptedUpstream, stream
from tests.support.waiting import eventually
from tests.support.web import running_web
from tests.support.workers import MakeWorker

pytestmark = pytest.mark.slow
BRIEF = {"LEASE_SECONDS": "3", "WORKER_DRAIN_SECONDS": "1", "EVENT_LOG_SECONDS": "1"}
QUESTION = "Tell me all about the harbour, please."


def records(api: Api) -> list[UsageRecord]:
    with scope.team(api.caller.team.pk):
        return list(UsageRecord.objects.filter(team=api.caller.team).order_by("occurred_at", "id"))


def kill_during_call(http: httpx2.Client, caller: Caller, script: Script, **body: object) -> Api:
    """Kill a web process during a model call, and end the run that it left."""
    gate = Gate()
    with running_web(**BRIEF) as doomed:
        api = Api(http, url=doomed.url, caller=caller)
        script.then(stream(chunk(content="The harbour has four piers."), gate))
        with api.open("/responses", {"model": script.model, "input": QUESTION, **body}):
            gate.wait_until_reached()
            if body.get("store", True):
                eventually(lambda: "piers" in logged(api))
            doomed.stop(signal.SIGKILL)
    sweep(api)
    return api


def logged(api: Api) -> str:
    with scope.team(api.caller.team.pk):
        return b"".join(batch.frames for batch in EventBatch.objects.filter(team=api.caller.team)).decode()


def sweep(api: Api) -> None:
    def swept() -> bool:
        sweeper.sweep_dead_runs()
        with scope.team(api.caller.team.pk):
            return not Response.objects.filter(ended_at=None).exists()

    eventually(swept)


@pytest.mark.parametrize("stream", rest_at_night([True, False], first=1), ids=["stream", "json"])
def test_the_call_of_a_killed_process_is_estimated_from_the_log(
    http: httpx2.Client, caller: Caller, script: Script, stream: bool
) -> None:
    api = kill_during_call(http, caller, script, stream=stream)
    (record,) = records(api)
    assert (record.outcome, record.estimated, record.turn) == ("interrupted", True, 0)
    assert (record.input_tokens, record.output_tokens) == (10, 7)
    assert record.occurred_at < now()
    with scope.team(caller.team.pk):
        response = Response.objects.get()
        turn = response.turn_set.get()
    assert (response.status, response.input_tokens, response.output_tokens) == ("failed", 10, 7)
    assert (turn.number, turn.state, turn.output_tokens) == (0, "interrupted", 7)


def test_sweeping_twice_writes_one_record(http: httpx2.Client, caller: Caller, script: Script) -> None:
    api = kill_during_call(http, caller, script, stream=True)
    sweeper.sweep_dead_runs()
    assert len(records(api)) == 1


def test_an_unstored_call_is_estimated_from_its_request(http: httpx2.Client, caller: Caller, script: Script) -> None:
    api = kill_during_call(http, caller, script, stream=True, store=False)
    (record,) = records(api)
    assert (record.outcome, record.estimated) == ("interrupted", True)
    assert (record.input_tokens, record.output_tokens) == (10, 0)
    with scope.team(caller.team.pk):
        assert "harbour" not in str(Response.objects.values().get())


@pytest.mark.nightly
def test_a_resumed_run_records_the_call_that_it_repeats(api: Api, script: Script, make_worker: MakeWorker) -> None:
    script.then(stream(chunk(content="The harbour has four piers."), gate := Gate())).say("Hello")
    doomed = make_worker(**BRIEF)
    response_id = api.create(model=script.model, input=QUESTION, background=True)["id"]
    gate.wait_until_reached()
    eventually(lambda: "piers" in logged(api))
    doomed.stop(signal.SIGKILL)
    make_worker(**BRIEF)
    assert ended(api, response_id)["status"] == "completed"
    assert [(one.outcome, one.estimated, one.turn) for one in records(api)] == [
        ("interrupted", True, 0),
        ("stop", False, 0),
    ]


def test_the_lost_call_of_every_killed_process_is_recorded_once(
    api: Api, script: Script, make_worker: MakeWorker
) -> None:
    response_id = ""
    for _ in range(2):
        script.then(stream(chunk(content="The harbour"), gate := Gate()))
        doomed = make_worker(**BRIEF)
        response_id = response_id or api.create(model=script.model, input=QUESTION, background=True)["id"]
        gate.wait_until_reached()
        doomed.stop(signal.SIGKILL)
    script.say("Hello")
    make_worker(**BRIEF)
    assert ended(api, response_id)["status"] == "completed"
    assert [one.outcome for one in records(api)] == ["interrupted", "interrupted", "stop"]
    assert len(script.received) == 3


@pytest.mark.nightly
def test_a_kill_during_a_tool_call_records_no_lost_model_call(
    reaching: Api, script: Script, served: McpServer, make_worker: MakeWorker
) -> None:
    doomed = make_worker(**BRIEF)
    script.then(calling(("box__wait", "{}"))).say("Done.")
    response_id = reaching.create(model=script.model, input="Go.", background=True, tools=[tool(served)])["id"]
    served.wait_for_calls(1)
    doomed.stop(signal.SIGKILL)
    served.opened.set()
    make_worker(**BRIEF)
    assert ended(reaching, response_id)["status"] == "completed"
    assert [one.estimated for one in records(reaching)] == [False, False]


@pytest.mark.nightly
def test_a_resumed_response_contains_the_tokens_of_the_lost_call(
    api: Api, script: Script, make_worker: MakeWorker
) -> None:
    script.then(stream(chunk(content="The harbour has four piers."), gate := Gate())).say("Hello")
    doomed = make_worker(**BRIEF)
    response_id = api.create(model=script.model, input=QUESTION, background=True)["id"]
    gate.wait_until_reached()
    eventually(lambda: "piers" in logged(api))
    doomed.stop(signal.SIGKILL)
    make_worker(**BRIEF)
    shown = ended(api, response_id)["usage"]
    lost, answered = records(api)
    assert shown["input_tokens"] == lost.input_tokens + answered.input_tokens
    assert shown["output_tokens"] == lost.output_tokens + answered.output_tokens


def usage_of(response: Response) -> tuple[int, int]:
    return response.input_tokens, response.output_tokens


def summed(api: Api) -> tuple[int, int]:
    found = records(api)
    return sum(one.input_tokens for one in found), sum(one.output_tokens for one in found)


@pytest.mark.parametrize("answers", [True, False], ids=["after its answer", "during its call"])
def test_a_process_declared_dead_does_not_record_its_call(
    api: Api, script: Script, make_worker: MakeWorker, *, answers: bool
) -> None:
    script.then(stream(chunk(content="The harbour"), gate := Gate(), chunk(finish="stop"), usage()))
    slow = make_worker(**BRIEF)
    response_id = api.create(model=script.model, input=QUESTION, background=True)["id"]
    gate.wait_until_reached()
    with slow.suspended() if answers else nullcontext():
        # The run is loaded in the transaction that takes it over, before the other process can notice.
        with scope.team(api.caller.team.pk):
            row = Response.objects.filter(pk=response_id)
            take(row)
            token = row.get().lease_token
            resumed = resume.load(response_id=response_id, lease_token=token, died=True)
        if answers:
            gate.open()
    slow.stop()
    assert records(api) == []
    settled = resumed.settle_losses()
    assert settled is not None
    with scope.team(api.caller.team.pk):
        assert settled.end(failed(Failure(code="server_error", message="It stopped."))) is None
        response = row.get()
    assert usage_of(response) == summed(api)
    shown = ok(api.get(f"/responses/{response_id}"))
    assert (shown["usage"]["input_tokens"], shown["usage"]["output_tokens"]) == usage_of(response)
    with api.follow(response_id) as live:
        assert live.rest()[-1]["response"]["usage"] == shown["usage"]


def test_a_process_that_lost_a_resumed_run_records_nothing(api: Api, script: Script, make_worker: MakeWorker) -> None:
    script.then(stream(chunk(content="The harbour"), gate := Gate()))
    doomed = make_worker(**BRIEF)
    response_id = api.create(model=script.model, input=QUESTION, background=True)["id"]
    gate.wait_until_reached()
    doomed.stop(signal.SIGKILL)
    with scope.team(api.caller.team.pk):
        row = Response.objects.filter(pk=response_id)
        take(row)
        resumed = resume.load(response_id=response_id, lease_token=row.get().lease_token, died=True)
        take(row)
    assert resumed.settle_losses() is None
    assert records(api) == []
    with scope.team(api.caller.team.pk):
        assert usage_of(row.get()) == (0, 0)


def test_the_call_of_a_requeued_run_is_estimated_by_the_worker_that_resumes_it(
    api: Api, script: Script, make_worker: MakeWorker
) -> None:
    script.then(stream(chunk(content="The harbour"), Gate())).say("Hello")
    make_worker(**BRIEF)
    response_id = api.create(model=script.model, input=QUESTION, background=True)["id"]
    eventually(lambda: script.received)
    request = RequestInfo(request_id="req_test", client_request_id="")
    assert requeue_run(team_id=api.caller.team.pk, actor="test", response_id=response_id, request=request)
    shown = ended(api, response_id)["usage"]
    assert [(one.outcome, one.estimated) for one in records(api)] == [("interrupted", True), ("stop", False)]
    assert (shown["input_tokens"], shown["output_tokens"]) == summed(api)


@pytest.mark.parametrize(("end", "status"), [(cancel_run, "cancelled"), (fail_run, "failed")])
def test_the_usage_of_a_run_ended_by_another_process_is_null_until_recorded(
    api: Api, script: Script, make_worker: MakeWorker, *, end: Callable[..., bool], status: str
) -> None:
    script.then(stream(chunk(content="The harbour"), gate := Gate()))
    # Its lease must not expire while it is suspended.
    worker = make_worker(**BRIEF | {"LEASE_SECONDS": "30"})
    response_id = api.create(model=script.model, input=QUESTION, background=True)["id"]
    gate.wait_until_reached()
    with worker.suspended():
        request = RequestInfo(request_id="req_test", client_request_id="")
        assert end(team_id=api.caller.team.pk, actor="test", response_id=response_id, request=request)
        ended_response = api.retrieve(response_id)
        assert (ended_response["status"], ended_response["usage"]) == (status, None)
    shown = eventually(lambda: api.retrieve(response_id)["usage"])
    assert (shown["input_tokens"], shown["output_tokens"]) == summed(api)
    assert len(records(api)) == 1


def test_the_usage_of_earlier_turns_is_hidden_until_the_last_turn_is_recorded(
    reaching: Api, script: Script, served: McpServer, make_worker: MakeWorker
) -> None:
    script.then(calling(("box__echo", '{"text": "a"}'))).then(stream(chunk(content="The harbour"), gate := Gate()))
    worker = make_worker(**BRIEF | {"LEASE_SECONDS": "30"})
    response_id = reaching.create(model=script.model, input=QUESTION, background=True, tools=[tool(served)])["id"]
    gate.wait_until_reached()
    with worker.suspended():
        assert cancel_run(
            team_id=reaching.caller.team.pk,
            actor="test",
            response_id=response_id,
            request=RequestInfo(request_id="req_test", client_request_id=""),
        )
        assert reaching.retrieve(response_id)["usage"] is None
        assert len(records(reaching)) == 1
    shown = eventually(lambda: reaching.retrieve(response_id)["usage"])
    assert len(records(reaching)) == 2
    assert (shown["input_tokens"], shown["output_tokens"]) == summed(reaching)


def test_the_usage_of_a_cancelled_run_is_recorded_after_its_process_died(
    api: Api, script: Script, make_worker: MakeWorker
) -> None:
    script.then(stream(chunk(content="The harbour"), gate := Gate()))
    doomed = make_worker(**BRIEF)
    response_id = api.create(model=script.model, input=QUESTION, background=True)["id"]
    gate.wait_until_reached()
    doomed.stop(signal.SIGKILL)
    request = RequestInfo(request_id="req_test", client_request_id="")
    assert cancel_run(team_id=api.caller.team.pk, actor="test", response_id=response_id, request=request)

    def recorded() -> Any:
        # The web process does the same as soon as it notices that the worker has died.
        open_calls.record_lost_calls()
        return api.retrieve(response_id)["usage"]

    shown = eventually(recorded)
    assert (shown["input_tokens"], shown["output_tokens"]) == summed(api) != (0, 0)


@pytest.mark.parametrize("streamed", rest_at_night([True, False], first=1))
def test_the_chat_completion_of_a_killed_process_is_estimated_from_its_request(
    http: httpx2.Client, caller: Caller, script: Script, *, streamed: bool
) -> None:
    gate = Gate()
    with running_web(**BRIEF) as doomed:
        api = Api(http, url=doomed.url, caller=caller)
        body = {"model": script.model, "messages": [{"role": "user", "content": QUESTION}], "user": "anna"}
        script.then(stream(gate, chunk(content="The harbour")))
        with ThreadPoolExecutor(1) as pool:
            pool.submit(api.post, "/chat/completions", {**body, "stream": streamed})
            gate.wait_until_reached()
            doomed.stop(signal.SIGKILL)

    def recorded() -> list[UsageRecord]:
        open_calls.record_lost_calls()
        return records(api)

    (record,) = eventually(recorded)
    open_calls.record_lost_calls()
    assert len(records(api)) == 1
    assert (record.endpoint, record.outcome, record.estimated) == ("chat.completions", "interrupted", True)
    assert (record.input_tokens, record.output_tokens, record.end_user) == (10, 0, "anna")


def test_a_budget_counts_the_full_reservation_of_a_lost_call(
    http: httpx2.Client, caller: Caller, script: Script
) -> None:
    describe(script, prices=PriceList.simple(input="1", output="1"))
    services.set_budget(team=caller.team, period="month", amount=Decimal(1))
    for stored in (True, False):
        kill_during_call(http, caller, script, stream=True, store=stored, max_output_tokens=200)
    assert_budget_counts(caller, Decimal("0.0002"), lost=2)


def test_a_budget_counts_the_full_reservation_of_a_lost_chat_completion(
    http: httpx2.Client, caller: Caller, script: Script
) -> None:
    describe(script, prices=PriceList.simple(input="1", output="1"))
    services.set_budget(team=caller.team, period="month", amount=Decimal(1))
    script.then(stream(gate := Gate(), chunk(content="The harbour")))
    with running_web(**BRIEF) as doomed, ThreadPoolExecutor(1) as pool:
        api = Api(http, url=doomed.url, caller=caller)
        body = {"model": script.model, "messages": [{"role": "user", "content": QUESTION}]}
        pool.submit(api.post, "/chat/completions", {**body, "max_completion_tokens": 200})
        gate.wait_until_reached()
        doomed.stop(signal.SIGKILL)

    def recorded() -> bool:
        open_calls.record_lost_calls()
        return bool(records(api))

    eventually(recorded)
    assert_budget_counts(caller, Decimal("0.0002"), lost=1)


@pytest.mark.parametrize("path", ["/responses", "/chat/completions"])
def test_a_budget_counts_each_request_of_a_lost_call_that_several_servers_received(
    http: httpx2.Client, caller: Caller, upstream: ScriptedUpstream, path: str
) -> None:
    services.set_budget(team=caller.team, period="month", amount=Decimal(1))
    limit = {"/responses": "max_output_tokens", "/chat/completions": "max_completion_tokens"}[path]
    gate = Gate()
    with several_targets(upstream) as targets, running_web(**BRIEF) as doomed, ThreadPoolExecutor(1) as pool:
        first, second = targets.two(prices=PriceList.simple(input="1", output="1"), context_window=10_000)
        first.then(Answer(pieces=[b": waiting\n\n", Cut()]))
        second.then(stream(gate, chunk(content="The harbour")))
        api = Api(http, url=doomed.url, caller=caller)
        pool.submit(api.post, path, body_of(path, targets.name, stream=True, **{limit: 200}))
        gate.wait_until_reached()
        doomed.stop(signal.SIGKILL)

    def has_ended() -> bool:
        open_calls.record_lost_calls()
        sweeper.sweep_dead_runs()
        with scope.team(caller.team.pk):
            return not Reservation.objects.exists()

    eventually(has_ended)
    assert sum(record.budget_cost or 0 for record in records(api)) >= 2 * Decimal("0.0002")
    guard.rebuild_sync(caller.team.pk)
    (budget,) = status_sync(directory.principal(caller.secret)).budgets
    assert (budget.spent, budget.reserved) == (sum(record.budget_cost or 0 for record in records(api)), Decimal(0))


def assert_budget_counts(caller: Caller, least: Decimal, *, lost: int) -> None:
    with scope.team(caller.team.pk):
        found = list(UsageRecord.objects.filter(team=caller.team))
        assert not Reservation.objects.exists()
    assert len(found) == lost
    for record in found:
        assert record.cost < least <= record.budget_cost
    guard.rebuild_sync(caller.team.pk)
    (budget,) = status_sync(directory.principal(caller.secret)).budgets
    assert (budget.spent, budget.reserved) == (sum(record.budget_cost for record in found), Decimal(0))


def test_the_row_of_an_open_call_is_deleted_when_it_is_recorded(api: Api, script: Script) -> None:
    script.say("Hello")
    api.post("/chat/completions", {"model": script.model, "messages": [{"role": "user", "content": QUESTION}]})
    assert [record.outcome for record in records(api)] == ["stop"]
    with scope.team(api.caller.team.pk):
        assert not Reservation.objects.exists()


def test_a_call_that_takes_longer_than_its_lease_is_recorded_once(
    http: httpx2.Client, caller: Caller, script: Script
) -> None:
    script.then(stream(gate := Gate(), chunk(content="Hi"), chunk(finish="stop")))
    with running_web(**BRIEF) as web, ThreadPoolExecutor(1) as pool:
        api = Api(http, url=web.url, caller=caller)
        body = {"model": script.model, "messages": [{"role": "user", "content": QUESTION}], "stream": True}
        answer = pool.submit(api.post, "/chat/completions", body)
        gate.wait_until_reached()
        first = open_until(caller)
        eventually(lambda: open_until(caller) > first)
        assert open_calls.record_lost_calls() == 0
        gate.open()
        answer.result()
        assert [record.outcome for record in records(api)] == ["stop"]


def test_a_live_process_does_not_record_a_call_that_another_recorded(
    http: httpx2.Client, caller: Caller, script: Script
) -> None:
    """Its lease is still valid in its own view, as when the others have lost its connection for a moment."""
    script.then(stream(gate := Gate(), chunk(content="Hi"), chunk(finish="stop")))
    with running_web() as web, ThreadPoolExecutor(1) as pool:
        api = Api(http, url=web.url, caller=caller)
        body = {"model": script.model, "messages": [{"role": "user", "content": QUESTION}], "stream": True}
        answer = pool.submit(api.post, "/chat/completions", body)
        gate.wait_until_reached()
        with scope.team(caller.team.pk):
            owner = Reservation.objects.get().lease_owner
        dead_processes.release([str(owner).rpartition(":")[2]])
        gate.open()
        assert answer.result().status_code == 200
    # The process has ended, so it writes nothing more.
    assert [record.outcome for record in records(api)] == ["interrupted"]


def open_until(caller: Caller) -> datetime:
    with scope.team(caller.team.pk):
        found = Reservation.objects.get().lease_until
    assert found is not None
    return found


def test_a_failed_response_shows_the_estimated_usage(
    http: httpx2.Client, caller: Caller, script: Script, api: Api
) -> None:
    kill_during_call(http, caller, script, stream=True)
    (listed,) = ok(api.get("/responses"))["data"]
    assert listed["usage"]["output_tokens"] == 7


@pytest.mark.parametrize("stored", rest_at_night([True, False], first=1), ids=["stored", "unstored"])
def test_a_budget_counts_a_search_lost_with_its_process(
    http: httpx2.Client, caller: Caller, script: Script, *, stored: bool
) -> None:
    tokens = [PriceEntry(dimension=each, amount=Decimal(1), per=1_000_000) for each in ("input", "output")]
    searches = PriceEntry(dimension="tool_call", tool="web_search", amount=Decimal("0.01"), per=1)
    describe(script, prices=PriceList([*tokens, searches]))
    services.set_budget(team=caller.team, period="month", amount=Decimal(1))
    script.then(calling(("web_search", '{"queries": ["cats"]}')))
    with search_server() as served, running_web(**BRIEF, EGRESS_ALLOW="127.0.0.1") as doomed:
        engine(caller.team, served)
        served.opened.clear()
        api = Api(http, url=doomed.url, caller=caller)
        body = {"model": script.model, "input": QUESTION, "tools": [{"type": "web_search"}], "store": stored}
        with api.open("/responses", {**body, "stream": True, "max_output_tokens": 100}):
            eventually(lambda: served.queries)
            doomed.stop(signal.SIGKILL)
        served.opened.set()
    sweep(api)
    (lost,) = [record for record in records(api) if record.endpoint == "web_search"]
    assert (lost.outcome, lost.estimated, lost.cost) == ("interrupted", True, Decimal("0.01"))
    with scope.team(caller.team.pk):
        assert not Reservation.objects.exists()
    guard.rebuild_sync(caller.team.pk)
    (budget,) = status_sync(directory.principal(caller.secret)).budgets
    counted = sum(one.cost if one.budget_cost is None else one.budget_cost for one in records(api))
    assert (budget.spent, budget.reserved) == (counted, Decimal(0))


@pytest.mark.nightly
def test_a_search_that_returned_before_its_process_died_counts_until_it_is_recorded(
    api: Api, script: Script, make_worker: MakeWorker
) -> None:
    tokens = [PriceEntry(dimension=each, amount=Decimal(1), per=1_000_000) for each in ("input", "output")]
    searches = PriceEntry(dimension="tool_call", tool="web_search", amount=Decimal("0.01"), per=1)
    describe(script, prices=PriceList([*tokens, searches]))
    services.set_budget(team=api.caller.team, period="month", amount=Decimal(1))
    script.then(calling(*[("web_search", f'{{"queries": ["{word}"]}}') for word in ("slow", "fast")])).say("Done.")
    with search_server() as served:
        engine(api.caller.team, served)
        served.slow_query = "slow"
        served.opened.clear()
        doomed = make_worker(**BRIEF, EGRESS_ALLOW="127.0.0.1")
        body = {"model": script.model, "input": "Go.", "tools": [{"type": "web_search"}], "max_output_tokens": 100}
        response_id = api.create(**body, background=True)["id"]
        with scope.team(api.caller.team.pk):
            eventually(lambda: ToolCall.objects.filter(response_id=response_id, status="returned").exists())
        doomed.stop(signal.SIGKILL)
        served.opened.set()
        make_worker(**BRIEF, EGRESS_ALLOW="127.0.0.1")
        assert ended(api, response_id)["status"] == "completed"
    found = [record.outcome for record in records(api) if record.endpoint == "web_search"]
    assert sorted(found) == ["completed", "completed", "interrupted"]
    with scope.team(api.caller.team.pk):
        eventually(lambda: not Reservation.objects.exists())
