"""Hosted calls and their results are in the conversation, however the run that made them has ended."""

import signal
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from responses.models import Response, ToolCall
from tenants import scope
from tests.support.api import Api, Caller, ok
from tests.support.chunks import text
from tests.support.conversations import begin, items
from tests.support.hosted_calls import KINDS, HostedKind
from tests.support.mcp_requests import calling, tool
from tests.support.mcp_servers import McpServer
from tests.support.upstream import Gate, Script, refusal, stream
from tests.support.vector_stores import use_demo_embeddings
from tests.support.waiting import eventually
from tests.support.web import running_web

Json = dict[str, Any]
UNKNOWN = "the outcome of this call is unknown"
STORED = pytest.mark.parametrize("stored", [True, False], ids=["stored", "unstored"])


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, reaching: Api) -> Iterator[HostedKind]:
    """Each kind of hosted call."""
    if request.param in {"code", "shell"}:
        request.getfixturevalue("sandbox")
    if request.param == "files":
        use_demo_embeddings(reaching.caller.team, url=request.getfixturevalue("demo_url"))
    with KINDS[request.param](reaching) as made:
        yield made


def request_of(script: Script, conversation: str, *tools: Any, **more: Any) -> Json:
    return {"model": script.model, "input": "Work.", "tools": list(tools), "conversation": conversation, **more}


def statuses(caller: Caller) -> list[str]:
    """Return the statuses of the team's responses that have ended, oldest first."""
    with scope.team(caller.team.pk):
        found = Response.objects.filter(ended_at__isnull=False).order_by("created_at")
        return list(found.values_list("status", flat=True))


def call_statuses(caller: Caller) -> list[str]:
    """Return the statuses of the team's tool calls, oldest first."""
    with scope.team(caller.team.pk):
        return list(ToolCall.objects.order_by("id").values_list("status", flat=True))


def outputs_in_next_turn(api: Api, script: Script, conversation: str) -> list[str]:
    """Continue the conversation, and return the outputs of calls that the model reads."""
    script.say("It is done.")
    api.create(model=script.model, input="And now?", conversation=conversation)
    return [message["content"] for message in script.messages[-1] if message["role"] == "tool"]


def assert_in_history(api: Api, script: Script, conversation: str, kind: HostedKind) -> None:
    """Check that the conversation has the call, and that the model reads its result in the next turn."""
    (call,) = [item for item in items(api, conversation) if item["type"] == kind.item]
    assert call["status"] == "completed"
    (output,) = outputs_in_next_turn(api, script, conversation)
    assert kind.result in output
    texts = [message["content"] for message in script.messages[-1] if message["role"] == "user"]
    assert texts[0] == "Begin."
    assert "Work." in texts


@STORED
@pytest.mark.parametrize("ending", ["failed", "cancelled", "incomplete"])
def test_a_result_is_in_the_conversation_however_the_run_ended(
    reaching: Api, script: Script, kind: HostedKind, ending: str, *, stored: bool
) -> None:
    conversation, gate = begin(reaching, "Begin."), Gate()
    last = {
        "failed": refusal(400, "The upstream is down."),
        "cancelled": stream(gate),
        "incomplete": stream(*text("Half", finish="length")),
    }
    script.call(**kind.call).then(last[ending])
    body = request_of(script, conversation, kind.tool, store=stored)
    with reaching.open("/responses", body):
        script.wait_for_call(1)
        if ending == "cancelled":
            ok(reaching.post(f"/conversations/{conversation}/cancel", {}))
        assert eventually(lambda: statuses(reaching.caller)) == [ending]
    assert_in_history(reaching, script, conversation, kind)


def test_a_result_is_in_the_conversation_of_a_client_that_disconnected(
    reaching: Api, script: Script, kind: HostedKind
) -> None:
    conversation, gate = begin(reaching, "Begin."), Gate()
    script.call(**kind.call).then(stream(gate))
    with reaching.open("/responses", request_of(script, conversation, kind.tool, store=False)):
        gate.wait_until_reached()
    assert eventually(lambda: statuses(reaching.caller)) == ["cancelled"]
    assert_in_history(reaching, script, conversation, kind)


