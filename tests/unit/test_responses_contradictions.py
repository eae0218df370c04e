"""Responses upstreams whose events do not match their items: the output of the finished response decides."""

from typing import Any

import pytest

from conversations.items import from_wire
from core.errors import Failure
from engine.converter.responses_api import ResponsesConverter
from engine.turn import CallForm, Finish, FunctionTool, Sampling, TurnResult
from tests.support.responses_upstream import (
    added,
    call_events,
    done,
    event,
    function_call,
    message,
    message_events,
    reasoning,
    reasoning_events,
    response,
    texts,
)
from tests.support.runs import on_the_wire
from tests.support.streams import assert_items

Upstream = dict[str, Any]
LOOK = FunctionTool(name="look")
HOSTED = FunctionTool(name="search", form=CallForm.HOSTED)


def result_of(
    *pieces: Upstream | list[Upstream], output: list[Any], status: str = "completed", **end: Any
) -> TurnResult:
    """Return the result of a stream, and assert that its events are valid and its items can be stored."""
    made = ResponsesConverter(
        first_output_index=0,
        sampling=Sampling(tools=(LOOK, HOSTED)),
        upstream_id="upst_1",
        to_failure=lambda error: Failure(code="server_error", message=str(error)),
    )
    flat = [given for piece in pieces for given in (piece if isinstance(piece, list) else [piece])]
    emitted = []
    for given in [*flat, event(status, response=response(status, *output, **end))]:
        emitted += [] if made.over else made.feed([given])
    wire = on_the_wire([*emitted, *made.end()])
    assert_items(wire)
    result = made.result()
    assert [given["item"] for given in wire if given["type"] == "response.output_item.done"] == result.items
    for item in result.items:
        from_wire(item)
    return result


def shown(result: TurnResult) -> list[tuple[str, str]]:
    """Return type and text of each item."""
    return [
        (
            item["type"],
            item.get("arguments")
            or "".join(part["text"] for part in [*(item.get("summary") or ()), *(item.get("content") or ())]),
        )
        for item in result.items
    ]


def summary_delta(index: Any, text: str, **fields: Any) -> Upstream:
    return event("reasoning_summary_text.delta", output_index=index, summary_index=0, delta=text, **fields)


def raw_delta(index: Any, text: str) -> Upstream:
    return event("reasoning_text.delta", output_index=index, content_index=0, delta=text)


def text_delta(index: Any, text: str, **fields: Any) -> Upstream:
    return event("output_text.delta", output_index=index, content_index=0, delta=text, logprobs=[], **fields)


def arguments_delta(index: Any, text: str) -> Upstream:
    return event("function_call_arguments.delta", output_index=index, delta=text)


HELLO, HM, LOOKED = message("Hello"), reasoning("Hm."), function_call("look", "{}")
PART = {"type": "summary_text", "text": ""}
ODD: dict[str, list[Upstream]] = {
    "a summary at a message": [added(0, message("")), summary_delta(0, "Hm."), *texts(0, "Hel", "lo"), done(0, HELLO)],
    "raw reasoning at a message": [added(0, message("")), raw_delta(0, "Hm."), *texts(0, "Hello"), done(0, HELLO)],
    "a part of a summary at a message": [
        added(0, message("")),
        event("reasoning_summary_part.added", output_index=0, summary_index=0, part=PART),
        *texts(0, "Hello"),
        done(0, HELLO),
    ],
    "a summary without an item": [summary_delta(4, "Hm."), *message_events("Hel", "lo")],
    "a summary at no index": [summary_delta(None, "Hm."), *message_events("Hel", "lo")],
}


@pytest.mark.parametrize("output", [[HELLO], []], ids=["with an output", "without"])
@pytest.mark.parametrize("odd", ODD)
def test_reasoning_at_the_wrong_item_is_not_part_of_the_answer(odd: str, output: list[Any]) -> None:
    result = result_of(ODD[odd], output=output)
    assert (result.finish, shown(result)) == (Finish.STOP, [("message", "Hello")])


def test_the_output_adds_reasoning_that_was_at_the_wrong_item() -> None:
    result = result_of(ODD["a summary at a message"], output=[HM, HELLO])
    assert sorted(shown(result)) == [("message", "Hello"), ("reasoning", "Hm.")]


