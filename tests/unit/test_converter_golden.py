"""Exact event lists for five basic chat-completions streams.

None of the streams has a finish reason; they end with `[DONE]` and complete nevertheless. Except for
`response.in_progress` and the `done` events of texts, refusals and arguments, the converter of OpenAI's Agents SDK
produces the same events in the same order.
"""

from collections.abc import Sequence
from typing import Any

from tests.support.chunks import Chunk, chunk
from tests.support.runs import play, without_ids
from tests.support.streams import assert_well_formed

Listed = tuple[str, dict[str, Any]]
USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 5,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 6},
    "completion_tokens_details": {"reasoning_tokens": 2},
}
LOGPROBS = "message.output_text.logprobs"


async def listed(*chunks: Chunk, **request: Any) -> list[Listed]:
    """Return the events without numbers and generated ids, and only the changing fields of a response."""
    played = await play(list(chunks), **request)
    assert_well_formed(played.events)
    events = without_ids(played.events)
    for event in events:
        del event["sequence_number"]
        if "response" in event:
            event["response"] = {name: event["response"][name] for name in ("status", "output", "usage")}
    return [(event.pop("type").removeprefix("response."), event) for event in events]


def began() -> list[Listed]:
    response: dict[str, Any] = {"status": "in_progress", "output": [], "usage": None}
    return [("created", {"response": response}), ("in_progress", {"response": response})]


def completed(item: dict[str, Any], *, usage: dict[str, Any] | None = None) -> Listed:
    return "completed", {"response": {"status": "completed", "output": [item], "usage": usage}}


def usage(input_tokens: int, output_tokens: int, *, cached: int = 0, reasoning: int = 0) -> dict[str, Any]:
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": input_tokens + output_tokens,
    }


def message(status: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"id": "msg 1", "type": "message", "status": status, "role": "assistant", "content": list(parts)}


def call(status: str, arguments: str, *, name: str, call_id: str = "call_1") -> dict[str, Any]:
    item = {"id": "fc 1", "type": "function_call", "status": status, "call_id": call_id}
    return {**item, "name": name, "arguments": arguments}


def text(words: str, logprobs: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    return {"type": "output_text", "text": words, "annotations": [], "logprobs": list(logprobs)}


def refusal(words: str) -> dict[str, Any]:
    return {"type": "refusal", "refusal": words}


def item(kind: str, body: dict[str, Any]) -> Listed:
    return f"output_item.{kind}", {"output_index": 0, "item": body}


def inside(kind: str, **fields: Any) -> Listed:
    """Return an event of a part of the message."""
    return kind, {"item_id": "msg 1", "output_index": 0, "content_index": 0, **fields}


def arguments(kind: str, **fields: Any) -> Listed:
    return f"function_call_arguments.{kind}", {"item_id": "fc 1", "output_index": 0, **fields}


async def test_two_text_chunks_with_usage() -> None:
    final = message("completed", text("Hello"))
    assert await listed(chunk(content="He"), {**chunk(content="llo"), "usage": USAGE}) == [
        *began(),
        item("added", message("in_progress")),
        inside("content_part.added", part=text("")),
        inside("output_text.delta", delta="He", logprobs=[]),
        inside("output_text.delta", delta="llo", logprobs=[]),
        inside("output_text.done", text="Hello", logprobs=[]),
        inside("content_part.done", part=text("Hello")),
        item("done", final),
        completed(final, usage=usage(7, 5, cached=6, reasoning=2)),
    ]


async def test_text_with_logprobs() -> None:
    hi = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}
    there = {"token": " there", "logprob": -0.25, "bytes": [32, 116], "top_logprobs": []}
    first, second = chunk(content="Hi"), chunk(content=" there")
    first["choices"][0]["logprobs"] = {"content": [{**hi, "bytes": None}]}
    second["choices"][0]["logprobs"] = {"content": [there]}
    final = message("completed", text("Hi there", [hi, there]))
    assert await listed(first, {**second, "usage": USAGE}, include=[LOGPROBS]) == [
        *began(),
        item("added", message("in_progress")),
        inside("content_part.added", part=text("")),
        inside("output_text.delta", delta="Hi", logprobs=[hi]),
        inside("output_text.delta", delta=" there", logprobs=[there]),
        inside("output_text.done", text="Hi there", logprobs=[hi, there]),
        inside("content_part.done", part=text("Hi there", [hi, there])),
        item("done", final),
        completed(final, usage=usage(7, 5, cached=6, reasoning=2)),
    ]


async def test_a_refusal_in_two_chunks() -> None:
    final = message("completed", refusal("No thanks"))
    assert await listed(chunk(refusal="No"), {**chunk(refusal=" thanks"), "usage": USAGE}) == [
        *began(),
        item("added", message("in_progress")),
        inside("content_part.added", part=refusal("")),
        inside("refusal.delta", delta="No"),
        inside("refusal.delta", delta=" thanks"),
        inside("refusal.done", refusal="No thanks"),
        inside("content_part.done", part=refusal("No thanks")),
        item("done", final),
        completed(final, usage=usage(7, 5, cached=6, reasoning=2)),
    ]


async def test_one_tool_call_in_two_chunks() -> None:
    head = {"index": 0, "id": "call_1", "type": "function"}
    first = chunk(tool_calls=[{**head, "function": {"name": "my_func", "arguments": "arg1"}}])
    second = chunk(tool_calls=[{**head, "function": {"name": None, "arguments": "arg2"}}])
    final = call("completed", "arg1arg2", name="my_func")
    assert await listed(first, {**second, "usage": USAGE}) == [
        *began(),
        item("added", call("in_progress", "", name="my_func")),
        arguments("delta", delta="arg1"),
        arguments("delta", delta="arg2"),
        arguments("done", name="my_func", arguments="arg1arg2"),
        item("done", final),
        completed(final, usage=usage(7, 5, cached=6, reasoning=2)),
    ]


async def test_a_tool_call_with_the_name_first_and_arguments_in_three_chunks() -> None:
    function = {"name": "write_file", "arguments": ""}
    named = chunk(tool_calls=[{"index": 0, "id": "call_1", "type": "function", "function": function}])
    pieces = ['{"path": ', '"a.txt"', "}"]
    rest = [chunk(tool_calls=[{"index": 0, "function": {"arguments": piece}}]) for piece in pieces]
    final = call("completed", '{"path": "a.txt"}', name="write_file")
    assert await listed(named, *rest[:2], {**rest[2], "usage": USAGE}) == [
        *began(),
        item("added", call("in_progress", "", name="write_file")),
        *(arguments("delta", delta=piece) for piece in pieces),
        arguments("done", name="write_file", arguments='{"path": "a.txt"}'),
        item("done", final),
        completed(final, usage=usage(7, 5, cached=6, reasoning=2)),
    ]
