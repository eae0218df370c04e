"""Background responses whose worker died during a call: they wait until a person decides what its outcome was."""

import json
import signal
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from core.clock import now
from core.ids import new_id
from responses.models import Decision, Response, ToolCall
from server.tasks import sweep_decisions
from tenants import scope
from tenants.models import AuditEvent
from tests.support.api import Api, Caller, error, ok
from tests.support.background import ended, text_of
from tests.support.chunks import text
from tests.support.conversations import begin, items
from tests.support.decisions import add_decision, stored
from tests.support.hosted_calls import KINDS
from tests.support.mcp_requests import calling, of, tool
from tests.support.mcp_servers import McpServer
from tests.support.upstream import Script, stream
from tests.support.waiting import eventually
from tests.support.webhooks import add_endpoint, deliveries_of
from tests.support.workers import MakeWorker

pytestmark = pytest.mark.slow
Json = dict[str, Any]
UNKNOWN = "the outcome of this call is unknown"


def row(api: Api, response_id: str) -> Response:
    """Return the stored response."""
    with scope.team(api.caller.team.pk):
        return Response.objects.get(pk=response_id)


def calls_of(caller: Caller) -> list[ToolCall]:
    """Return the team's tool calls, oldest first."""
    with scope.team(caller.team.pk):
        return list(ToolCall.objects.order_by("id"))


def decisions_of(caller: Caller) -> list[Decision]:
    """Return the team's decisions, oldest first."""
    with scope.team(caller.team.pk):
        return list(Decision.objects.order_by("asked_at"))


def interrupted(
    api: Api,
    script: Script,
    served: McpServer,
    make_worker: MakeWorker,
    *calls: tuple[str, str],
    is_old: bool = False,
    **request: Any,
) -> Json:
    """Kill a worker during a call of `wait`, start another one, and return the response as it waits.

    With `is_old`, the row of the call has only what the release before effect ids stored.
    """
    served.make_unrepeatable("wait")
    first = make_worker(LEASE_SECONDS="3")
    script.then(calling(("box__wait", "{}"), *calls)).always(stream(*text("Done.")))
    body = {"model": script.model, "input": "Go.", "tools": [tool(served)], "background": True, **request}
    response_id = api.create(**body)["id"]
    served.wait_for_calls(1 + len(calls))
    first.stop(signal.SIGKILL)
    if is_old:
        with scope.team(api.caller.team.pk):
            ToolCall.objects.update(if_ended=None)
    served.opened.set()
    make_worker(LEASE_SECONDS="3")
    eventually(lambda: row(api, response_id).waits_until is not None, seconds=30)
    return api.retrieve(response_id)


def decide(api: Api, response: Json, **answer: Any) -> Json:
    """Make the pending decision of a response, and return the response after its end."""
    (pending,) = response["pending_decisions"]
    ok(api.post(f"/responses/{response['id']}/approvals/{pending['id']}", answer))
    return ended(api, response["id"])


def test_an_interrupted_call_waits_for_a_person(
    reaching: Api, script: Script, served: McpServer, make_worker: MakeWorker
) -> None:
    add_endpoint(reaching.caller, "https://a.example/", "approval.requested", "approval.decided")
    response = interrupted(reaching, script, served, make_worker)
    (call,) = of(response, "mcp_call")
    assert (response["status"], call["status"], call["output"]) == ("in_progress", "in_progress", None)
    waiting = row(reaching, response["id"])
    assert (waiting.lease_owner, waiting.lease_until) == (None, None)
    (pending,) = response["pending_decisions"]
    assert (pending["kind"], pending["item_id"]) == ("unknown_outcome", call["id"])
    assert pending["expires_at"] > now().timestamp()
    listed = StringIO()
    call_command("approvals", "--json", "--team", reaching.caller.team.pk, stdout=listed)
    (line,) = json.loads(listed.getvalue())
    assert (line["id"], line["kind"], line["tool"]) == (pending["id"], "unknown_outcome", "box.wait")
    listing = reaching.get("/responses").json()["data"]
    assert [body.get("pending_decisions") for body in listing] == [[pending]]

    response = decide(reaching, response, outcome="done", result="It is 5.", reason="Seen in the log.")
    (call,) = of(response, "mcp_call")
    assert (call["id"], call["status"], call["output"]) == (pending["item_id"], "completed", "It is 5.")
    assert (text_of(response), "pending_decisions" in response) == (["Done."], False)
    assert [message["content"] for message in script.messages[-1] if message["role"] == "tool"] == ["It is 5."]
    assert served.names() == ["wait"]
    with scope.team(reaching.caller.team.pk):
        (event,) = AuditEvent.objects.filter(action="approval.answered")
    after = {"tool": "box.wait", "response": response["id"], "outcome": "done", "reason": "Seen in the log."}
    assert (event.target, event.after) == (pending["id"], after)
    asked, decided = sorted(deliveries_of(reaching.caller), key=lambda delivery: delivery.event_type, reverse=True)
    assert (asked.event_type, asked.data["kind"]) == ("approval.requested", "unknown_outcome")
    assert (decided.event_type, decided.data["decision"]) == ("approval.decided", "done")