LOST: dict[str, list[Upstream]] = {
    "text at a reasoning item": [added(0, reasoning()), summary_delta(0, "Hm."), text_delta(0, "Hello"), done(0, HM)],
    "text without an item": [*reasoning_events("Hm."), text_delta(1, "Hel"), text_delta(1, "lo")],
    "text at no index": [*reasoning_events("Hm."), text_delta(None, "Hello")],
    "text at a call": [*reasoning_events("Hm."), added(1, LOOKED), text_delta(1, "Hello")],
    "a message that was finished as reasoning": [added(0, message("")), done(0, HM), text_delta(0, "Hello")],
    "arguments at a message": [*reasoning_events("Hm."), added(1, message("")), arguments_delta(1, "{}")],
    "another end": [*reasoning_events("Hm."), added(1, message("")), text_delta(1, "He"), done(1, message("Ho"))],
    "an item twice": [*reasoning_events("Hm."), added(1, message("")), added(1, message(""))],
}


@pytest.mark.parametrize("odd", LOST)
def test_a_consistent_output_replaces_contradictory_events(odd: str) -> None:
    result = result_of(LOST[odd], output=[HM, HELLO])
    assert (result.finish, shown(result)) == (Finish.STOP, [("reasoning", "Hm."), ("message", "Hello")])


@pytest.mark.parametrize("odd", LOST)
def test_contradictory_events_without_an_output_fail_the_turn(odd: str) -> None:
    result = result_of(LOST[odd], output=[])
    assert result.finish is Finish.ERROR
    assert {item["status"] for item in result.items if item["type"] == "message"} <= {"incomplete"}


def test_an_output_that_differs_from_what_was_sent_fails_the_turn() -> None:
    pieces = [added(0, message("")), text_delta(0, "Hel"), text_delta(7, "lo")]
    assert result_of(pieces, output=[message("Goodbye")]).finish is Finish.ERROR


def test_a_wrong_index_is_corrected_by_the_id_of_the_item() -> None:
    pieces = [*reasoning_events("Hm."), added(1, message("")), text_delta(0, "Hello", item_id="msg_theirs")]
    assert shown(result_of(pieces, done(1, HELLO), output=[])) == [("reasoning", "Hm."), ("message", "Hello")]


@pytest.mark.parametrize("closing", [[], [done(0, HM)]], ids=["in the output", "in its event"])
def test_a_part_announced_under_another_index_is_not_written_twice(closing: list[Upstream]) -> None:
    announced = event("reasoning_summary_part.added", output_index=0, summary_index=1, part=PART)
    reasoned = [added(0, reasoning()), announced, summary_delta(0, "Hm."), *closing]
    result = result_of(reasoned, message_events("Hel", "lo", index=1), summary_delta(7, "lost"), output=[HM, HELLO])
    assert (result.finish, shown(result)) == (Finish.STOP, [("reasoning", "Hm."), ("message", "Hello")])


def test_one_index_for_all_items_is_accepted() -> None:
    result = result_of(reasoning_events("Hm."), message_events("Hello"), call_events("look", "{}"), output=[])
    assert shown(result) == [("reasoning", "Hm."), ("message", "Hello"), ("function_call", "{}")]


def test_an_item_after_its_deltas_is_emitted_at_its_end() -> None:
    result = result_of(text_delta(0, "Hel"), added(0, message("")), text_delta(0, "lo"), done(0, HELLO), output=[])
    assert (result.finish, shown(result)) == (Finish.STOP, [("message", "Hello")])


BLANK = done(0, message(""))
TEXT_ONLY_AT_THE_END: dict[str, list[Upstream]] = {
    "no delta, a blank end": [added(0, message("")), BLANK],
    "no delta, no end": [added(0, message(""))],
    "a delta before the item, a blank end": [text_delta(0, "Hel"), added(0, message("")), text_delta(0, "lo"), BLANK],
    "a delta before the item, no end": [text_delta(0, "Hel"), added(0, message("")), text_delta(0, "lo")],
    "half of the deltas, no end": [added(0, message("")), text_delta(0, "Hel")],
}


@pytest.mark.parametrize("odd", TEXT_ONLY_AT_THE_END)
def test_text_found_only_in_the_output_is_emitted(odd: str) -> None:
    result = result_of(TEXT_ONLY_AT_THE_END[odd], call_events("look", "{}", index=1), output=[HELLO, LOOKED])
    assert (result.finish, shown(result)) == (Finish.STOP, [("message", "Hello"), ("function_call", "{}")])


def test_arguments_before_a_message_do_not_lose_its_text() -> None:
    pieces = [arguments_delta(0, "{}"), added(0, message("")), text_delta(0, "Hello"), BLANK]
    assert shown(result_of(pieces, output=[HELLO])) == [("message", "Hello")]


