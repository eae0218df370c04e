"""Background responses that wait for approvals: they hold no worker, survive all processes, and go on when decided."""

import signal
from datetime import timedelta
from typing import Any

import pytest

from engine.events.fold import Fold
from responses.models import Decision, Isolation, Response
from server.tasks import sweep_decisions
from tenants import scope
from tenants.models import AuditEvent, Reservation, Team
from tenants.prices import PriceList
from tests.support.api import Api, error, ok
from tests.support.background import ended, text_of
from tests.support.chunks import chunk, text
from tests.support.conversations import begin, items
from tests.support.limits import limit
from tests.support.machine_clock import machine_time
from tests.support.mcp_requests import asking, calling, of, word
from tests.support.mcp_servers import McpServer
from tests.support.model_capabilities import describe
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually
from tests.support.workers import MakeWorker, WorkerProcess

pytestmark = pytest.mark.slow
WAITS = {"wait_for_approval": True}


def row(api: Api, response_id: str) -> Response:
    """Return the stored response."""
    with scope.team(api.caller.team.pk):
        return Response.objects.get(pk=response_id)


def queue(api: Api, script: Script, served: McpServer, **options: Any) -> str:
    """Queue a response that waits for approvals and return its id."""
    body = {"model": script.model, "input": "Go.", "background": True, "tools": [asking(served)]}
    created = api.create(**body, background_options={**WAITS, **options})
    response_id: str = created["id"]
    return response_id


def awaited(api: Api, response_id: str) -> list[dict[str, Any]]:
    """Wait until the response waits, and return its approval requests."""
    eventually(lambda: row(api, response_id).waits_until is not None)
    return of(api.retrieve(response_id), "mcp_approval_request")


def decide(api: Api, response_id: str, request: dict[str, Any], *, approve: bool, **fields: Any) -> dict[str, Any]:
    """Decide an approval request and return the response."""
    path = f"/responses/{response_id}/approvals/{request['id']}"
    return ok(api.post(path, {"approve": approve, **fields}))


def test_an_approved_call_is_made_by_the_same_response(
    reaching: Api, script: Script, served: McpServer, worker: WorkerProcess
) -> None:
    script.call(box__add='{"a":2,"b":3}').say("It is 5.")
    response_id = queue(reaching, script, served)
    (request,) = awaited(reaching, response_id)
    waiting = row(reaching, response_id)
    assert (waiting.status, waiting.lease_owner, waiting.lease_until, waiting.attempt) == ("in_progress", None, None, 0)
    assert reaching.retrieve(response_id)["status"] == "in_progress"
    assert served.calls == []
    began = machine_time()
    assert decide(reaching, response_id, request, approve=True)["status"] == "in_progress"
    served.wait_for_calls(1)
    assert machine_time() - began < 2
    response = ended(reaching, response_id)
    kinds = ["mcp_list_tools", "mcp_approval_request", "mcp_call", "message"]
    assert (response["status"], [item["type"] for item in response["output"]]) == ("completed", kinds)
    assert of(response, "mcp_call")[0]["approval_request_id"] == request["id"]
    assert [line["role"] for line in script.messages[1]] == ["user", "assistant", "tool"]
    assert row(reaching, response_id).attempt == 1


def test_the_setting_of_the_team_applies_unless_the_request_says_otherwise(
    reaching: Api, script: Script, served: McpServer, worker: WorkerProcess
) -> None:
    with scope.team(reaching.caller.team.pk):
        Team.objects.filter(pk=reaching.caller.team.pk).update(wait_for_approval=True)
    for _ in range(3):
        script.call(box__note="{}")
    body = {"model": script.model, "input": "Go.", "tools": [asking(served)]}
    assert reaching.create(**body)["status"] == "completed"
    off = {"wait_for_approval": False}
    other = reaching.create(**body, background=True, background_options=off)["id"]
    assert ended(reaching, other)["status"] == "completed"
    awaited(reaching, reaching.create(**body, background=True)["id"])


def test_a_foreground_response_cannot_wait(reaching: Api, script: Script) -> None:
    body = {"model": script.model, "input": "Go.", "background_options": WAITS}
    param = "background_options.wait_for_approval"
    assert error(reaching.post("/responses", body)) == (400, param, "invalid_value")