def test_the_model_is_told_that_a_call_was_not_done(
    reaching: Api, script: Script, served: McpServer, make_worker: MakeWorker
) -> None:
    response = interrupted(reaching, script, served, make_worker)
    response = decide(reaching, response, outcome="not_done", reason="The box is empty.")
    (call,) = of(response, "mcp_call")
    assert (response["status"], call["status"]) == ("completed", "failed")
    (read,) = [message["content"] for message in script.messages[-1] if message["role"] == "tool"]
    assert "did not take effect: The box is empty." in read
    assert served.names() == ["wait"]


def test_a_call_that_the_former_release_made_waits_for_a_person(
    reaching: Api, script: Script, served: McpServer, make_worker: MakeWorker
) -> None:
    response = interrupted(reaching, script, served, make_worker, is_old=True)
    assert served.names() == ["wait"]
    response = decide(reaching, response, outcome="done", result="It is 5.")
    assert (response["status"], text_of(response)) == ("completed", ["Done."])


def test_a_call_is_repeated_with_the_same_effect_id(
    reaching: Api, script: Script, served: McpServer, make_worker: MakeWorker
) -> None:
    response = interrupted(reaching, script, served, make_worker)
    (before,) = of(response, "mcp_call")
    response = decide(reaching, response, outcome="repeat")
    (call,) = of(response, "mcp_call")
    assert (response["status"], call["id"], call["status"]) == ("completed", before["id"], "completed")
    assert (served.names(), len({*served.effect_ids})) == (["wait", "wait"], 1)
    assert [made.attempt for made in calls_of(reaching.caller)] == [2]


def test_a_call_that_is_interrupted_again_waits_again(
    reaching: Api, script: Script, served: McpServer, make_worker: MakeWorker
) -> None:
    served.make_unrepeatable("wait")
    first = make_worker(LEASE_SECONDS="3")
    script.call(box__wait="{}").always(stream(*text("Done.")))
    body = {"model": script.model, "input": "Go.", "tools": [tool(served)], "background": True}
    response_id = reaching.create(**body)["id"]
    for number in (1, 2):
        served.wait_for_calls(number)
        first.stop(signal.SIGKILL)
        first = make_worker(LEASE_SECONDS="3")
        eventually(lambda: row(reaching, response_id).waits_until is not None, seconds=30)
        (pending,) = reaching.retrieve(response_id)["pending_decisions"]
        if number == 1:
            ok(reaching.post(f"/responses/{response_id}/approvals/{pending['id']}", {"outcome": "repeat"}))
    response = decide(reaching, reaching.retrieve(response_id), outcome="done", result="It is 5.")
    assert [item["output"] for item in of(response, "mcp_call") if item["status"] == "completed"] == ["It is 5."]
    assert [decision.attempt for decision in decisions_of(reaching.caller)] == [1, 2]
    assert served.names() == ["wait", "wait"]
    served.opened.set()


def test_other_calls_of_the_turn_are_made_first(
    reaching: Api, script: Script, served: McpServer, make_worker: MakeWorker
) -> None:
    response = interrupted(reaching, script, served, make_worker, ("box__add", '{"a":2,"b":3}'))
    eventually(lambda: calls_of(reaching.caller)[1].status == "returned")
    response = decide(reaching, response, outcome="done", result="It is open.")
    assert [item["name"] for item in of(response, "mcp_call")] == ["wait", "add"]
    assert [item["status"] for item in of(response, "mcp_call")] == ["completed", "completed"]
    read = [message["content"] for message in script.messages[-1] if message["role"] == "tool"]
    assert read == ["It is open.", "5"]