@pytest.mark.parametrize("output", [[], [message("")]], ids=["no output", "a blank output"])
def test_text_sent_before_its_item_and_missing_in_the_output_fails_the_turn(output: list[Any]) -> None:
    assert result_of(text_delta(0, "Hello"), added(0, message("")), BLANK, output=output).finish is Finish.ERROR


BLANK_CALL = [added(0, function_call("search", "")), done(0, function_call("search", ""))]
ARGUED = function_call("search", '{"query": "x"}')


def test_arguments_found_only_in_the_output_belong_to_the_call() -> None:
    assert [call.arguments for call in result_of(BLANK_CALL, output=[ARGUED]).calls] == [ARGUED["arguments"]]


@pytest.mark.parametrize("output", [[], [function_call("search", "")]], ids=["no output", "a blank output"])
def test_a_call_without_arguments_is_made(output: list[Any]) -> None:
    assert [call.arguments for call in result_of(BLANK_CALL, output=output).calls] == ["{}"]


def test_a_call_without_arguments_may_be_named_at_its_end() -> None:
    unnamed = added(0, function_call("", "") | {"call_id": None})
    result = result_of(unnamed, done(0, function_call("search", "")), output=[])
    assert [(call.name, call.arguments) for call in result.calls] == [("search", "{}")]


def test_a_call_with_arguments_sent_only_before_it_is_not_made() -> None:
    result = result_of(arguments_delta(0, ARGUED["arguments"]), BLANK_CALL, output=[])
    assert (result.finish, result.calls) == (Finish.ERROR, [])


@pytest.mark.parametrize("lacking", [LOOKED, function_call("search", "{}")], ids=["of the client", "hosted"])
def test_a_call_found_only_in_the_output_is_made(lacking: Any) -> None:
    result = result_of(message_events("Hello"), output=[HELLO, lacking])
    assert [call.name for call in result.calls] == [lacking["name"]]
    assert shown(result)[0] == ("message", "Hello")


def test_a_hosted_call_beside_contradictory_events_is_made_once() -> None:
    search = function_call("search", "{}")
    pieces = [*call_events("search", "{}"), text_delta(5, "Hello")]
    assert [call.name for call in result_of(pieces, output=[search, HELLO]).calls] == ["search"]


@pytest.mark.parametrize("output", [[], [function_call("look", '{"a', status="incomplete")]])
def test_a_partial_call_in_a_completed_response_is_not_made(output: list[Any]) -> None:
    result = result_of(call_events("look", '{"a', ":1}")[:2], output=output)
    assert (result.finish, result.calls) == (Finish.ERROR, [])


def test_a_completed_response_with_an_error_fails() -> None:
    result = result_of(message_events("Hello"), output=[], error={"code": "server_error", "message": "gone"})
    assert result.finish is Finish.ERROR


@pytest.mark.parametrize("reason", ["max_tokens", "length", "max_output_tokens"])
def test_an_incomplete_response_may_name_the_limit_differently(reason: str) -> None:
    details = {"reason": reason}
    result = result_of(message_events("Hel"), output=[], status="incomplete", incomplete_details=details)
    assert result.finish is Finish.LENGTH


@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter"])
def test_a_completed_response_with_incomplete_details_is_incomplete(reason: str) -> None:
    result = result_of(message_events("Hel"), output=[], incomplete_details={"reason": reason})
    assert result.finish is (Finish.LENGTH if reason == "max_output_tokens" else Finish.CONTENT_FILTER)


@pytest.mark.parametrize("content", ["Hello", ["Hello"], [{"type": "text", "text": "Hello"}], [{"text": "Hello"}]])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_texts_may_be_strings_or_parts_of_chat_completions(content: Any, is_streamed: bool) -> None:
    said, thought = message("", content=content), {**reasoning(), "summary": "Hm."}
    pieces = [done(0, thought), *message_events("Hel", "lo", index=1)[:-1], done(1, said)] if is_streamed else []
    result = result_of(pieces, output=[thought, said])
    assert (result.finish, shown(result)) == (Finish.STOP, [("reasoning", "Hm."), ("message", "Hello")])


def test_reasoning_inside_a_message_is_not_part_of_the_answer() -> None:
    content = [{"type": "reasoning_text", "text": "Hm."}, {"type": "output_text", "text": "Hello", "annotations": []}]
    mixed = message("", content=content)
    assert shown(result_of(output=[mixed])) == shown(result_of(done(0, mixed), output=[])) == [("message", "Hello")]


def test_an_answer_inside_a_reasoning_item_fails_the_turn() -> None:
    mixed = reasoning(content=[{"type": "output_text", "text": "Hello"}])
    assert result_of(output=[mixed]).finish is Finish.ERROR