@STORED
@pytest.mark.slow
def test_a_result_is_in_the_conversation_of_a_killed_process(
    reaching: Api, script: Script, kind: HostedKind, http: httpx2.Client, *, stored: bool
) -> None:
    conversation, gate = begin(reaching, "Begin."), Gate()
    script.call(**kind.call).then(stream(gate))
    with running_web(EGRESS_ALLOW="127.0.0.1", LEASE_SECONDS="3") as killed:
        dying = Api(http, url=killed.url, caller=reaching.caller)
        with dying.open("/responses", request_of(script, conversation, kind.tool, store=stored)):
            gate.wait_until_reached()
            killed.stop(signal.SIGKILL)
    assert eventually(lambda: statuses(reaching.caller), seconds=30) == ["failed"]
    assert_in_history(reaching, script, conversation, kind)


@STORED
def test_a_cancelled_call_has_an_unknown_outcome(
    reaching: Api, script: Script, served: McpServer, *, stored: bool
) -> None:
    conversation = begin(reaching, "Begin.")
    script.then(calling(("box__wait", "{}"), ("box__add", '{"a":1}')))
    with reaching.open("/responses", request_of(script, conversation, tool(served), store=stored)):
        served.wait_for_calls(2)
        eventually(lambda: "returned" in call_statuses(reaching.caller))
        ok(reaching.post(f"/conversations/{conversation}/cancel", {}))
        assert eventually(lambda: statuses(reaching.caller)) == ["cancelled"]
    assert call_statuses(reaching.caller) == ["outcome_unknown", "completed"]
    waiting, added = [item for item in items(reaching, conversation) if item["type"] == "mcp_call"]
    assert (waiting["status"], added["status"], added["output"]) == ("incomplete", "completed", "1")
    assert UNKNOWN in waiting["error"]["content"][0]["text"]
    unknown, known = outputs_in_next_turn(reaching, script, conversation)
    assert (UNKNOWN in unknown, known) == (True, "1")


@pytest.mark.slow
@STORED
def test_a_call_of_a_killed_process_has_an_unknown_outcome(
    reaching: Api, script: Script, served: McpServer, http: httpx2.Client, *, stored: bool
) -> None:
    conversation = begin(reaching, "Begin.")
    served.make_unrepeatable("wait")
    script.call(box__wait="{}")
    with running_web(EGRESS_ALLOW="127.0.0.1", LEASE_SECONDS="3") as killed:
        dying = Api(http, url=killed.url, caller=reaching.caller)
        with dying.open("/responses", request_of(script, conversation, tool(served), store=stored)):
            served.wait_for_calls(1)
            killed.stop(signal.SIGKILL)
    assert eventually(lambda: statuses(reaching.caller), seconds=30) == ["failed"]
    assert call_statuses(reaching.caller) == ["outcome_unknown"]
    (output,) = outputs_in_next_turn(reaching, script, conversation)
    assert UNKNOWN in output


def test_a_response_that_failed_can_be_continued_with_its_results(
    reaching: Api, script: Script, kind: HostedKind
) -> None:
    script.call(**kind.call).then(refusal(400, "The upstream is down."))
    reaching.post("/responses", {"model": script.model, "input": "Work.", "tools": [kind.tool]})
    with scope.team(reaching.caller.team.pk):
        failed = Response.objects.get().pk
    assert reaching.retrieve(failed)["status"] == "failed"
    script.say("It is done.")
    reaching.create(model=script.model, input="And now?", previous_response_id=failed)
    assert kind.result in next(message["content"] for message in script.messages[-1] if message["role"] == "tool")


def test_a_run_that_failed_before_its_first_call_leaves_the_conversation_unchanged(
    reaching: Api, script: Script, served: McpServer
) -> None:
    conversation = begin(reaching, "Begin.")
    script.then(refusal(400, "The upstream is down."))
    reaching.post("/responses", request_of(script, conversation, tool(served)))
    assert [item["type"] for item in items(reaching, conversation)] == ["message"]


def test_the_client_need_not_answer_calls_of_a_run_that_failed(
    reaching: Api, script: Script, served: McpServer
) -> None:
    conversation = begin(reaching, "Begin.")
    function = {"type": "function", "name": "ask", "parameters": {"type": "object", "properties": {}}}
    script.then(calling(("ask", "{}"), ("box__wait", "{}")))
    with reaching.open("/responses", request_of(script, conversation, tool(served), function)):
        served.wait_for_calls(1)
        ok(reaching.post(f"/conversations/{conversation}/cancel", {}))
        assert eventually(lambda: statuses(reaching.caller)) == ["cancelled"]
    assert {item["type"] for item in items(reaching, conversation)} >= {"function_call", "mcp_call"}
    (output,) = outputs_in_next_turn(reaching, script, conversation)
    assert UNKNOWN in output
