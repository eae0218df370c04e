"""`context_management`: beyond a threshold a run compacts its own context and continues with the summary."""

from typing import Any

import pytest

from conversations.models import Item
from responses.models import Turn
from tenants import scope
from tenants.models import UsageRecord
from tests.support.api import Api, Caller, error, ok
from tests.support.background import ended
from tests.support.chunks import calls, chunk
from tests.support.upstream import Gate, Script, refusal, stream
from tests.support.web import WebProcess
from tests.support.websocket_client import open_socket

SUMMARY = "The red car is in Vienna."
LONG = "so it was " * 600
QUESTION = {"role": "user", "content": "Find the red car."}
ASSISTANT = {"role": "assistant", "content": LONG}
NEXT = {"role": "user", "content": "And where is it?"}
ITEMS = [QUESTION, ASSISTANT, NEXT]
MANAGED = [{"type": "compaction", "compact_threshold": 1000}]


def texts(messages: list[dict[str, Any]]) -> list[str]:
    """Return the texts that the upstream received, without the introduction of the summary."""
    return [str(message["content"]).rpartition("\n\n")[2] for message in messages]


def types(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


def test_a_long_context_is_compacted_before_the_answer(api: Api, script: Script) -> None:
    script.say(SUMMARY).say("In Vienna.")
    response = api.create(model=script.model, input=ITEMS, context_management=MANAGED)
    assert types(response) == ["compaction", "message"]
    assert "context_management" not in response
    assert SUMMARY not in str(response)
    assert texts(script.messages[1]) == ["Find the red car.", "And where is it?", SUMMARY]
    assert response["usage"]["input_tokens"] == 14
    assert api.retrieve(response["id"]) == response


def test_the_summary_is_stored_in_encrypted_form_only(api: Api, script: Script) -> None:
    script.say(SUMMARY).say("There.")
    name = api.create(model=script.model, input=ITEMS, context_management=MANAGED)["id"]
    with scope.team(api.caller.team.pk):
        assert SUMMARY not in str(list(Item.objects.values_list("body", flat=True)))
        assert SUMMARY not in str(list(Turn.objects.filter(response_id=name).values()))
        rows = UsageRecord.objects.filter(object_id=name).order_by("turn").values_list("outcome", "turn")
        assert list(rows) == [("compacted", 0), ("stop", 1)]


def test_a_stream_reports_the_compaction_while_it_is_in_progress(api: Api, script: Script) -> None:
    gate = Gate()
    script.then(stream(chunk(content=SUMMARY), gate, chunk(finish="stop"))).say("In Vienna.")
    with api.stream(model=script.model, input=ITEMS, context_management=MANAGED) as live:
        seen = [live.next()["type"] for _ in range(4)]
        assert seen[2:] == ["response.output_item.added", "response.compaction.compacting"]
        gate.open()
        done = live.next()
        assert (done["type"], done["item"]["encrypted_content"][:3]) == ("response.output_item.done", "s1.")
        assert types(live.rest()[-1]["response"]) == ["compaction", "message"]


def test_the_next_response_starts_at_the_compaction(api: Api, script: Script) -> None:
    script.say(SUMMARY).say("In Vienna.").say("Sure.")
    body = {"model": script.model, "context_management": MANAGED}
    first = api.create(input=ITEMS, **body)["id"]
    second = api.create(input="Sure?", previous_response_id=first, **body)
    assert types(second) == ["message"]
    assert texts(script.messages[2]) == ["Find the red car.", "And where is it?", SUMMARY, "In Vienna.", "Sure?"]


def test_a_client_may_omit_the_items_before_the_compaction(api: Api, script: Script) -> None:
    script.say(SUMMARY).say("In Vienna.").say("Sure.")
    output = api.create(model=script.model, input=ITEMS, context_management=MANAGED, store=False)["output"]
    api.create(model=script.model, input=[*output, {"role": "user", "content": "Sure?"}], store=False)
    assert texts(script.messages[2]) == ["Find the red car.", "And where is it?", SUMMARY, "In Vienna.", "Sure?"]


def test_a_compaction_is_an_item_of_the_conversation(api: Api, script: Script) -> None:
    script.say(SUMMARY).say("In Vienna.").say("Sure.")
    created = ok(api.post("/conversations", {"items": [QUESTION, ASSISTANT]}))["id"]
    body = {"model": script.model, "conversation": created, "context_management": MANAGED}
    assert types(api.create(input="And where is it?", **body)) == ["compaction", "message"]
    api.create(input="Sure?", **body)
    listed = ok(api.get(f"/conversations/{created}/items", order="asc"))["data"]
    assert [item["type"] for item in listed][2:5] == ["message", "compaction", "message"]
    assert texts(script.messages[2]) == ["Find the red car.", "And where is it?", SUMMARY, "In Vienna.", "Sure?"]


def test_calls_are_compacted_together_with_their_outputs(api: Api, script: Script) -> None:
    tools = [{"type": "function", "name": "look"}]
    script.then(stream(*calls(look="{}"))).say(SUMMARY).say("In Vienna.")
    body = {"model": script.model, "tools": tools, "context_management": MANAGED}
    first = api.create(input="Find the red car.", **body)
    output = {"type": "function_call_output", "call_id": "call_look", "output": LONG}
    second = api.create(input=[output], previous_response_id=first["id"], **body)
    assert types(second) == ["compaction", "message"]
    assert [message["role"] for message in script.messages[1]] == ["user", "assistant", "tool", "user"]
    assert script.bodies[1]["tool_choice"] == "none"
    assert texts(script.messages[2]) == ["Find the red car.", SUMMARY]


def test_a_websocket_continues_from_the_compaction(web: WebProcess, caller: Caller, script: Script) -> None:
    script.say(SUMMARY).say("In Vienna.").say("Sure.")
    body = {"model": script.model, "store": False, "context_management": MANAGED}
    with open_socket(web.url, secret=caller.secret) as socket:
        first = socket.respond(**body, input=ITEMS)
        assert types(first) == ["compaction", "message"]
        socket.respond(**body, input="Sure?", previous_response_id=first["id"])
    assert texts(script.messages[2])[2:] == [SUMMARY, "In Vienna.", "Sure?"]


@pytest.mark.usefixtures("worker")
def test_workers_compact_background_responses(api: Api, script: Script) -> None:
    script.say(SUMMARY).say("In Vienna.")
    queued = api.create(model=script.model, input=ITEMS, context_management=MANAGED, background=True)
    assert types(ended(api, queued["id"])) == ["compaction", "message"]
    assert texts(script.messages[1])[2:] == [SUMMARY]


def test_a_run_continues_if_its_compaction_fails(api: Api, script: Script) -> None:
    script.then(refusal(503)).say("In Vienna.")
    response = api.create(model=script.model, input=ITEMS, context_management=MANAGED)
    assert types(response) == ["message"]
    assert texts(script.messages[1]) == [QUESTION["content"], LONG, NEXT["content"]]


def test_a_context_below_the_threshold_is_not_compacted(api: Api, script: Script) -> None:
    script.say("In Vienna.").say("In Vienna.")
    for entry in ({"type": "compaction", "compact_threshold": 2000}, {"type": "compaction", "compact_threshold": None}):
        assert types(api.create(model=script.model, input=ITEMS, context_management=[entry])) == ["message"]


@pytest.mark.parametrize(
    ("given", "param", "code"),
    [
        ([{"type": "forgetting"}], "context_management[0].type", "invalid_value"),
        ([{"compact_threshold": 5000}], "context_management[0].type", "missing_required_parameter"),
        (
            [{"type": "compaction", "compact_threshold": 999}],
            "context_management[0].compact_threshold",
            "integer_below_min_value",
        ),
        (
            [{"type": "compaction", "compact_threshold": "many"}],
            "context_management[0].compact_threshold",
            "invalid_type",
        ),
        ([*MANAGED, *MANAGED], "context_management", "array_above_max_length"),
        ({"type": "compaction"}, "context_management", "invalid_type"),
    ],
)
def test_invalid_entries_are_rejected_with_param_and_code(api: Api, given: Any, param: str, code: str) -> None:
    body = {"model": "m", "input": "Hi", "context_management": given}
    assert error(api.post("/responses", body)) == (400, param, code)
