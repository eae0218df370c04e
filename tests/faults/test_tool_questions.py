"""Background responses whose tool asks a question: they wait in the inbox, and the call continues with the answer."""

import json
import signal
from datetime import timedelta
from typing import Any

import pytest

from core.clock import now
from responses.models import Decision, Response
from server.tasks import sweep_decisions
from tenants import scope
from tenants.models import AuditEvent
from tests.support.api import Api, MakeApi, error, ok
from tests.support.background import ended, text_of
from tests.support.conversations import begin
from tests.support.machine_clock import machine_time
from tests.support.mcp_requests import asking, of, tool
from tests.support.mcp_servers import McpServer, form, visit
from tests.support.upstream import Script
from tests.support.waiting import eventually
from tests.support.webhooks import add_endpoint, deliveries_of
from tests.support.workers import MakeWorker, WorkerProcess

pytestmark = pytest.mark.slow
Json = dict[str, Any]
COLOR = {"type": "string", "oneOf": [{"const": "#f00", "title": "Red"}, {"const": "#00f", "title": "Blue"}]}
RED: Json = {"action": "accept", "content": {"color": "#f00"}}


def row(api: Api, response_id: str) -> Response:
    """Return the stored response."""
    with scope.team(api.caller.team.pk):
        return Response.objects.get(pk=response_id)


def order(api: Api, script: Script, served: McpServer, **request: Any) -> str:
    """Queue a response that calls the tool `order`, and return its id."""
    script.call(box__order="{}")
    body = {"model": script.model, "input": "Go.", "background": True, "tools": [tool(served)], **request}
    response_id: str = api.create(**body)["id"]
    return response_id


def asked(api: Api, response_id: str) -> Json:
    """Wait until the response waits, and return its pending decision."""
    eventually(lambda: row(api, response_id).waits_until is not None)
    (pending,) = api.retrieve(response_id)["pending_decisions"]
    found: Json = pending
    return found


def path_of(response_id: str, pending: Json) -> str:
    return f"/responses/{response_id}/approvals/{pending['id']}"


def answers(response: Json) -> list[Json]:
    """Return the answers that the tool has received, from its output."""
    (call,) = of(response, "mcp_call")
    found: list[Json] = json.loads(call["output"])
    return found


def test_a_call_continues_with_the_answers_to_its_questions(
    reaching: Api, script: Script, served: McpServer, make_worker: MakeWorker
) -> None:
    make_worker(concurrency=1)
    served.ask(
        {"color": form("Which color?", required=("color",), color=COLOR)},
        {"paid": visit("Pay.", "https://a.example/1")},
    )
    conversation = begin(reaching, "Begin.")
    response_id = order(reaching, script, served, conversation=conversation)
    script.say("Ordered.")
    pending = asked(reaching, response_id)
    schema = {"type": "object", "properties": {"color": COLOR}, "required": ["color"]}
    assert pending["kind"] == "question"
    assert pending["question"] == {"mode": "form", "message": "Which color?", "requested_schema": schema}
    response = reaching.retrieve(response_id)
    (call,) = of(response, "mcp_call")
    assert (response["status"], call["status"], call["id"]) == ("in_progress", "in_progress", pending["item_id"])
    waiting = row(reaching, response_id)
    assert (waiting.lease_owner, waiting.lease_until, waiting.attempt) == (None, None, 0)
    locked = {"model": script.model, "input": "Hi", "conversation": conversation}
    assert error(reaching.post("/responses", locked))[2] == "conversation_locked"
    began = machine_time()
    assert ok(reaching.post(path_of(response_id, pending), RED))["status"] == "in_progress"
    served.wait_for_calls(2)
    assert machine_time() - began < 2
    eventually(lambda: asked(reaching, response_id)["id"] != pending["id"])
    pending = asked(reaching, response_id)
    assert pending["question"] == {"mode": "url", "message": "Pay.", "url": "https://a.example/1"}
    ok(reaching.post(path_of(response_id, pending), {"action": "accept"}))
    response = ended(reaching, response_id)
    assert (response["status"], text_of(response), "pending_decisions" in response) == (
        "completed",
        ["Ordered."],
        False,
    )
    assert answers(response) == [{"color": RED}, {"paid": {"action": "accept"}}]
    assert (len(served.calls), len({*served.effect_ids})) == (3, 1)
    assert [message["role"] for message in script.messages[-1]][-2:] == ["assistant", "tool"]


