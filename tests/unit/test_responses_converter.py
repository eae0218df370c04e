"""Conversion of Responses events: items are complete and in order, even if an upstream splits and interleaves them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import Failure
from engine.converter.responses_api import ResponsesConverter
from engine.events.fold import Fold
from engine.events.types import Event
from engine.interrupted_items import close_fragment
from engine.turn import CallForm, Finish, FunctionTool, Sampling
from tests.support.responses_upstream import added, call_events, done, end, event, function_call, message, reasoning
from tests.support.runs import on_the_wire
from tests.support.streams import assert_items

Upstream = dict[str, Any]
WORDS = st.text(max_size=4)
LOOK = FunctionTool(name="look")
HOSTED = FunctionTool(name="search", form=CallForm.HOSTED)


def converter(*tools: FunctionTool, first: int = 0) -> ResponsesConverter:
    """A converter of a turn with these tools."""
    return ResponsesConverter(
        first_output_index=first,
        sampling=Sampling(tools=tools),
        upstream_id="upst_1",
        to_failure=lambda error: Failure(code="server_error", message=str(error)),
    )


def converted(events: list[Upstream], made: ResponsesConverter | None = None) -> list[dict[str, Any]]:
    """Return the converted events, with one read per upstream event."""
    made = made or converter(LOOK)
    emitted: list[Event] = [event for one in events for event in made.feed([one])]
    return on_the_wire([*emitted, *made.end()])


def a_message(index: int, parts: list[list[str]], *, sends_all_deltas: bool) -> list[Upstream]:
    """The events of a message with these parts, each cut into these pieces."""
    content = [{"type": "output_text", "text": "".join(pieces), "annotations": []} for pieces in parts]
    deltas = [
        event("output_text.delta", output_index=index, content_index=number, delta=piece)
        for number, pieces in enumerate(parts)
        for piece in pieces[: len(pieces) if sends_all_deltas or number < len(parts) - 1 else 1]
    ]
    return [added(index, message("")), *deltas, done(index, message("", content=content))]


def a_reasoning(index: int, parts: list[list[str]], *, sends_all_deltas: bool) -> list[Upstream]:
    """The events of reasoning with these paragraphs of a summary."""
    whole = ["".join(pieces) for pieces in parts]
    deltas = [
        event("reasoning_summary_text.delta", output_index=index, summary_index=number, delta=piece)
        for number, pieces in enumerate(parts)
        for piece in pieces[: len(pieces) if sends_all_deltas or number < len(parts) - 1 else 1]
    ]
    return [added(index, reasoning()), *deltas, done(index, reasoning(*whole))]


def a_call(index: int, parts: list[list[str]], *, sends_all_deltas: bool) -> list[Upstream]:
    """The events of a call whose arguments are these pieces."""
    pieces = [piece for part in parts for piece in part]
    deltas = [
        event("function_call_arguments.delta", output_index=index, delta=piece)
        for piece in (pieces if sends_all_deltas else pieces[:1])
    ]
    return [added(index, function_call("look", "")), *deltas, done(index, function_call("look", "".join(pieces)))]


PARTS = st.lists(st.lists(WORDS, min_size=1, max_size=3), min_size=1, max_size=3)
KINDS = st.sampled_from([a_message, a_reasoning, a_call])
ITEMS = st.lists(st.tuples(KINDS, PARTS, st.booleans()), min_size=1, max_size=4)


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[list[Upstream], list[list[str]]]:
    """Items with interleaved events in random order, each item's events in order, and the words of each item."""
    items = draw(ITEMS)
    streams = [make(index, parts, sends_all_deltas=all_) for index, (make, parts, all_) in enumerate(items)]
    mixed: list[Upstream] = [stream.pop(0) for stream in streams]
    while any(streams):
        mixed.append(draw(st.sampled_from([stream for stream in streams if stream])).pop(0))
    return mixed, [["".join(pieces) for pieces in parts] for _, parts, _ in items]


def words(item: dict[str, Any]) -> list[str]:
    """The words of an item, part by part."""
    parts = item.get("content") or item.get("summary") or []
    return [part["text"] for part in parts] if "arguments" not in item else [item["arguments"]]


@pytest.mark.slow
@settings(max_examples=150)
@given(mixtures())
def test_items_are_emitted_completely_and_in_order(mixture: tuple[list[Upstream], list[list[str]]]) -> None:
    upstream, expected = mixture
    made = converter(LOOK)
    emitted = converted([*upstream, end()], made)
    assert_items(emitted)
    output = made.result().items
    assert Fold(emitted).output == output
    for item, parts in zip(output, expected, strict=True):
        is_call = item["type"] == "function_call"
        assert words(item) == (["".join("".join(parts)) or "{}"] if is_call else parts)


@pytest.mark.slow
@settings(max_examples=100)
@given(mixtures(), st.integers(0, 40))
def test_items_of_a_stream_interrupted_anywhere_can_be_closed(
    mixture: tuple[list[Upstream], list[list[str]]], length: int
) -> None:
    made = converter(LOOK)
    emitted = on_the_wire([event for one in mixture[0][:length] for event in made.feed([one])])
    closed = [event for fragment in Fold(emitted).fragments for event in close_fragment(fragment)[1]]
    assert_items([*emitted, *on_the_wire(closed)])


