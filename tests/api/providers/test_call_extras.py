"""Extra fields of tool calls, such as thought signatures, that upstreams expect to get back with the call."""

from typing import Any

import pytest

from tests.support.api import Api
from tests.support.chunks import chunk
from tests.support.upstream import Answer, Script, stream

pytestmark = pytest.mark.usefixtures("only_streams")

LOOK = {"type": "function", "name": "look"}
SIGNED = {"extra_content": {"google": {"thought_signature": "c2lnbmVk"}}}
SEARCH = [{"type": "tool_search"}, {**LOOK, "defer_loading": True}]


def signed_call(name: str = "look", *, late: bool = False, arguments: str = "{}") -> Answer:
    """Return a call with a signature, in its first or in a later delta."""
    call = {"index": 0, "id": "call_1", "function": {"name": name, "arguments": arguments}}
    if not late:
        return stream(chunk(tool_calls=[{**call, **SIGNED}]), chunk(finish="tool_calls"))
    more = {"index": 0, "function": {"arguments": ""}, **SIGNED}
    return stream(chunk(tool_calls=[call]), chunk(tool_calls=[more]), chunk(finish="tool_calls"))


def output(call_id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": "ok"}


@pytest.mark.parametrize("late", [False, True])
def test_call_extras_are_returned_to_the_upstream_in_a_chain(api: Api, script: Script, late: bool) -> None:
    script.then(signed_call(late=late)).say("Done")
    first = api.create(model=script.model, input="Hi", tools=[LOOK])
    api.create(model=script.model, input=[output("call_1")], previous_response_id=first["id"], tools=[LOOK])
    assert script.messages[1][-2]["tool_calls"][0].items() >= SIGNED.items()


def test_call_extras_survive_a_client_managed_history(api: Api, script: Script) -> None:
    script.then(signed_call()).say("Done")
    body = {"model": script.model, "tools": [LOOK], "store": False}
    first = api.create(input="Hi", **body)
    assert [item["type"] for item in first["output"]] == ["reasoning", "function_call"]
    given = [{key: value for key, value in item.items() if key != "id"} for item in first["output"]]
    api.create(input=[{"role": "user", "content": "Hi"}, *given, output("call_1")], **body)
    assert script.messages[1][1]["tool_calls"][0].items() >= SIGNED.items()


def test_call_extras_are_not_readable_by_clients(api: Api, script: Script) -> None:
    events = api.events(model=script.then(signed_call()).model, input="Hi", tools=[LOOK])
    assert "c2lnbmVk" not in str(events)
    assert events[-1]["response"]["output"][0]["summary"] == []


def test_call_extras_of_hosted_tools_are_returned_to_the_upstream(api: Api, script: Script) -> None:
    script.then(signed_call("tool_search", arguments='{"query":"look"}')).say("Done")
    api.create(model=script.model, input="Hi", tools=SEARCH)
    assert script.messages[1][-2]["tool_calls"][0].items() >= SIGNED.items()


def test_calls_without_extras_have_no_reasoning_item(api: Api, script: Script) -> None:
    response = api.create(model=script.call(look="{}").model, input="Hi", tools=[LOOK])
    assert [item["type"] for item in response["output"]] == ["function_call"]