def test_answers_are_checked_against_the_schema(
    reaching: Api, script: Script, served: McpServer, worker: WorkerProcess
) -> None:
    served.ask(
        {"color": form("Which color?", required=("color",), color=COLOR, count={"type": "integer", "maximum": 3})}
    )
    response_id = order(reaching, script, served)
    script.say("Ordered.")
    path = path_of(response_id, asked(reaching, response_id))
    for answer, param, code in (
        ({"action": "accept"}, "content.color", "invalid_value"),
        ({"action": "accept", "content": {"color": "red"}}, "content.color", "invalid_value"),
        ({"action": "accept", "content": {"color": "#f00", "count": 4}}, "content.count", "invalid_value"),
        ({"action": "accept", "content": {"color": "#f00", "size": 4}}, "content.size", "invalid_value"),
        ({"action": "accept", "content": ["#f00"]}, "content", "invalid_type"),
        ({"action": "decline", "content": {"color": "#f00"}}, "content", "invalid_value"),
        ({"action": "perhaps"}, "action", "invalid_value"),
        ({"content": {"color": "#f00"}}, "action", "missing_required_parameter"),
        ({"approve": True}, "approve", "unsupported_parameter"),
        ({"action": "accept", "outcome": "done"}, "outcome", "unsupported_parameter"),
    ):
        assert error(reaching.post(path, answer)) == (400, param, code)
    assert row(reaching, response_id).waits_until is not None
    assert len(served.calls) == 1
    ok(reaching.post(path, RED))
    assert answers(ended(reaching, response_id)) == [{"color": RED}]
    assert error(reaching.post(path, RED))[2] == "approval_already_decided"


def test_several_questions_of_one_result_are_answered_together(
    reaching: Api, script: Script, served: McpServer, worker: WorkerProcess
) -> None:
    served.ask({"color": form("Which color?", color=COLOR), "size": form("Which size?", size={"type": "integer"})})
    response_id = order(reaching, script, served)
    script.say("Ordered.")
    pending = asked(reaching, response_id)
    ok(reaching.post(path_of(response_id, pending), RED))
    eventually(lambda: asked(reaching, response_id)["question"]["message"] == "Which size?")
    assert len(served.calls) == 1
    ok(reaching.post(path_of(response_id, asked(reaching, response_id)), {"action": "cancel"}))
    assert answers(ended(reaching, response_id)) == [{"color": RED, "size": {"action": "cancel"}}]
    assert len(served.calls) == 2


def test_the_answer_is_neither_in_the_audit_log_nor_in_webhooks(
    reaching: Api, script: Script, served: McpServer, worker: WorkerProcess
) -> None:
    began = worker.written
    add_endpoint(reaching.caller, "https://a.example/", "approval.requested", "approval.decided")
    served.ask({"name": form("The secret name?", name={"type": "string"})})
    response_id = order(reaching, script, served)
    script.say("Ordered.")
    pending = asked(reaching, response_id)
    ok(reaching.post(path_of(response_id, pending), {"action": "accept", "content": {"name": "Rumpelstiltskin"}}))
    assert "Rumpelstiltskin" in json.dumps(ended(reaching, response_id))
    with scope.team(reaching.caller.team.pk):
        (event,) = AuditEvent.objects.filter(action="approval.answered")
    after = {"tool": "box.order", "response": response_id, "action": "accept", "reason": ""}
    assert (event.target, event.after, event.actor[:4]) == (pending["id"], after, "key:")
    requested, decided = sorted(deliveries_of(reaching.caller), key=lambda sent: sent.event_type, reverse=True)
    assert (requested.event_type, requested.data["kind"]) == ("approval.requested", "question")
    assert (decided.event_type, decided.data["decision"]) == ("approval.decided", "accept")
    texts = json.dumps([requested.data, decided.data]) + worker.output(since=began)
    assert ("secret name" in texts, "Rumpelstiltskin" in texts) == (False, False)


def test_a_tool_is_told_that_its_question_was_declined(
    reaching: Api, script: Script, served: McpServer, worker: WorkerProcess
) -> None:
    served.ask({"color": form("Which color?", required=("color",), color=COLOR)})
    served.checks_capabilities = True
    response_id = order(reaching, script, served)
    script.say("Ordered.")
    ok(reaching.post(path_of(response_id, asked(reaching, response_id)), {"action": "decline"}))
    assert answers(ended(reaching, response_id)) == [{"color": {"action": "decline"}}]


def test_a_question_survives_its_worker(
    reaching: Api, script: Script, served: McpServer, make_worker: MakeWorker
) -> None:
    first = make_worker()
    served.ask({"color": form("Which color?", color=COLOR)}, {"sure": form("Sure?")})
    response_id = order(reaching, script, served)
    script.say("Ordered.")
    pending = asked(reaching, response_id)
    first.stop(signal.SIGKILL)
    ok(reaching.post(path_of(response_id, pending), RED))
    assert len(served.calls) == 1
    second = make_worker()
    eventually(lambda: asked(reaching, response_id)["question"]["message"] == "Sure?")
    second.stop()
    make_worker()
    ok(reaching.post(path_of(response_id, asked(reaching, response_id)), {"action": "accept", "content": {}}))
    response = ended(reaching, response_id)
    assert answers(response) == [{"color": RED}, {"sure": {"action": "accept", "content": {}}}]
    assert (len(served.calls), len({*served.effect_ids})) == (3, 1)
    assert len([item for item in response["output"] if item["type"] == "mcp_call"]) == 1


