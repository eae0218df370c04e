"""Content of chat completions in unusual forms is read as text or reasoning of the right choice."""

import copy
from collections.abc import Iterable
from typing import Any

import pytest

from engine.converter.chat import ChatConverter
from engine.turn import Sampling
from gateway.chat.chunks import CompletionAccumulator
from tests.support.chunks import Chunk, calls, chunk
from tests.support.runs import Played, on_the_wire, play
from tests.support.streams import assert_stream_equals_stored

STOP = chunk(finish="stop")


def shown(items: Iterable[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return type and text of each item."""
    return [
        (item["type"], "".join(part.get("text") or part.get("refusal") or "" for part in item.get("content") or ()))
        for item in items
    ]


async def streamed(*pieces: Chunk) -> Played:
    played = await play(list(pieces))
    assert_stream_equals_stored(copy.deepcopy(played.events), played.end.response)
    return played


def whole(message: Any, *, finish: str | None = "stop", **choice: Any) -> ChatConverter:
    """Return the converter of an answer that was not streamed."""
    converter = ChatConverter(first_output_index=0)
    choice = {"index": 0, "message": message, "finish_reason": finish, **choice}
    on_the_wire([*converter.whole({"choices": [choice]}), *converter.end()])
    return converter


THINKING: dict[str, Any] = {
    "parts in a part": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}],
    "several parts in a part": [{"type": "thinking", "thinking": [{"type": "text", "text": t} for t in ("H", "m.")]}],
    "text in a part": [{"type": "thinking", "thinking": "Hm."}],
    "a signature": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}],
    "a part of reasoning": [{"type": "reasoning", "text": "Hm."}],
    "reasoning under its name": [{"type": "reasoning", "reasoning": "Hm."}],
    "reasoning as content": [{"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}],
    "a summary": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}],
}
FIELDS: dict[str, Any] = {
    "a list of texts": {"reasoning_content": ["H", "m."]},
    "a list of parts": {"reasoning_content": [{"type": "text", "text": "Hm."}]},
    "an object": {"reasoning": {"content": "Hm."}},
    "an object with a summary": {"reasoning": {"effort": "high", "summary": "Hm."}},
    "a list of thinking": {"reasoning": [{"type": "thinking", "thinking": "Hm."}]},
    "thinking": {"thinking": "Hm."},
    "details as an object": {"reasoning_details": {"type": "reasoning.text", "text": "Hm."}},
    "details with what is none": {"reasoning_details": [None, "x", {"type": "reasoning.text", "text": "Hm."}]},
    "null beside it": {"reasoning_content": None, "reasoning": "Hm."},
}
ANSWER = [("reasoning", "Hm."), ("message", "84")]


@pytest.mark.parametrize("form", THINKING)
async def test_thinking_in_the_content_is_a_reasoning_item(form: str) -> None:
    content = [*THINKING[form], {"type": "text", "text": "84"}]
    assert shown(whole({"content": content}).result().items) == ANSWER
    assert shown((await streamed(chunk(content=THINKING[form]), chunk(content="84"), STOP)).output) == ANSWER


@pytest.mark.parametrize("form", FIELDS)
async def test_reasoning_in_any_form_is_a_reasoning_item(form: str) -> None:
    assert shown(whole({**FIELDS[form], "content": "84"}).result().items) == ANSWER
    assert shown((await streamed(chunk(**FIELDS[form]), chunk(content="84"), STOP)).output) == ANSWER


async def test_text_and_thinking_alternate_in_their_order() -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    content = [{"type": "text", "text": "8"}, thought, {"type": "text", "text": "4"}]
    expected = [("message", "8"), ("reasoning", "Hm."), ("message", "4")]
    assert shown(whole({"content": content}).result().items) == expected
    assert shown((await streamed(*(chunk(content=[part]) for part in content), STOP)).output) == expected


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"a": 1}, '{"a":1}'),
        ([{"a": 1}], '[{"a":1}]'),
        ([1, 2], "[1,2]"),
        (84, "84"),
        ({"type": "text", "text": "84"}, "84"),
        ({"type": "person", "text": "84"}, '{"type":"person","text":"84"}'),
        (["8", "4"], "84"),
        ([{"type": "text", "text": {"value": "84"}}], "84"),
        ([{"type": "output_text", "text": "84"}, {"type": "reference", "reference_ids": [1]}], "84"),
        ([{"text": "84"}, None], "84"),
    ],
)
async def test_content_other_than_text_becomes_text(content: Any, text: str) -> None:
    assert shown(whole({"content": content}).result().items) == [("message", text)]
    assert shown((await streamed(chunk(content=content), STOP)).output) == [("message", text)]


async def test_a_refusal_in_the_content_is_a_refusal() -> None:
    (item,) = whole({"content": [{"type": "refusal", "refusal": "No."}]}).result().items
    assert item["content"] == [{"type": "refusal", "refusal": "No."}]


@pytest.mark.parametrize("answer", [{"choices": ["x"]}, {"choices": [{"index": 0}]}, {"choices": {"0": {}}}])
def test_a_document_without_a_message_fails(answer: Any) -> None:
    converter = ChatConverter(first_output_index=0)
    converter.whole(answer)
    converter.end()
    assert converter.result().failure is not None


@pytest.mark.parametrize(
    "empty",
    [
        {"function_call": {}},
        {"function_call": {"name": "", "arguments": ""}},
        {"function_call": {"name": None, "arguments": None}},
        {"tool_calls": [{}]},
        {"tool_calls": [None]},
        {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": None}]},
        {"tool_calls": [{"function": {"name": None, "arguments": "{}"}}]},
        {"tool_calls": {}},
    ],
)
async def test_an_empty_call_beside_a_text_is_ignored(empty: dict[str, Any]) -> None:
    for converter in (whole({"content": "84", **empty}), whole({**empty, "content": "84"}, finish=None)):
        assert (shown(converter.result().items), converter.result().failure) == ([("message", "84")], None)
    for pieces in ([chunk(content="84", **empty)], [chunk(**empty), chunk(content="84")]):
        played = await streamed(*pieces, STOP)
        assert (shown(played.output), played.end.ending.status) == ([("message", "84")], "completed")


async def test_an_empty_call_does_not_delay_the_text_after_it() -> None:
    converter = ChatConverter(first_output_index=0)
    converter.feed([chunk(tool_calls=[{"index": 0, "id": "call_1", "function": {}}])])
    assert converter.feed([chunk(content="84")])


# -- choices -----------------------------------------------------------------------------------------------------------


def at(index: Any, piece: Chunk) -> Chunk:
    return {**piece, "choices": [{**piece["choices"][0], "index": index}]}


def counted(*pieces: Chunk, first: int = 0) -> list[Chunk]:
    return [at(number, piece) for number, piece in enumerate(pieces, start=first)]


WORDS = [f"{number} " for number in range(12)]


@pytest.mark.parametrize("size", [2, 3, 12])
@pytest.mark.parametrize("first", [0, 1])
async def test_indexes_that_count_chunks_belong_to_one_choice(size: int, first: int) -> None:
    pieces = [chunk(content=word) for word in WORDS[:size]]
    played = await streamed(*counted(*pieces, STOP, first=first))
    assert (shown(played.output), played.end.ending.status) == ([("message", "".join(WORDS[:size]))], "completed")
    played = await streamed(*counted(*pieces, first=first), at(first, STOP))
    assert shown(played.output) == [("message", "".join(WORDS[:size]))]


async def test_a_long_answer_with_counted_chunks_is_streamed() -> None:
    converter = ChatConverter(first_output_index=0)
    reads = [converter.feed([piece]) for piece in counted(*(chunk(content=word) for word in WORDS))]
    assert all(reads[-2:])


async def test_a_truncated_answer_with_counted_chunks_is_incomplete() -> None:
    played = await streamed(*counted(chunk(content="8"), chunk(content="4"), chunk(finish="length")))
    assert (shown(played.output), played.end.ending.status) == ([("message", "84")], "incomplete")


@pytest.mark.parametrize(
    "indexes",
    [[0, 1, 0, 1], [0, 0, 1, 1], [0, 2, 1, 0], ["a", "b", "a"]],
    ids=["in turns", "in a row", "mixed", "names"],
)
async def test_other_choices_are_ignored_in_any_order(indexes: list[Any]) -> None:
    pieces = [at(index, chunk(content="yes" if index == indexes[0] else "no")) for index in indexes]
    played = await streamed(*pieces, at(indexes[0], STOP))
    assert shown(played.output) == [("message", "yes" * indexes.count(indexes[0]))]


async def test_of_several_choices_in_a_chunk_the_first_one_is_used() -> None:
    both = {"choices": [at(i, chunk(content=word))["choices"][0] for i, word in enumerate(("yes", "no"))]}
    swapped = {"choices": both["choices"][::-1]}
    assert shown((await streamed(both, swapped, STOP)).output) == [("message", "yesyes")]


# -- calls -------------------------------------------------------------------------------------------------------------


def piece(arguments: Any = None, *, index: Any = None, id: str | None = None, name: str | None = None) -> Chunk:  # noqa: A002
    entry: dict[str, Any] = {"index": index, "id": id}
    function = {"name": name, "arguments": arguments}
    given = {key: value for key, value in entry.items() if value is not None}
    return chunk(
        tool_calls=[{**given, "function": {key: value for key, value in function.items() if value is not None}}]
    )


A, B = '{"a":1}', '{"b":2}'
JOINED: dict[str, list[Chunk]] = {
    "by id": [
        piece(A[:3], id="1", name="f"),
        piece(B[:3], id="2", name="g"),
        piece(A[3:], id="1"),
        piece(B[3:], id="2"),
    ],
    "by index": [
        piece(A[:3], index=0, id="1", name="f"),
        piece(B[:3], index=1, id="2", name="g"),
        piece(A[3:], index=0),
        piece(B[3:], index=1),
    ],
    "by order": [piece(A[:3], id="1", name="f"), piece(A[3:]), piece(B[:3], id="2", name="g"), piece(B[3:])],
    "repeated at the end": [
        piece(A[:3], index=0, id="1", name="f"),
        piece(A[3:], index=0),
        piece(B, index=1, id="2", name="g"),
        piece(A, index=0, id="1", name="f"),
        piece(B, index=1, id="2", name="g"),
    ],
    "repeated with other white space": [
        piece(A[:1], index=0, id="1", name="f"),
        piece(A[1:], index=0),
        piece(B, index=1, id="2", name="g"),
        piece('{"a": 1}', index=0, id="1", name="f"),
        piece('{ "b": 2 }', index=1, id="2", name="g"),
    ],
    "renumbered at the end": [
        piece(A, index=0, id="1", name="f"),
        piece(B, index=1, id="2", name="g"),
        piece(A, index=2, id="1", name="f"),
        piece(B, index=3, id="2", name="g"),
    ],
    "growing": [
        piece(A[:3], index=0, id="1", name="f"),
        piece(A[:5], index=0, id="1", name="f"),
        piece(A, index=0, id="1", name="f"),
        piece(B, index=1, id="2", name="g"),
    ],
    "numbered pieces with ids": [
        piece(A[:3], index=0, id="1", name="f"),
        piece(A[3:], index=1, id="1"),
        piece(B[:3], index=2, id="2", name="g"),
        piece(B[3:], index=3, id="2"),
    ],
    "numbered pieces": [
        piece(A[:3], index=0, id="1", name="f"),
        piece(A[3:], index=1),
        piece(B[:3], index=2, id="2", name="g"),
        piece(B[3:], index=3),
    ],
    "new ids": [
        piece(A[:3], index=0, id="1", name="f"),
        piece(A[3:], index=0, id="7"),
        piece(B[:3], index=1, id="2", name="g"),
        piece(B[3:], index=1, id="8", name="g"),
    ],
    "an id before the name": [
        piece(index=0, id="1"),
        piece(A, index=0, name="f"),
        piece(index=1, id="2"),
        piece(B, index=1, name="g"),
    ],
    "one index": [piece(A, index=0, id="1", name="f"), piece(B, index=0, id="2", name="g")],
    "in two forms": [
        chunk(
            tool_calls=piece(A, index=0, id="1", name="f")["choices"][0]["delta"]["tool_calls"],
            function_call={"name": "f", "arguments": A},
        ),
        piece(B, index=1, id="2", name="g"),
    ],
    "not nested": [
        chunk(tool_calls=[{"index": 0, "id": "1", "name": "f", "arguments": A}]),
        chunk(tool_calls={"index": 1, "id": "2", "name": "g", "arguments": B}),
    ],
}


@pytest.mark.parametrize("form", JOINED)
async def test_calls_keep_their_arguments_and_appear_once(form: str) -> None:
    played = await streamed(*JOINED[form], chunk(finish="tool_calls"))
    made = [(item["call_id"], item["name"], item["arguments"]) for item in played.output]
    assert made == [("1", "f", A), ("2", "g", B)]


async def test_calls_whose_id_is_the_name_of_the_function_stay_separate() -> None:
    played = await streamed(piece(A, id="f", name="f"), piece(B, id="f", name="f"), STOP)
    assert [item["arguments"] for item in played.output] == [A, B]


async def test_chunks_of_a_call_beyond_the_limit_are_ignored() -> None:
    pieces = [piece(A, id="1", name="f"), piece(B[:3], id="2", name="g"), piece(B[3:])]
    converter = ChatConverter(first_output_index=0, sampling=Sampling(parallel_tool_calls=False))
    converter.feed([*pieces, STOP])
    converter.end(done=True)
    assert [item["arguments"] for item in converter.result().items] == [A]


def test_a_repeated_call_in_a_document_is_read_once() -> None:
    accumulator = CompletionAccumulator()
    for given in calls(look=A):
        accumulator.add(given)
    message = accumulator.completion()["choices"][0]["message"]
    converter = whole({**message, "tool_calls": message["tool_calls"] * 2}, finish="tool_calls")
    assert [item["arguments"] for item in converter.result().items] == [A]