def test_the_model_reads_the_reason_of_a_denial(
    reaching: Api, script: Script, served: McpServer, worker: WorkerProcess
) -> None:
    script.call(box__add='{"a":2}').say("Never mind.").say("Still not.")
    response_id = queue(reaching, script, served)
    (request,) = awaited(reaching, response_id)
    decide(reaching, response_id, request, approve=False, reason="Too dear.")
    response = ended(reaching, response_id)
    assert text_of(response) == ["Never mind."]
    assert script.messages[1][-1]["content"] == "The user did not approve this call. The reason: Too dear."
    later = reaching.create(model=script.model, input="Sure?", previous_response_id=response_id)
    assert "Too dear." in str(script.messages[2])
    history = ok(reaching.get(f"/responses/{later['id']}/input_items"))["data"]
    (decision,) = [item for item in history if item["type"] == "mcp_approval_response"]
    assert (decision["approve"], decision["reason"]) == (False, "Too dear.")
    assert served.calls == []


def test_the_decision_is_in_the_history_and_not_in_the_output(
    reaching: Api, script: Script, served: McpServer, worker: WorkerProcess
) -> None:
    conversation = begin(reaching, "Begin.")
    script.call(box__add='{"a":2,"b":3}').say("It is 5.")
    body = {"model": script.model, "input": "Go.", "background": True, "tools": [asking(served)]}
    response_id = reaching.create(**body, background_options=WAITS, conversation=conversation)["id"]
    (request,) = awaited(reaching, response_id)
    decide(reaching, response_id, request, approve=True)
    response = ended(reaching, response_id)
    with reaching.follow(response_id) as live:
        events = live.rest()
    seen = Fold(event for event in events if "output_index" in event)
    kinds = ["mcp_list_tools", "mcp_approval_request", "mcp_call", "message"]
    assert [item["type"] for item in seen.output] == kinds
    for output in (response["output"], events[-1]["response"]["output"]):
        assert [(item["type"], item["id"]) for item in output] == [(item["type"], item["id"]) for item in seen.output]
    talk = [item["type"] for item in items(reaching, conversation)]
    assert talk == ["message", "message", *kinds[:2], "mcp_approval_response", *kinds[2:]]


def test_a_run_goes_on_when_all_of_its_requests_are_decided(
    reaching: Api, script: Script, served: McpServer, worker: WorkerProcess
) -> None:
    script.then(calling(("box__add", '{"a":1}'), ("box__note", "{}"))).say("One of them.")
    response_id = queue(reaching, script, served)
    add, note = awaited(reaching, response_id)
    decide(reaching, response_id, note, approve=False)
    assert row(reaching, response_id).waits_until is not None
    decide(reaching, response_id, add, approve=True)
    assert text_of(ended(reaching, response_id)) == ["One of them."]
    assert served.names() == ["add"]


def test_a_decision_is_made_while_no_process_of_the_worker_runs(
    reaching: Api, script: Script, served: McpServer, make_worker: MakeWorker
) -> None:
    first = make_worker()
    script.call(box__note="{}").say("Noted.")
    response_id = queue(reaching, script, served)
    (request,) = awaited(reaching, response_id)
    first.stop()
    second = make_worker()
    second.stop()
    decide(reaching, response_id, request, approve=True)
    assert served.calls == []
    make_worker()
    assert text_of(ended(reaching, response_id)) == ["Noted."]
    assert (served.names(), row(reaching, response_id).attempt) == (["note"], 1)


def test_a_decision_before_the_run_is_suspended_continues_it(
    reaching: Api, script: Script, served: McpServer, worker: WorkerProcess
) -> None:
    script.then(calling(("box__wait", "{}"), ("box__note", "{}"))).say("Both.")
    tools = [{**asking(served), "require_approval": {"always": {"tool_names": ["note"]}}}]
    body = {"model": script.model, "input": "Go.", "background": True, "tools": tools}
    response_id = reaching.create(**body, background_options=WAITS)["id"]
    served.wait_for_calls(1)
    (request,) = of(reaching.retrieve(response_id), "mcp_approval_request")
    decide(reaching, response_id, request, approve=True)
    served.opened.set()
    assert text_of(ended(reaching, response_id)) == ["Both."]
    assert served.names() == ["wait", "note"]


def test_a_killed_worker_does_not_lose_the_request_of_its_run(
    reaching: Api, script: Script, served: McpServer, make_worker: MakeWorker
) -> None:
    first = make_worker(LEASE_SECONDS="3")
    script.then(calling(("box__wait", "{}"), ("box__note", "{}"))).say("Both.")
    tools = [{**asking(served), "require_approval": {"always": {"tool_names": ["note"]}}}]
    body = {"model": script.model, "input": "Go.", "background": True, "tools": tools}
    response_id = reaching.create(**body, background_options=WAITS)["id"]
    served.wait_for_calls(1)
    first.stop(signal.SIGKILL)
    served.opened.set()
    make_worker(LEASE_SECONDS="3")
    (request,) = awaited(reaching, response_id)
    decide(reaching, response_id, request, approve=True)
    assert text_of(ended(reaching, response_id)) == ["Both."]
    assert served.names() == ["wait", "wait", "note"]


