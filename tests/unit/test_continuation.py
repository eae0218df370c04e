"""An answer that was cut is continued from another answer: clients receive one message without gap or repetition."""

from collections.abc import Iterator
from typing import Any

import pytest

from engine.continuation import Diverged, RestOfText, TurnOutput
from engine.converter.chat import ChatConverter
from engine.events.types import (
    Event,
    OutputItemAdded,
    OutputItemDone,
    OutputTextAnnotationAdded,
    OutputTextDelta,
    OutputTextDone,
)
from engine.turn import Finish, Sampling, TurnRequest, TurnResult
from tests.support.chunks import chunk

REQUEST = TurnRequest(model="m", instructions=None, items=[], sampling=Sampling(), first_output_index=3)


class Answer:
    """An answer of a chat-completions server: its events, and its result when it has ended."""

    def __init__(self, *deltas: dict[str, Any], at: int = 3, finish: str | None = None) -> None:
        self.converter = ChatConverter(first_output_index=at)
        self.chunks = [chunk(**delta) for delta in deltas]
        if finish is not None:
            self.chunks.append(chunk(finish=finish))

    def reads(self) -> Iterator[list[Event]]:
        """Yield the events of each chunk."""
        for piece in self.chunks:
            yield self.converter.feed([piece])

    def end(self) -> tuple[list[Event], TurnResult]:
        """Return the closing events and the result."""
        closing = self.converter.end()
        return closing, self.converter.result(attempts=())


def texts(*pieces: str) -> list[dict[str, Any]]:
    """Return deltas of text."""
    return [{"content": piece} for piece in pieces]


def deltas_of(events: list[Event]) -> str:
    """Return the text that a client puts together."""
    return "".join(event.delta for event in events if isinstance(event, OutputTextDelta))


def cut_then(
    first: Answer, *others: Answer, takes_prefix: bool = False, repeats_prefix: bool = False
) -> tuple[list[Event], TurnResult]:
    """Return the events that clients receive, and the result, if all answers but the last one were cut."""
    output, sent = TurnOutput(REQUEST), list[Event]()
    for answer in (first, *others):
        output.begin(takes_prefix=takes_prefix, repeats_prefix=repeats_prefix)
        for events in answer.reads():
            sent += output.read(events)
        closing, result = answer.end()
        if answer is (others or (first,))[-1]:
            if result.failure is None:
                sent += output.read(closing)
                events, result = output.complete(result)
            else:
                events, result = output.interrupt(result, closing)
            return [*sent, *events], result
        assert output.can_continue()
        sent += output.cut(result, closing)
    raise AssertionError("no answer")


def test_a_repeated_answer_is_passed_on_from_where_it_was_cut() -> None:
    events, result = cut_then(Answer(*texts("One ", "two")), Answer(*texts("One tw", "o three", "."), finish="stop"))
    assert deltas_of(events) == "One two three."
    (done,) = (event for event in events if isinstance(event, OutputItemDone))
    assert done.item["content"][0]["text"] == "One two three."
    assert [item["id"] for item in result.items] == [done.item["id"]]
    assert result.items[0]["content"][0]["text"] == "One two three."
    assert {getattr(event, "output_index", None) for event in events} == {3}
    assert len({getattr(event, "item_id", done.item["id"]) for event in events}) == 1
    assert sum(isinstance(event, OutputItemAdded) for event in events) == 1


def test_a_continued_answer_is_appended() -> None:
    events, result = cut_then(
        Answer(*texts("One ", "two")), Answer(*texts(" three."), finish="stop"), takes_prefix=True
    )
    assert deltas_of(events) == "One two three."
    (done,) = (event for event in events if isinstance(event, OutputTextDone))
    assert done.text == result.items[0]["content"][0]["text"] == "One two three."


def test_a_prefix_that_the_server_repeats_is_left_out() -> None:
    events, _ = cut_then(
        Answer(*texts("One ")), Answer(*texts("One two."), finish="stop"), takes_prefix=True, repeats_prefix=True
    )
    assert deltas_of(events) == "One two."


def test_an_answer_may_be_cut_several_times() -> None:
    whole = Answer(*texts("One two three four."), finish="stop")
    events, result = cut_then(Answer(*texts("One ")), Answer(*texts("One two")), Answer(*texts("One two th")), whole)
    assert deltas_of(events) == result.items[0]["content"][0]["text"] == "One two three four."


def test_a_continuation_without_text_completes_the_message() -> None:
    output = TurnOutput(REQUEST)
    first = Answer(*texts("Done."))
    sent = [event for events in first.reads() for event in output.read(events)]
    closing, cut = first.end()
    sent += output.cut(cut, closing)
    output.begin(takes_prefix=True, repeats_prefix=False)
    events, result = output.complete(TurnResult(finish=Finish.STOP, attempts=()))
    assert deltas_of([*sent, *events]) == "Done."
    assert [(item["status"], item["content"][0]["text"]) for item in result.items] == [("completed", "Done.")]


@pytest.mark.parametrize(
    "other",
    [
        Answer(*texts("Two"), finish="stop"),
        Answer(*texts("One"), finish="stop"),
        Answer(
            {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]}, finish="tool_calls"
        ),
    ],
    ids=["another text", "a shorter text", "a call"],
)
def test_another_answer_is_not_a_continuation(other: Answer) -> None:
    with pytest.raises(Diverged):
        cut_then(Answer(*texts("One ", "two")), other)


