"""Accumulation of chunks into a chat completion, where upstreams differ from OpenAI."""

from typing import Any

from gateway.chat.chunks import CompletionAccumulator
from tests.support.chunks import Chunk, chunk, usage


def folded(*chunks: Chunk) -> dict[str, Any]:
    """Return the accumulated completion."""
    whole = CompletionAccumulator()
    for one in chunks:
        whole.add(one)
    return whole.completion()


def message(*chunks: Chunk) -> dict[str, Any]:
    """Return the message of its only choice."""
    (choice,) = folded(*chunks)["choices"]
    folded_message: dict[str, Any] = choice["message"]
    return folded_message


def called(**function: Any) -> Chunk:
    return chunk(tool_calls=[{"index": 0, "id": "call_1", "type": "function", "function": function}])


def test_unknown_fields_of_upstreams_are_accumulated_like_text() -> None:
    folded_message = message(chunk(reasoning_content="H"), chunk(reasoning_content="m."), chunk(content="Hello"))
    assert (folded_message["reasoning_content"], folded_message["content"]) == ("Hm.", "Hello")


def test_a_legacy_function_call_is_accumulated() -> None:
    folded_message = message(
        chunk(function_call={"name": "look", "arguments": ""}), chunk(function_call={"arguments": "{}"})
    )
    assert folded_message["function_call"] == {"name": "look", "arguments": "{}"}


def test_values_repeated_in_each_chunk_are_kept_once() -> None:
    (call,) = message(called(name="look", arguments='{"a"'), called(name="look", arguments=":1}"))["tool_calls"]
    assert call == {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}


def test_calls_without_an_index_are_separate() -> None:
    call = {"id": "call_1", "function": {"name": "look", "arguments": "{}"}}
    calls = message(chunk(tool_calls=[call]), chunk(tool_calls=[{**call, "id": "call_2"}]))["tool_calls"]
    assert [(one["id"], one["type"]) for one in calls] == [("call_1", "function"), ("call_2", "function")]


def test_input_of_custom_tools_is_accumulated() -> None:
    first = {"index": 0, "id": "call_1", "type": "custom", "custom": {"name": "draw", "input": "a "}}
    pieces = chunk(tool_calls=[first]), chunk(tool_calls=[{"index": 0, "custom": {"input": "cat"}}])
    (call,) = message(*pieces)["tool_calls"]
    assert call == {"id": "call_1", "type": "custom", "custom": {"name": "draw", "input": "a cat"}}


def test_audio_and_its_transcript_are_concatenated() -> None:
    folded_message = message(chunk(audio={"id": "a1", "data": "AA"}), chunk(audio={"data": "BB", "expires_at": 5}))
    assert folded_message["audio"] == {"id": "a1", "data": "AABB", "expires_at": 5}


def test_citations_are_collected() -> None:
    one, two = {"type": "url_citation", "n": 1}, {"type": "url_citation", "n": 2}
    assert message(chunk(annotations=[one]), chunk(annotations=[two]))["annotations"] == [one, two]


def test_the_last_value_of_each_top_level_field_is_kept() -> None:
    whole = folded({**chunk(content="Hi"), "service_tier": "flex", "obfuscation": "x"}, usage())
    assert (whole["service_tier"], whole["usage"]["total_tokens"]) == ("flex", 10)
    assert (whole["object"], "obfuscation" in whole) == ("chat.completion", False)


def test_a_stream_without_a_finish_reason_ends_with_stop() -> None:
    assert folded(chunk(content="Hi"))["choices"][0]["finish_reason"] == "stop"
    assert folded(chunk(content="Hi", finish="length"), usage())["choices"][0]["finish_reason"] == "length"


def test_empty_deltas_add_nothing() -> None:
    odd = {**chunk(), "choices": [None, {"index": 0, "delta": None, "finish_reason": None}, {"delta": "Hi"}]}
    assert message(odd, chunk(content="Hello"))["content"] == "Hello"
    assert folded({"choices": None})["choices"] == []