def test_only_workers_that_know_decisions_claim_a_run_that_has_waited(
    reaching: Api, script: Script, served: McpServer, make_worker: MakeWorker
) -> None:
    worker = make_worker()
    script.call(box__note="{}").say("Noted.")
    response_id = queue(reaching, script, served)
    (request,) = awaited(reaching, response_id)
    worker.stop()
    decide(reaching, response_id, request, approve=True)
    # Workers of the former release claim runs with the isolations that they know.
    assert row(reaching, response_id).isolation not in Isolation.values
    make_worker()
    assert text_of(ended(reaching, response_id)) == ["Noted."]
    assert row(reaching, response_id).isolation == Isolation.NONE


def test_waiting_runs_hold_no_slot(reaching: Api, script: Script, served: McpServer, make_worker: MakeWorker) -> None:
    make_worker(concurrency=1)
    for _ in range(20):
        script.call(box__note="{}")
    waiting = [queue(reaching, script, served) for _ in range(20)]
    requests = [awaited(reaching, response_id) for response_id in waiting]
    script.say("I am here.")
    other = reaching.create(model=script.model, input="Hi", background=True)["id"]
    assert text_of(ended(reaching, other)) == ["I am here."]
    for _ in waiting:
        script.say("Noted.")
    for response_id, (request,) in zip(waiting, requests, strict=True):
        decide(reaching, response_id, request, approve=True)
    assert [text_of(ended(reaching, response_id)) for response_id in waiting] == [["Noted."]] * 20
    assert served.names() == ["note"] * 20


def test_an_expired_request_fails_its_response(
    reaching: Api, script: Script, served: McpServer, worker: WorkerProcess
) -> None:
    script.call(box__note="{}")
    conversation = ok(reaching.post("/conversations", {}))["id"]
    body = {"model": script.model, "input": "Go.", "background": True, "tools": [asking(served)]}
    options = {**WAITS, "approval_wait_seconds": 3600}
    response_id = reaching.create(**body, conversation=conversation, background_options=options)["id"]
    (request,) = awaited(reaching, response_id)
    assert error(reaching.post("/responses", {**body, "conversation": conversation}))[2] == "conversation_locked"
    with scope.team(reaching.caller.team.pk):
        decision = Decision.objects.get(pk=request["id"])
        assert decision.expires_at == row(reaching, response_id).waits_until
        assert decision.expires_at is not None
        assert 3500 < (decision.expires_at - decision.asked_at).total_seconds() < 3700
        past = decision.expires_at - timedelta(hours=2)
        Decision.objects.filter(pk=decision.pk).update(expires_at=past)
    sweep_decisions()
    response = reaching.retrieve(response_id)
    assert (response["status"], response["error"]["code"]) == ("failed", "approval_expired")
    path = f"/responses/{response_id}/approvals/{request['id']}"
    assert error(reaching.post(path, {"approve": True})) == (400, None, "approval_expired")
    script.say("Unlocked.")
    after = reaching.create(model=script.model, input="Hi", conversation=conversation)
    assert text_of(after) == ["Unlocked."]
    assert served.calls == []


def test_a_waiting_response_is_cancelled(
    reaching: Api, script: Script, served: McpServer, worker: WorkerProcess
) -> None:
    script.call(box__note="{}")
    response_id = queue(reaching, script, served)
    (request,) = awaited(reaching, response_id)
    assert ok(reaching.post(f"/responses/{response_id}/cancel", {}))["status"] == "cancelled"
    path = f"/responses/{response_id}/approvals/{request['id']}"
    assert error(reaching.post(path, {"approve": True})) == (400, None, "approval_not_awaited")
    with scope.team(reaching.caller.team.pk):
        assert Decision.objects.get(pk=request["id"]).state == "withdrawn"
    assert served.calls == []


def test_a_waiting_response_is_deleted(reaching: Api, script: Script, served: McpServer, worker: WorkerProcess) -> None:
    script.call(box__note="{}")
    response_id = queue(reaching, script, served)
    (request,) = awaited(reaching, response_id)
    ok(reaching.delete(f"/responses/{response_id}"))
    path = f"/responses/{response_id}/approvals/{request['id']}"
    assert error(reaching.post(path, {"approve": True}))[0] == 404