def test_a_citation_in_the_repeated_text_is_not_a_continuation() -> None:
    output = TurnOutput(REQUEST)
    first = Answer(*texts("One ", "two"))
    for events in first.reads():
        output.read(events)
    closing, cut = first.end()
    output.cut(cut, closing)
    output.begin(takes_prefix=False, repeats_prefix=False)
    (repeated,) = Answer(*texts("One")).reads()
    output.read(repeated)
    place: dict[str, Any] = {"item_id": getattr(repeated[-1], "item_id", ""), "output_index": 3, "content_index": 0}
    citation = OutputTextAnnotationAdded(**place, annotation_index=0, annotation={"type": "url_citation"})
    with pytest.raises(Diverged):
        output.read([citation])
    _, result = output.interrupt(cut, [])
    assert [item["content"][0]["text"] for item in result.items] == ["One two"]


def test_a_message_that_cannot_be_continued_stays_incomplete() -> None:
    output = TurnOutput(REQUEST)
    first, other = Answer(*texts("One ", "two")), Answer(*texts("Three"))
    sent = [event for events in first.reads() for event in output.read(events)]
    closing, cut = first.end()
    sent += output.cut(cut, closing)
    output.begin(takes_prefix=False, repeats_prefix=False)
    with pytest.raises(Diverged):
        [output.read(events) for events in other.reads()]
    events, result = output.interrupt(cut, [])
    assert [(item["status"], item["content"][0]["text"]) for item in result.items] == [("incomplete", "One two")]
    assert isinstance(events[-1], OutputItemDone)
    assert events[-1].item == result.items[0]


def test_the_reasoning_of_a_continuation_is_left_out() -> None:
    first = Answer({"reasoning_content": "Hm."}, *texts("One "))
    other = Answer({"reasoning_content": "Well."}, *texts("One two."), finish="stop")
    events, result = cut_then(first, other)
    assert [item["type"] for item in result.items] == ["reasoning", "message"]
    assert deltas_of(events) == "One two."
    assert sum(isinstance(event, OutputItemAdded) for event in events) == 2
    assert [event.output_index for event in events if isinstance(event, OutputItemDone)] == [3, 4]


def test_an_answer_of_which_only_reasoning_was_sent_begins_again_after_it() -> None:
    first = Answer({"reasoning_content": "Hm."})
    other = Answer(*texts("One."), at=4, finish="stop")
    events, result = cut_then(first, other)
    assert [(item["type"], item["status"]) for item in result.items] == [
        ("reasoning", "incomplete"),
        ("message", "completed"),
    ]
    assert [event.output_index for event in events if isinstance(event, OutputItemDone)] == [3, 4]


def test_calls_after_a_continued_text_follow_its_message() -> None:
    call = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]}
    events, result = cut_then(Answer(*texts("One ")), Answer(*texts("One two."), call, finish="tool_calls"))
    assert [item["type"] for item in result.items] == ["message", "function_call"]
    assert [event.output_index for event in events if isinstance(event, OutputItemDone)] == [3, 4]
    assert len(result.calls) == 1


@pytest.mark.parametrize(
    "delta",
    [
        {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{"}}]},
        {"refusal": "No."},
    ],
    ids=["a call", "a refusal"],
)
def test_output_other_than_text_cannot_be_continued(delta: dict[str, Any]) -> None:
    output = TurnOutput(REQUEST)
    for events in Answer(*texts("One "), delta).reads():
        output.read(events)
    assert not output.can_continue()


def test_a_text_after_a_call_cannot_be_continued() -> None:
    output = TurnOutput(REQUEST)
    item = {"id": "fc_1", "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output.read([OutputItemAdded(output_index=3, item=item), OutputItemDone(output_index=3, item=item)])
    for events in Answer(*texts("One "), at=4).reads():
        output.read(events)
    assert not output.can_continue()


def test_a_request_that_is_not_streamed_begins_again() -> None:
    output = TurnOutput(TurnRequest(**{**fields_of(REQUEST), "streamed": False}))
    first, other = Answer(*texts("One ")), Answer(*texts("Two."), finish="stop")
    assert [output.read(events) for events in first.reads()] == [[]]
    closing, cut = first.end()
    assert (output.can_continue(), output.cut(cut, closing)) == (True, [])
    for events in other.reads():
        output.read(events)
    closing, result = other.end()
    output.read(closing)
    events, result = output.complete(result)
    assert deltas_of(events) == result.items[0]["content"][0]["text"] == "Two."


def fields_of(request: TurnRequest) -> dict[str, Any]:
    """Return the fields of a request."""
    return {
        name: getattr(request, name) for name in ("model", "instructions", "items", "sampling", "first_output_index")
    }


def test_a_long_text_is_compared_in_linear_time() -> None:
    sent = "word " * 200_000
    rest = RestOfText(sent, repeats=True)
    pieces = [rest.feed("word ") for _ in range(200_000)]
    assert (set(pieces), rest.feed("more")) == ({""}, "more")
