"""Fold of an event log into an output, complete or cut at any point."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.converter.chat import ChatConverter
from engine.events.fold import Fold, read_frames
from engine.events.types import (
    ContentPartAdded,
    CustomToolCallInputDelta,
    Event,
    OutputItemAdded,
    OutputTextAnnotationAdded,
    ReasoningSummaryPartAdded,
    ReasoningSummaryPartDone,
    ReasoningSummaryTextDelta,
    frame,
)
from engine.interrupted_items import close_fragment
from tests.support.chunks import Chunk, chunk
from tests.support.runs import on_the_wire
from tests.support.streams import assert_items

PIECES = st.text(min_size=0, max_size=4)
CALL_DELTAS = st.builds(
    lambda index, call_id, name, arguments: chunk(
        tool_calls=[{"index": index, "id": call_id, "function": {"name": name, "arguments": arguments}}]
    ),
    st.integers(0, 2),
    st.none() | st.sampled_from(["call_a", "call_b", "c" * 70]),
    st.none() | st.sampled_from(["f", "g"]),
    st.none() | st.sampled_from(["", "{}", '{"a"', ":1}"]),
)
DELTAS = (
    st.builds(lambda words: chunk(content=words), PIECES)
    | st.builds(lambda words: chunk(refusal=words), PIECES)
    | st.builds(lambda words: chunk(reasoning_content=words), PIECES)
    | CALL_DELTAS
)
STREAMS = st.lists(DELTAS, max_size=12)
ENDS = st.sampled_from(["stop", "length", "content_filter", "tool_calls", None])


def converted(chunks: list[Chunk], finish: str | None) -> tuple[list[list[Event]], ChatConverter]:
    """Return the events of each read, including the end, and the converter."""
    converter = ChatConverter(first_output_index=0)
    reads = [converter.feed([piece]) for piece in [*chunks, chunk(finish=finish)]]
    return [*reads, converter.end(done=finish is None)], converter


def flat(reads: list[list[Event]]) -> list[dict[str, Any]]:
    """Return all events as on the wire."""
    return on_the_wire([event for read in reads for event in read])


@pytest.mark.slow
@given(chunks=STREAMS, finish=ENDS)
def test_any_stream_of_chunks_is_well_formed_and_folds_to_its_items(chunks: list[Chunk], finish: str | None) -> None:
    reads, converter = converted(chunks, finish)
    assert_items(flat(reads))
    assert Fold(flat(reads)).output == converter.result().items


@pytest.mark.slow
@given(chunks=STREAMS, finish=ENDS)
def test_the_output_does_not_depend_on_the_number_of_reads(chunks: list[Chunk], finish: str | None) -> None:
    one_by_one, at_once = converted(chunks, finish)[1], ChatConverter(first_output_index=0)
    at_once.feed([*chunks, chunk(finish=finish)])
    at_once.end(done=finish is None)
    assert shapes(at_once) == shapes(one_by_one)


def shapes(converter: ChatConverter) -> list[dict[str, Any]]:
    """Return the items without generated ids."""
    return [
        {name: value for name, value in item.items() if name not in {"id", "call_id"}}
        for item in converter.result().items
    ]


@pytest.mark.slow
@settings(max_examples=50)
@given(chunks=STREAMS, finish=ENDS)
def test_a_log_cut_after_any_read_can_be_closed(chunks: list[Chunk], finish: str | None) -> None:
    reads, _ = converted(chunks, finish)
    for stop in range(len(reads) + 1):
        emitted = flat(reads[:stop])
        fragments = Fold(copy.deepcopy(emitted)).fragments
        closed = [close_fragment(fragment) for fragment in fragments]
        everything = emitted + on_the_wire([event for _, events in closed for event in events])
        assert_items(copy.deepcopy(everything))
        assert Fold(everything).output == [body for body, _ in closed]


def test_fragments_record_whether_they_are_open_and_in_which_part() -> None:
    reads, _ = converted([chunk(content="a"), chunk(refusal="b"), chunk(reasoning="c")], "stop")
    after_refusal = Fold(flat(reads[:2])).fragments
    after_reasoning = Fold(flat(reads[:3])).fragments
    assert [(f.output_index, f.is_open, f.open_part) for f in after_refusal] == [(0, True, 1)]
    assert [(f.output_index, f.is_open, f.open_part) for f in after_reasoning] == [(0, False, None), (1, True, 0)]


def test_a_summary_is_extended_and_its_open_part_is_recorded() -> None:
    item = {"id": "rs_1", "type": "reasoning", "summary": []}
    part = {"type": "summary_text", "text": ""}
    emitted: list[Event] = [
        OutputItemAdded(output_index=0, item=item),
        ReasoningSummaryPartAdded(item_id="rs_1", output_index=0, summary_index=0, part=part),
        ReasoningSummaryTextDelta(item_id="rs_1", output_index=0, summary_index=0, delta="Hm."),
    ]
    (fragment,) = Fold(on_the_wire(emitted)).fragments
    assert (fragment.open_part, fragment.open_summary) == (None, 0)
    assert fragment.body["summary"] == [{"type": "summary_text", "text": "Hm."}]
    done = ReasoningSummaryPartDone(item_id="rs_1", output_index=0, summary_index=0, part=fragment.body["summary"][0])
    assert Fold(on_the_wire([*emitted, done])).fragments[0].open_summary is None


def test_the_input_of_a_custom_tool_is_extended() -> None:
    item = {"id": "ctc_1", "type": "custom_tool_call", "input": ""}
    deltas = [CustomToolCallInputDelta(item_id="ctc_1", output_index=0, delta=text) for text in ("Hel", "lo")]
    assert Fold(on_the_wire([OutputItemAdded(output_index=0, item=item), *deltas])).output == [
        item | {"input": "Hello"}
    ]


def test_an_annotation_is_added_to_its_part() -> None:
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    citation = {"type": "url_citation", "url": "https://a.example", "title": "A", "start_index": 0, "end_index": 1}
    emitted: list[Event] = [
        OutputItemAdded(output_index=0, item={"id": "msg_1", "type": "message", "content": []}),
        ContentPartAdded(item_id="msg_1", output_index=0, content_index=0, part=part),
        OutputTextAnnotationAdded(
            item_id="msg_1", output_index=0, content_index=0, annotation_index=0, annotation=citation
        ),
    ]
    assert Fold(on_the_wire(emitted)).output[0]["content"][0]["annotations"] == [citation]


def test_the_response_of_the_last_event_is_kept() -> None:
    fold = Fold([{"type": "response.created", "response": {"status": "in_progress"}}])
    fold.apply({"type": "response.completed", "response": {"status": "completed"}})
    assert fold.response == {"status": "completed"}


def test_frames_are_read_back_as_the_bytes_that_were_sent() -> None:
    reads, _ = converted([chunk(content='line\n\n"quoted"')], "stop")
    frames = [frame(event, number) for number, event in enumerate(event for read in reads for event in read)]
    assert [data for data, _ in read_frames(b"".join(frames))] == frames