def test_a_follower_receives_the_request_and_later_the_answer(
    reaching: Api, script: Script, served: McpServer, worker: WorkerProcess
) -> None:
    script.call(box__note="{}").say("Noted.")
    tools = [asking(served)]
    with reaching.stream(
        model=script.model, input="Go.", background=True, tools=tools, background_options=WAITS
    ) as live:
        event = live.next()
        response_id = event["response"]["id"]
        while event["type"] != "response.output_item.done" or event["item"]["type"] != "mcp_approval_request":
            event = live.next()
        awaited(reaching, response_id)
        decide(reaching, response_id, event["item"], approve=True)
        rest = live.rest()
    assert (rest[-1]["type"], text_of(rest[-1]["response"])) == ("response.completed", ["Noted."])


def test_a_decision_is_made_once_and_only_by_its_team(
    reaching: Api, script: Script, served: McpServer, worker: WorkerProcess, outsider: Api
) -> None:
    script.call(box__note="{}").say("Noted.")
    response_id = queue(reaching, script, served)
    (request,) = awaited(reaching, response_id)
    path = f"/responses/{response_id}/approvals/{request['id']}"
    foreign = outsider.post(path, {"approve": True})
    unknown = outsider.post(f"/responses/resp_{'0' * 28}/approvals/mcpr_1", {"approve": True})
    assert (foreign.status_code, unknown.status_code) == (404, 404)
    assert (
        foreign.json()["error"]["message"].replace(response_id, f"resp_{'0' * 28}")
        == (unknown.json()["error"]["message"])
    )
    assert error(reaching.post(f"/responses/{response_id}/approvals/mcpr_1", {"approve": True}))[0] == 404
    decide(reaching, response_id, request, approve=True)
    assert error(reaching.post(path, {"approve": False})) == (400, None, "approval_already_decided")
    ended(reaching, response_id)
    with scope.team(reaching.caller.team.pk):
        lines = AuditEvent.objects.filter(target=request["id"])
        assert [(line.action, line.actor) for line in lines] == [("approval.granted", f"key:{reaching.caller.key.pk}")]


def test_an_answer_in_another_request_is_referred_to_the_waiting_response(
    reaching: Api, script: Script, served: McpServer, worker: WorkerProcess
) -> None:
    script.call(box__note="{}").say("Noted.")
    response_id = queue(reaching, script, served)
    (request,) = awaited(reaching, response_id)
    answer = word(request, approve=True)
    chained = {"model": script.model, "input": [answer], "tools": [asking(served)], "previous_response_id": response_id}
    assert error(reaching.post("/responses", chained)) == (400, "previous_response_id", "approval_awaited")
    whole = {"model": script.model, "input": [{"role": "user", "content": "Go."}, request, answer]}
    assert error(reaching.post("/responses", {**whole, "tools": [asking(served)]})) == (
        400,
        "input",
        "approval_awaited",
    )
    decide(reaching, response_id, request, approve=True)
    assert text_of(ended(reaching, response_id)) == ["Noted."]


def test_a_waiting_run_holds_neither_place_nor_budget(
    reaching: Api, script: Script, served: McpServer, worker: WorkerProcess
) -> None:
    limit(reaching.caller, concurrent_runs=1, queued_runs=5, budget="1")
    describe(script, prices=PriceList.simple(input="1", output="1"))
    script.call(box__note="{}").say("Meanwhile.")
    response_id = queue(reaching, script, served)
    (request,) = awaited(reaching, response_id)
    eventually(lambda: reservations(reaching) == [])
    other = reaching.create(model=script.model, input="Hi", background=True)["id"]
    assert text_of(ended(reaching, other)) == ["Meanwhile."]
    gate = Gate()
    script.then(stream(chunk(content="No"), gate, *text("ted.")))
    decide(reaching, response_id, request, approve=True)
    gate.wait_until_reached()
    assert sum(reservation.amount for reservation in reservations(reaching)) > 0
    assert [reservation.is_run for reservation in reservations(reaching)].count(True) == 1
    gate.open()
    assert text_of(ended(reaching, response_id)) == ["Noted."]
    eventually(lambda: reservations(reaching) == [])


def reservations(api: Api) -> list[Reservation]:
    """Return the reservations of the team."""
    with scope.team(api.caller.team.pk):
        return list(Reservation.objects.filter(team=api.caller.team))
