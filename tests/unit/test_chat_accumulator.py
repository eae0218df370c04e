"""From chunks of chat completions to the completion that they add up to, where upstreams differ from OpenAI's."""

from typing import Any

from responses.chat.accumulator import CompletionAccumulator
from tests.support.chunks import Chunk, chunk, usage


def folded(*chunks: Chunk) -> dict[str, Any]:
    """The whole completion."""
    whole = CompletionAccumulator()
    for one in chunks:
        whole.add(one)
    return whole.completion()


def message(*chunks: Chunk) -> dict[str, Any]:
    """The message of its only choice."""
    (choice,) = folded(*chunks)["choices"]
    said: dict[str, Any] = choice["message"]
    return said


def called(**function: Any) -> Chunk:
    return chunk(tool_calls=[{"index": 0, "id": "call_1", "type": "function", "function": function}])


def test_what_upstreams_add_of_their_own_is_folded_like_the_text() -> None:
    said = message(chunk(reasoning_content="H"), chunk(reasoning_content="m."), chunk(content="Hello"))
    assert (said["reasoning_content"], said["content"]) == ("Hm.", "Hello")


def test_a_call_in_the_old_shape_is_put_together() -> None:
    said = message(chunk(function_call={"name": "look", "arguments": ""}), chunk(function_call={"arguments": "{}"}))
    assert said["function_call"] == {"name": "look", "arguments": "{}"}


def test_what_is_repeated_in_each_chunk_stands_once() -> None:
    (call,) = message(called(name="look", arguments='{"a"'), called(name="look", arguments=":1}"))["tool_calls"]
    assert call == {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}


def test_calls_without_an_index_are_calls_of_their_own() -> None:
    call = {"id": "call_1", "function": {"name": "look", "arguments": "{}"}}
    calls = message(chunk(tool_calls=[call]), chunk(tool_calls=[{**call, "id": "call_2"}]))["tool_calls"]
    assert [(one["id"], one["type"]) for one in calls] == [("call_1", "function"), ("call_2", "function")]


def test_input_of_custom_tools_is_put_together() -> None:
    first = {"index": 0, "id": "call_1", "type": "custom", "custom": {"name": "draw", "input": "a "}}
    pieces = chunk(tool_calls=[first]), chunk(tool_calls=[{"index": 0, "custom": {"input": "cat"}}])
    (call,) = message(*pieces)["tool_calls"]
    assert call == {"id": "call_1", "type": "custom", "custom": {"name": "draw", "input": "a cat"}}


def test_sound_and_its_words_go_on_where_they_left_off() -> None:
    said = message(chunk(audio={"id": "a1", "data": "AA"}), chunk(audio={"data": "BB", "expires_at": 5}))
    assert said["audio"] == {"id": "a1", "data": "AABB", "expires_at": 5}


def test_citations_are_collected() -> None:
    one, two = {"type": "url_citation", "n": 1}, {"type": "url_citation", "n": 2}
    assert message(chunk(annotations=[one]), chunk(annotations=[two]))["annotations"] == [one, two]


def test_the_head_is_what_was_said_of_it_last() -> None:
    whole = folded({**chunk(content="Hi"), "service_tier": "flex", "obfuscation": "x"}, usage())
    assert (whole["service_tier"], whole["usage"]["total_tokens"]) == ("flex", 10)
    assert (whole["object"], "obfuscation" in whole) == ("chat.completion", False)


def test_a_stream_that_gives_no_reason_for_its_end_has_stopped() -> None:
    assert folded(chunk(content="Hi"))["choices"][0]["finish_reason"] == "stop"
    assert folded(chunk(content="Hi", finish="length"), usage())["choices"][0]["finish_reason"] == "length"


def test_pieces_that_are_none_add_nothing() -> None:
    odd = {**chunk(), "choices": [None, {"index": 0, "delta": None, "finish_reason": None}, {"delta": "Hi"}]}
    assert message(odd, chunk(content="Hello"))["content"] == "Hello"
    assert folded({"choices": None})["choices"] == []
