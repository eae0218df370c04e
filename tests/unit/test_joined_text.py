"""Texts of an upstream that arrive in one read become one delta while the event loop is late."""

import asyncio
import time
from typing import Any

import pytest

from core.load.load_limit import LoadLimit, loop_delay
from engine.converter.chat import ChatConverter
from engine.converter.joined_text import event_with_text, joined, text_of_event
from engine.converter.responses_api import ResponsesConverter
from engine.events.types import Event, OutputTextDelta, ReasoningTextDelta
from engine.turn import Sampling
from providers.upstream_errors import failure_from_error
from tests.support.chunks import Chunk, chunk, text

LOGPROBS = {"content": [{"token": "b", "logprob": -0.5, "bytes": None, "top_logprobs": []}]}


def deltas(chunks: list[Chunk], **options: Any) -> list[str]:
    """Return the deltas of chunks that arrive in one read."""
    return deltas_of(ChatConverter(first_output_index=0, **options).feed(chunks, joins_texts=True))


def deltas_of(events: list[Event]) -> list[str]:
    """Return the texts of the deltas."""
    return [event.delta for event in events if isinstance(event, OutputTextDelta | ReasoningTextDelta)]


def test_texts_in_a_row_become_one_delta() -> None:
    assert deltas(text("a", "b", "c", "d")) == ["abcd"]


def test_an_empty_text_may_come_first() -> None:
    assert deltas([chunk(content=""), chunk(content="a"), chunk(content="b")]) == ["ab"]


def test_reasoning_is_not_joined_with_text() -> None:
    chunks = [chunk(reasoning_content=word) for word in ("a", "b")] + text("c", "d")
    assert deltas(chunks) == ["ab", "cd"]


def test_empty_fields_and_the_role_do_not_separate_texts() -> None:
    chunks = [chunk(role="assistant", content=word, tool_calls=None, refusal="") for word in ("a", "b")]
    assert deltas(chunks) == ["ab"]


@pytest.mark.parametrize(
    "between",
    [
        chunk(content="b", annotations=[{"type": "url_citation", "url": "https://example.com"}]),
        {**chunk(content="b"), "choices": [{"index": 0, "delta": {"content": "b"}, "logprobs": LOGPROBS}]},
        {**chunk(content="b"), "service_tier": "flex"},
        {**chunk(content="b"), "usage": {"prompt_tokens": 1, "completion_tokens": 2}},
    ],
)
def test_an_event_with_anything_else_stays_alone(between: Chunk) -> None:
    assert deltas([chunk(content="a"), between, chunk(content="c"), chunk(content="d")]) == ["a", "b", "cd"]


def test_a_stop_sequence_is_found_across_joined_texts() -> None:
    assert deltas(text("a E", "N", "D b"), sampling=Sampling(stop=("END",))) == ["a "]


def test_joined_texts_count_as_several_tokens_for_the_limit() -> None:
    converters = [ChatConverter(first_output_index=0, sampling=Sampling(max_output_tokens=10)) for _ in range(2)]
    chunks = [chunk(content="twelve bytes") for _ in range(400)]
    for converter, joins in zip(converters, (False, True), strict=True):
        for start in range(0, len(chunks), 4):
            converter.feed(chunks[start : start + 4], joins_texts=joins)
    assert [converter.finish_reason for converter in converters] == ["length", "length"]
    alone, joined = [len(converter.result().items[0]["content"][0]["text"]) for converter in map(ended, converters)]
    assert alone - 4 * len("twelve bytes") <= joined <= alone


def ended(converter: ChatConverter) -> ChatConverter:
    """Return the converter after the end of its turn."""
    converter.end()
    return converter


def test_deltas_of_the_responses_api_are_joined_within_their_part() -> None:
    converter = ResponsesConverter(
        first_output_index=0, sampling=Sampling(), upstream_id="upstream", to_failure=failure_from_error
    )
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": []}
    part = {"type": "output_text", "text": "", "annotations": []}
    place = {"item_id": "msg_1", "output_index": 0}

    def delta(text: str, index: int) -> Chunk:
        return {"type": "response.output_text.delta", **place, "content_index": index, "delta": text}

    def added(index: int) -> Chunk:
        return {"type": "response.content_part.added", **place, "content_index": index, "part": part}

    events = [
        {"type": "response.output_item.added", "output_index": 0, "item": message},
        *(added(0), delta("a", 0), delta("b", 0)),
        *(added(1), delta("c", 1), delta("d", 1)),
    ]
    assert deltas_of(converter.feed(events, joins_texts=True)) == ["ab", "cd"]


@pytest.mark.parametrize("kind", [{}, [], None, 1])
def test_an_event_with_an_invalid_type_is_left_alone(kind: object) -> None:
    event = {"type": kind, "delta": "a"}
    assert joined([event], read=text_of_event, write=event_with_text) == [(event, 1)]


async def test_an_event_loop_that_is_blocked_again_and_again_is_late() -> None:
    following = asyncio.create_task(LoadLimit(least=1, most=64).follow())
    try:
        while not loop_delay.is_late:
            await asyncio.sleep(0.001)
            time.sleep(0.1)
    finally:
        following.cancel()