def test_a_decision_that_nobody_makes_expires(
    reaching: Api, script: Script, served: McpServer, make_worker: MakeWorker
) -> None:
    conversation = begin(reaching, "Begin.")
    response = interrupted(reaching, script, served, make_worker, conversation=conversation)
    with scope.team(reaching.caller.team.pk):
        Decision.objects.update(expires_at=now() - timedelta(seconds=1))
    sweep_decisions()
    response = ended(reaching, response["id"])
    (call,) = of(response, "mcp_call")
    assert (response["status"], response["error"]["code"], call["status"]) == ("failed", "server_error", "incomplete")
    # The time of the person is not part of any duration.
    (made,) = calls_of(reaching.caller)
    ended_row = row(reaching, response["id"])
    assert ended_row.waited_ms is not None
    assert made.waited_ms is not None
    assert ended_row.ended_at is not None
    assert ended_row.duration_ms is not None
    lasted = round((ended_row.ended_at - ended_row.created_at).total_seconds() * 1000)
    assert abs(lasted - ended_row.duration_ms - ended_row.waited_ms) < 50
    assert [made.status for made in calls_of(reaching.caller)] == ["outcome_unknown"]
    (kept,) = [item for item in items(reaching, conversation) if item["type"] == "mcp_call"]
    assert UNKNOWN in kept["error"]["content"][0]["text"]


def test_a_response_that_waits_can_be_cancelled(
    reaching: Api, script: Script, served: McpServer, make_worker: MakeWorker
) -> None:
    response = interrupted(reaching, script, served, make_worker)
    cancelled = ok(reaching.post(f"/responses/{response['id']}/cancel", {}))
    (call,) = of(cancelled, "mcp_call")
    assert (cancelled["status"], call["id"], call["status"]) == (
        "cancelled",
        of(response, "mcp_call")[0]["id"],
        "incomplete",
    )
    (pending,) = response["pending_decisions"]
    late = reaching.post(f"/responses/{response['id']}/approvals/{pending['id']}", {"outcome": "done"})
    assert error(late) == (400, None, "approval_not_awaited")


@pytest.mark.parametrize(
    ("answer", "code", "param"),
    [
        ({"approve": True}, "unsupported_parameter", "approve"),
        ({"reason": "I do not know."}, "missing_required_parameter", "outcome"),
        ({"outcome": "perhaps"}, "invalid_value", "outcome"),
        ({"outcome": "repeat", "result": "5"}, "invalid_value", "result"),
        ({"outcome": "done", "result": 5}, "invalid_type", "result"),
    ],
)
def test_answers_that_do_not_fit_are_rejected(api: Api, answer: Json, code: str, param: str) -> None:
    decision = add_decision(api.caller, id=new_id("dec"), kind="unknown_outcome")
    answered = api.post(f"/responses/{decision.response_id}/approvals/{decision.pk}", answer)
    assert error(answered) == (400, param, code)
    assert stored(decision).state == "asked"


@pytest.mark.parametrize(
    ("answer", "code", "param"),
    [
        ({"outcome": "done"}, "unsupported_parameter", "outcome"),
        ({"approve": True, "result": "5"}, "unsupported_parameter", "result"),
        ({"reason": "Yes."}, "missing_required_parameter", "approve"),
    ],
)
def test_an_approval_has_no_outcome(api: Api, answer: Json, code: str, param: str) -> None:
    decision = add_decision(api.caller)
    answered = api.post(f"/responses/{decision.response_id}/approvals/{decision.pk}", answer)
    assert error(answered) == (400, param, code)


@pytest.mark.parametrize("name", ["code", "shell"])
def test_the_output_of_an_interrupted_program_can_be_given(
    reaching: Api, script: Script, make_worker: MakeWorker, sandbox: None, name: str
) -> None:
    with KINDS[name](reaching) as kind:
        first = make_worker(LEASE_SECONDS="3")
        program = {"code": "import time; time.sleep(60)"} if name == "code" else {"commands": ["sleep 60"]}
        (function,) = kind.call
        script.call(**{function: json.dumps(program)}).always(stream(*text("Done.")))
        body = {"model": script.model, "input": "Go.", "tools": [kind.tool], "background": True}
        response_id = reaching.create(**body)["id"]
        eventually(lambda: [made.status for made in calls_of(reaching.caller)] == ["in_progress"])
        first.stop(signal.SIGKILL)
        make_worker(LEASE_SECONDS="3")
        eventually(lambda: row(reaching, response_id).waits_until is not None, seconds=30)
        response = reaching.retrieve(response_id)
        assert [item["status"] for item in of(response, kind.item)] == ["in_progress"]
        response = decide(reaching, response, outcome="done", result="42")
    assert (response["status"], of(response, kind.item)[0]["status"]) == ("completed", "completed")
    (read,) = [message["content"] for message in script.messages[-1] if message["role"] == "tool"]
    assert "42" in read
