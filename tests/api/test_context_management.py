"""`context_management`: past a threshold a run makes its own conversation short, and goes on from its notes."""

from typing import Any

import pytest

from conversations.models import Item
from responses.models import Turn
from tenants import scope
from tenants.models import UsageRecord
from tests.support.api import Api, Caller, error, ok
from tests.support.background import ended
from tests.support.chunks import calls, chunk
from tests.support.sockets import open_socket
from tests.support.upstream import Gate, Script, refusal, stream
from tests.support.web import WebProcess

NOTES = "The red car stands in Vienna."
LONG = "so it was " * 600
ASKED = {"role": "user", "content": "Find the red car."}
SAID = {"role": "assistant", "content": LONG}
NEXT = {"role": "user", "content": "And where is it?"}
TALK = [ASKED, SAID, NEXT]
MANAGED = [{"type": "compaction", "compact_threshold": 1000}]


def texts(messages: list[dict[str, Any]]) -> list[str]:
    """What the upstream read, with the introduction of notes cut off."""
    return [str(message["content"]).rpartition("\n\n")[2] for message in messages]


def types(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


def test_a_long_conversation_is_made_short_before_the_answer(api: Api, script: Script) -> None:
    script.say(NOTES).say("In Vienna.")
    response = api.create(model=script.model, input=TALK, context_management=MANAGED)
    assert types(response) == ["compaction", "message"]
    assert "context_management" not in response
    assert NOTES not in str(response)
    assert texts(script.messages[1]) == ["Find the red car.", "And where is it?", NOTES]
    assert response["usage"]["input_tokens"] == 14
    assert api.retrieve(response["id"]) == response


def test_the_notes_stand_nowhere_in_the_clear(api: Api, script: Script) -> None:
    script.say(NOTES).say("There.")
    name = api.create(model=script.model, input=TALK, context_management=MANAGED)["id"]
    with scope.team(api.caller.team.pk):
        assert NOTES not in str(list(Item.objects.values_list("body", flat=True)))
        assert NOTES not in str(list(Turn.objects.filter(response_id=name).values()))
        rows = UsageRecord.objects.filter(object_id=name).order_by("turn").values_list("outcome", "turn")
        assert list(rows) == [("compacted", 0), ("stop", 1)]


def test_a_stream_tells_of_it_while_the_notes_are_written(api: Api, script: Script) -> None:
    gate = Gate()
    script.then(stream(chunk(content=NOTES), gate, chunk(finish="stop"))).say("In Vienna.")
    with api.stream(model=script.model, input=TALK, context_management=MANAGED) as live:
        seen = [live.next()["type"] for _ in range(4)]
        assert seen[2:] == ["response.output_item.added", "response.compaction.compacting"]
        gate.open()
        done = live.next()
        assert (done["type"], done["item"]["encrypted_content"][:3]) == ("response.output_item.done", "s1.")
        assert types(live.rest()[-1]["response"]) == ["compaction", "message"]


def test_the_next_response_starts_at_the_compaction(api: Api, script: Script) -> None:
    script.say(NOTES).say("In Vienna.").say("Sure.")
    body = {"model": script.model, "context_management": MANAGED}
    first = api.create(input=TALK, **body)["id"]
    second = api.create(input="Sure?", previous_response_id=first, **body)
    assert types(second) == ["message"]
    assert texts(script.messages[2]) == ["Find the red car.", "And where is it?", NOTES, "In Vienna.", "Sure?"]


def test_a_client_may_leave_out_what_stands_before_it(api: Api, script: Script) -> None:
    script.say(NOTES).say("In Vienna.").say("Sure.")
    output = api.create(model=script.model, input=TALK, context_management=MANAGED, store=False)["output"]
    api.create(model=script.model, input=[*output, {"role": "user", "content": "Sure?"}], store=False)
    assert texts(script.messages[2]) == ["Find the red car.", "And where is it?", NOTES, "In Vienna.", "Sure?"]


def test_in_a_conversation_it_is_an_item_like_any_other(api: Api, script: Script) -> None:
    script.say(NOTES).say("In Vienna.").say("Sure.")
    made = ok(api.post("/conversations", {"items": [ASKED, SAID]}))["id"]
    body = {"model": script.model, "conversation": made, "context_management": MANAGED}
    assert types(api.create(input="And where is it?", **body)) == ["compaction", "message"]
    api.create(input="Sure?", **body)
    listed = ok(api.get(f"/conversations/{made}/items", order="asc"))["data"]
    assert [item["type"] for item in listed][2:5] == ["message", "compaction", "message"]
    assert texts(script.messages[2]) == ["Find the red car.", "And where is it?", NOTES, "In Vienna.", "Sure?"]


def test_outputs_of_calls_go_with_their_calls(api: Api, script: Script) -> None:
    tools = [{"type": "function", "name": "look"}]
    script.then(stream(*calls(look="{}"))).say(NOTES).say("In Vienna.")
    body = {"model": script.model, "tools": tools, "context_management": MANAGED}
    first = api.create(input="Find the red car.", **body)
    output = {"type": "function_call_output", "call_id": "call_look", "output": LONG}
    second = api.create(input=[output], previous_response_id=first["id"], **body)
    assert types(second) == ["compaction", "message"]
    assert [message["role"] for message in script.messages[1]] == ["user", "assistant", "tool", "user"]
    assert script.bodies[1]["tool_choice"] == "none"
    assert texts(script.messages[2]) == ["Find the red car.", NOTES]


def test_a_websocket_goes_on_from_it(web: WebProcess, caller: Caller, script: Script) -> None:
    script.say(NOTES).say("In Vienna.").say("Sure.")
    body = {"model": script.model, "store": False, "context_management": MANAGED}
    with open_socket(web.url, secret=caller.secret) as socket:
        first = socket.respond(**body, input=TALK)
        assert types(first) == ["compaction", "message"]
        socket.respond(**body, input="Sure?", previous_response_id=first["id"])
    assert texts(script.messages[2])[2:] == [NOTES, "In Vienna.", "Sure?"]


@pytest.mark.usefixtures("worker")
def test_workers_do_it_for_background_responses(api: Api, script: Script) -> None:
    script.say(NOTES).say("In Vienna.")
    queued = api.create(model=script.model, input=TALK, context_management=MANAGED, background=True)
    assert types(ended(api, queued["id"])) == ["compaction", "message"]
    assert texts(script.messages[1])[2:] == [NOTES]


def test_without_notes_the_run_goes_on(api: Api, script: Script) -> None:
    script.then(refusal(503)).say("In Vienna.")
    response = api.create(model=script.model, input=TALK, context_management=MANAGED)
    assert types(response) == ["message"]
    assert texts(script.messages[1]) == [ASKED["content"], LONG, NEXT["content"]]


def test_below_the_threshold_nothing_happens(api: Api, script: Script) -> None:
    script.say("In Vienna.").say("In Vienna.")
    for entry in ({"type": "compaction", "compact_threshold": 2000}, {"type": "compaction", "compact_threshold": None}):
        assert types(api.create(model=script.model, input=TALK, context_management=[entry])) == ["message"]


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
def test_bad_input_is_refused_by_name(api: Api, given: Any, param: str, code: str) -> None:
    body = {"model": "m", "input": "Hi", "context_management": given}
    assert error(api.post("/responses", body)) == (400, param, code)