@pytest.mark.slow
@settings(max_examples=100)
@given(mixtures(), st.integers(0, 40))
def test_an_interruption_anywhere_closes_open_items(
    mixture: tuple[list[Upstream], list[list[str]]], length: int
) -> None:
    made = converter(LOOK)
    emitted = [event for one in mixture[0][:length] for event in made.feed([one])]
    events = on_the_wire([*emitted, *made.interrupt()])
    assert_items(events)
    result = made.result(interrupted=True)
    assert (result.finish, Fold(events).output) == (Finish.INTERRUPTED, result.items)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
KEYS = ("type", "output_index", "content_index", "summary_index", "item", "part", "delta", "response", "annotation")


@pytest.mark.slow
@settings(max_examples=300)
@given(mixtures(), st.integers(0, 30), st.sampled_from(KEYS), JSON)
def test_malformed_events_fail_the_turn_without_an_exception(
    mixture: tuple[list[Upstream], list[list[str]]], position: int, key: str, nonsense: Any
) -> None:
    upstream = [*mixture[0], end()]
    at = position % len(upstream)
    upstream[at] = {**upstream[at], key: nonsense}
    made = converter(LOOK)
    converted(upstream, made)
    assert made.result().finish in {Finish.STOP, Finish.ERROR}


def test_output_indexes_continue_after_earlier_items() -> None:
    emitted = converted([done(0, message("Hello")), end()], converter(first=3))
    assert {one["output_index"] for one in emitted} == {3}


def test_a_call_of_a_hosted_tool_is_not_an_item() -> None:
    made = converter(LOOK, HOSTED)
    upstream = [*call_events("search", '{"q":1}'), *call_events("look", "{}", index=1), end()]
    emitted = converted(upstream, made)
    assert [item["name"] for item in Fold(emitted).output] == ["look"]
    assert [(call.name, call.arguments) for call in made.result().calls] == [("search", '{"q":1}'), ("look", "{}")]


def test_an_empty_message_does_not_hold_back_later_items_after_its_end() -> None:
    made = converter(LOOK)
    emitted = converted([added(0, message("")), *call_events("look", "{}", index=1), done(0, message("")), end()], made)
    assert [item["type"] for item in Fold(emitted).output] == ["function_call"]


def test_the_first_event_sets_the_time_of_the_first_token() -> None:
    made = converter()
    made.feed([added(0, message(""))])
    assert made.first_token_at is None
    made.feed([event("output_text.delta", output_index=0, content_index=0, delta="Hi")])
    assert made.first_token_at is not None


def test_events_without_indexes_belong_to_the_items_that_they_name() -> None:
    """llama.cpp sends no indexes, ends all items together, and gave calls no ids at first."""
    calls = [{**function_call("look", ""), "call_id": f"fc_{name}"} for name in "AB"]
    for call in calls:
        del call["id"]
    events = [
        event("output_item.added", item=reasoning(id="rs_1")),
        event("reasoning_text.delta", item_id="rs_1", delta="Hm."),
        event("output_item.added", item=message("", id="msg_1")),
        event("content_part.added", item_id="msg_1", part={"type": "output_text", "text": ""}),
        *(event("output_text.delta", item_id="msg_1", delta=piece) for piece in ("Hel", "lo")),
    ]
    for call, number in zip(calls, "12", strict=True):
        events.append(event("output_item.added", item=call))
        pieces = ('{"n":', f"{number}}}")
        events += [event("function_call_arguments.delta", item_id=call["call_id"], delta=piece) for piece in pieces]
    events += [
        event("output_item.done", item=reasoning(id="rs_1", content=[{"type": "reasoning_text", "text": "Hm."}])),
        event("output_item.done", item=message("Hello", id="msg_1")),
        *(
            event("output_item.done", item={**call, "arguments": f'{{"n":{n}}}'})
            for call, n in zip(calls, "12", strict=True)
        ),
        end(),
    ]
    made = converter(LOOK)
    converted(events, made)
    result = made.result()
    assert (result.finish, result.failure) == (Finish.STOP, None)
    assert [words(item) for item in result.items[:2]] == [["Hm."], ["Hello"]]
    assert [(call.call_id, call.arguments) for call in result.calls] == [("fc_A", '{"n":1}'), ("fc_B", '{"n":2}')]


@pytest.mark.parametrize("arguments", ['{"n":1}', {"n": 1}])
@pytest.mark.parametrize("missing", [{"name": ""}, {"call_id": None}, {"call_id": ""}, {}])
def test_a_call_has_its_final_name_and_arguments(missing: dict[str, Any], arguments: Any) -> None:
    final = function_call("look", arguments)
    for events in (
        [added(0, {**final, "arguments": "", **missing}), done(0, final), end()],
        [done(0, final), end()],
        [end(output=[{**final, "status": "completed"}])],
    ):
        made = converter(LOOK)
        converted(events, made)
        assert [(call.name, call.arguments, call.call_id) for call in made.result().calls] == [
            ("look", '{"n":1}', "call_look")
        ]


def test_a_call_without_an_id_gets_one() -> None:
    made = converter(LOOK)
    converted([done(0, function_call("look", "{}", call_id=None)), end()], made)
    (call,) = made.result().calls
    assert (call.name, call.call_id[:5]) == ("look", "call_")