def test_a_call_that_is_repeated_after_an_unknown_outcome_has_its_answers(
    reaching: Api, script: Script, served: McpServer, make_worker: MakeWorker
) -> None:
    first = make_worker(LEASE_SECONDS="3")
    served.ask({"color": form("Which color?", color=COLOR)})
    served.delivers_late = True
    response_id = order(reaching, script, served)
    script.say("Ordered.")
    ok(reaching.post(path_of(response_id, asked(reaching, response_id)), RED))
    served.wait_for_calls(2)
    first.stop(signal.SIGKILL)
    make_worker(LEASE_SECONDS="3")
    eventually(lambda: row(reaching, response_id).waits_until is not None, seconds=30)
    pending = asked(reaching, response_id)
    assert (pending["kind"], "question" in pending) == ("unknown_outcome", False)
    served.opened.set()
    ok(reaching.post(path_of(response_id, pending), {"outcome": "repeat"}))
    assert answers(ended(reaching, response_id)) == [{"color": RED}]
    assert (len(served.calls), len({*served.effect_ids})) == (3, 1)


def test_an_approved_call_may_ask_a_question(
    reaching: Api, script: Script, served: McpServer, worker: WorkerProcess
) -> None:
    served.ask({"color": form("Which color?", color=COLOR)})
    options = {"wait_for_approval": True}
    response_id = order(reaching, script, served, tools=[asking(served)], background_options=options)
    script.say("Ordered.")
    pending = asked(reaching, response_id)
    assert pending["kind"] == "approval"
    ok(reaching.post(path_of(response_id, pending), {"approve": True}))
    eventually(lambda: asked(reaching, response_id)["kind"] == "question")
    ok(reaching.post(path_of(response_id, asked(reaching, response_id)), RED))
    response = ended(reaching, response_id)
    kinds = ["mcp_list_tools", "mcp_approval_request", "mcp_call", "message"]
    assert [item["type"] for item in response["output"]] == kinds
    assert answers(response) == [{"color": RED}]


def test_a_question_that_nobody_answers_fails_its_response(
    reaching: Api, script: Script, served: McpServer, worker: WorkerProcess
) -> None:
    served.ask({"color": form("Which color?", color=COLOR)})
    response_id = order(reaching, script, served, background_options={"approval_wait_seconds": 3600})
    pending = asked(reaching, response_id)
    assert 3500 < pending["expires_at"] - now().timestamp() < 3700
    with scope.team(reaching.caller.team.pk):
        Decision.objects.update(expires_at=now() - timedelta(seconds=1))
    assert error(reaching.post(path_of(response_id, pending), RED)) == (400, None, "approval_expired")
    sweep_decisions()
    response = ended(reaching, response_id)
    (call,) = of(response, "mcp_call")
    assert (response["status"], response["error"]["code"]) == ("failed", "approval_expired")
    assert response["error"]["message"] == "Nobody has answered the question of a tool in time."
    assert (call["status"], "not answered" in json.dumps(call["error"])) == ("failed", True)


def test_a_response_that_waits_for_an_answer_can_be_cancelled(
    reaching: Api, script: Script, served: McpServer, worker: WorkerProcess
) -> None:
    served.ask({"color": form("Which color?", color=COLOR)})
    response_id = order(reaching, script, served)
    pending = asked(reaching, response_id)
    cancelled = ok(reaching.post(f"/responses/{response_id}/cancel", {}))
    (call,) = of(cancelled, "mcp_call")
    assert (cancelled["status"], call["status"], "pending_decisions" in cancelled) == ("cancelled", "failed", False)
    assert error(reaching.post(path_of(response_id, pending), RED))[2] == "approval_not_awaited"
    script.say("It was not ordered.")
    reaching.create(model=script.model, input="Ordered?", previous_response_id=response_id)
    assert "not answered" in str(script.messages[-1])


def test_questions_of_other_teams_are_unknown(
    reaching: Api, script: Script, served: McpServer, worker: WorkerProcess, make_api: MakeApi
) -> None:
    served.ask({"color": form("Which color?", color=COLOR)})
    response_id = order(reaching, script, served)
    pending = asked(reaching, response_id)
    assert make_api().post(path_of(response_id, pending), RED).status_code == 404
    unknown = {**pending, "id": "dec_unknown"}
    assert reaching.post(path_of(response_id, unknown), RED).status_code == 404
    assert len(served.calls) == 1
