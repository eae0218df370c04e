"""Several function calls in the arguments of one call, as some servers send them, are split into separate calls."""

from typing import Any

import pytest

from tests.support.api import Api
from tests.support.chunks import chunk, usage
from tests.support.mcp_requests import of, tool
from tests.support.mcp_servers import McpServer
from tests.support.upstream import Answer, Script, stream, whole

LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
FIRST, SECOND = '{"at": "}{"}', '{"at": {"x": 2}}'


def delta(arguments: str, **head: Any) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": head.pop("name")} if "name" in head else {})
    return chunk(tool_calls=[{"index": 0, "function": function, **head}])


def pieces(name: str, *arguments: str) -> Answer:
    """Return a streamed call whose arguments come in these pieces."""
    first, *rest = arguments
    opening = delta(first, id="call_1", type="function", name=name)
    return stream(opening, *map(delta, rest), chunk(finish="tool_calls"), usage())


def document(name: str, arguments: str) -> Answer:
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
    choice = {"index": 0, "message": {"role": "assistant", "content": None, "tool_calls": [call]}}
    return whole({"object": "chat.completion", "choices": [{**choice, "finish_reason": "tool_calls"}]})


def made(response: dict[str, Any]) -> list[tuple[str, str, str]]:
    calls = of(response, "function_call")
    assert len({call["call_id"] for call in calls}) == len(calls)
    return [(call["name"], call["arguments"], call["status"]) for call in calls]


BOTH = [("look", FIRST, "completed"), ("look", SECOND, "completed")]


@pytest.mark.parametrize("border", ["", " ", "\n"])
def test_two_calls_glued_in_a_document_are_split(api: Api, script: Script, border: str) -> None:
    script.then(document("look", FIRST + border + SECOND))
    assert [call[:2] for call in made(api.create(model=script.model, input="Hi", tools=[LOOK]))] == [
        ("look", FIRST + border),
        ("look", SECOND),
    ]


@pytest.mark.parametrize("at", range(1, len(FIRST + SECOND)))
def test_glued_calls_are_split_at_any_chunk_boundary(api: Api, script: Script, at: int) -> None:
    text = FIRST + SECOND
    script.then(pieces("look", text[:at], text[at:]))
    assert made(api.events(model=script.model, input="Hi", tools=[LOOK])[-1]["response"]) == BOTH


def test_glued_calls_sent_letter_by_letter_are_split(api: Api, script: Script) -> None:
    script.then(pieces("look", *(FIRST + SECOND)))
    assert made(api.events(model=script.model, input="Hi", tools=[LOOK])[-1]["response"]) == BOTH


def test_both_glued_calls_of_a_hosted_tool_run(reaching: Api, script: Script, served: McpServer) -> None:
    script.then(document("box__add", '{"a":1,"b":1}{"a":2,"b":2}')).say("2 and 4.")
    response = reaching.create(model=script.model, input="Sums?", tools=[tool(served)])
    assert [call["output"] for call in of(response, "mcp_call")] == ["2", "4"]


def test_both_glued_calls_are_in_the_history(api: Api, script: Script) -> None:
    script.then(document("look", FIRST + SECOND)).say("Done.")
    first = api.create(model=script.model, input="Hi", tools=[LOOK])
    outputs = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": "A cat."}
        for call in of(first, "function_call")
    ]
    api.create(model=script.model, input=outputs, previous_response_id=first["id"])
    (calls,) = [message["tool_calls"] for message in script.messages[1] if message.get("tool_calls")]
    assert [call["function"]["arguments"] for call in calls] == [FIRST, SECOND]


def test_only_the_first_glued_call_is_kept_without_parallel_calls(api: Api, script: Script) -> None:
    script.then(pieces("look", *(FIRST + SECOND)))
    response = api.events(model=script.model, input="Hi", tools=[LOOK], parallel_tool_calls=False)[-1]["response"]
    assert made(response) == BOTH[:1]


@pytest.mark.parametrize("arguments", [["{}" + SECOND], ["{}", SECOND], ["{}", *SECOND]], ids=["one", "two", "letters"])
def test_an_empty_object_before_the_arguments_is_not_a_call(api: Api, script: Script, arguments: list[str]) -> None:
    script.then(pieces("look", *arguments))
    assert made(api.events(model=script.model, input="Hi", tools=[LOOK])[-1]["response"]) == BOTH[1:]


def test_an_empty_object_alone_is_a_call(api: Api, script: Script) -> None:
    script.then(pieces("look", "{}"))
    assert made(api.events(model=script.model, input="Hi", tools=[LOOK])[-1]["response"]) == [
        ("look", "{}", "completed")
    ]


def test_a_partial_second_call_is_not_made(reaching: Api, script: Script, served: McpServer) -> None:
    script.then(stream(delta('{"a":1,"b":1}{"a":', id="call_1", type="function", name="box__add"), done=False))
    response = reaching.events(model=script.model, input="Sums?", tools=[tool(served)])[-1]["response"]
    assert response["status"] == "failed"
    assert served.calls == []
