"""An answer that is cut or stalls after text was sent is continued by the next target, or the stream ends as failed."""

from typing import Any

import httpx2
import pytest

from tests.support.api import Api, Caller, ok
from tests.support.background import ended, text_of
from tests.support.chunks import chunk, usage
from tests.support.responses_upstream import answer as responses_answer
from tests.support.responses_upstream import message_events
from tests.support.targets import PATHS, Targets, is_complete, post, several_targets, streamed_text
from tests.support.upstream import Answer, Cut, Gate, Pause, Piece, ScriptedUpstream, stream, whole
from tests.support.usage_records import usage_records
from tests.support.web import WebProcess
from tests.support.workers import WorkerProcess

TEXT = "One two three."
REFUSED = whole({"error": {"message": "No prefix.", "type": "invalid_request_error"}}, status=400)
CALL = [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a'}}]

endpoints = pytest.mark.parametrize("path", PATHS)


def cut_after(*pieces: str) -> Answer:
    """Return an answer that is cut after pieces of text."""
    return stream(*(chunk(content=piece) for piece in pieces), Cut())


@endpoints
def test_the_next_target_repeats_the_text_up_to_the_cut(api: Api, targets: Targets, path: str) -> None:
    first, second = targets.two()
    first.then(cut_after("One ", "tw"))
    second.say("One", " two thr", "ee.")
    answer = post(api, path, targets.name, stream=True)
    assert (streamed_text(path, answer), is_complete(path, answer)) == (TEXT, True)
    assert second.bodies[0]["messages"][-1]["role"] == "user"


@endpoints
def test_a_target_that_takes_a_prefix_continues_the_text(api: Api, targets: Targets, path: str) -> None:
    first = targets.add()
    second = targets.add(assistant_prefix="continue_final_message")
    first.then(cut_after("One ", "two"))
    second.say(" three", ".")
    answer = post(api, path, targets.name, stream=True)
    assert (streamed_text(path, answer), is_complete(path, answer)) == (TEXT, True)
    (body,) = second.bodies
    assert body["messages"][-1] == {"role": "assistant", "content": "One two"}
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)


@endpoints
@pytest.mark.parametrize("kind", ["prefix", "last_message"])
def test_the_prefix_is_sent_in_the_form_of_the_server(api: Api, targets: Targets, path: str, kind: str) -> None:
    targets.add().then(cut_after("One "))
    second = targets.add(assistant_prefix=kind)
    second.say("two three.")
    answer = post(api, path, targets.name, stream=True)
    assert streamed_text(path, answer) == TEXT
    assert second.bodies[0]["messages"][-1].get("prefix") is (True if kind == "prefix" else None)


@endpoints
def test_a_prefix_that_the_answer_repeats_is_sent_once(api: Api, targets: Targets, path: str) -> None:
    targets.add().then(cut_after("One "))
    targets.add(assistant_prefix="repeated_prefix").say("One two ", "three.")
    assert streamed_text(path, post(api, path, targets.name, stream=True)) == TEXT


@endpoints
def test_a_target_that_refuses_the_prefix_repeats_the_text(api: Api, targets: Targets, path: str) -> None:
    targets.add().then(cut_after("One "))
    second = targets.add(assistant_prefix="prefix")
    second.then(REFUSED).say(TEXT)
    answer = post(api, path, targets.name, stream=True)
    assert (streamed_text(path, answer), is_complete(path, answer)) == (TEXT, True)
    assert [body["messages"][-1]["role"] for body in second.bodies] == ["assistant", "user"]


@endpoints
def test_another_text_is_not_a_continuation(api: Api, targets: Targets, path: str) -> None:
    first, second = targets.two()
    first.then(cut_after("One ", "two"))
    second.say("Uno dos tres.")
    answer = post(api, path, targets.name, stream=True)
    assert (streamed_text(path, answer), is_complete(path, answer)) == ("One two", False)
    assert "error" in answer.text


@endpoints
def test_a_third_target_continues_if_the_second_writes_another_text(api: Api, targets: Targets, path: str) -> None:
    first, second = targets.two()
    first.then(cut_after("One tw"))
    second.say("Uno")
    targets.add().say(TEXT)
    answer = post(api, path, targets.name, stream=True)
    assert (streamed_text(path, answer), is_complete(path, answer)) == (TEXT, True)


@endpoints
def test_a_continuation_that_is_cut_is_continued(api: Api, targets: Targets, path: str) -> None:
    first, second = targets.two()
    first.then(cut_after("One "))
    second.then(cut_after("One two thr"))
    targets.add().say(TEXT)
    answer = post(api, path, targets.name, stream=True)
    assert (streamed_text(path, answer), is_complete(path, answer)) == (TEXT, True)


@endpoints
def test_an_answer_that_every_target_cuts_has_failed(api: Api, targets: Targets, path: str) -> None:
    first, second = targets.two()
    first.then(cut_after("One "))
    second.then(cut_after("One two "))
    answer = post(api, path, targets.name, stream=True)
    assert (streamed_text(path, answer), is_complete(path, answer)) == ("One two ", False)


@endpoints
def test_arguments_of_a_call_are_never_continued(api: Api, targets: Targets, path: str) -> None:
    first, second = targets.two()
    first.then(stream(chunk(tool_calls=CALL), Cut()))
    function = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    tools: dict[str, Any] = {
        "/responses": {"type": "function", **function},
        "/chat/completions": {"type": "function", "function": function},
        "/messages": {"name": "f", "input_schema": function["parameters"]},
    }
    answer = post(api, path, targets.name, stream=True, tools=[tools[path]])
    assert (is_complete(path, answer), second.received) == (False, [])


@endpoints
def test_an_answer_that_is_not_streamed_begins_again(api: Api, targets: Targets, path: str) -> None:
    first, second = targets.two()
    first.then(cut_after("One ", "two"))
    second.say("Another text.")
    assert "Another text." in str(ok(post(api, path, targets.name)))
    assert first.bodies[0]["stream"] is True
    assert second.bodies[0]["stream"] is False


@pytest.mark.slow
@endpoints
@pytest.mark.parametrize(
    ("pieces", "sent"),
    [([], ""), ([b": waiting\n\n", Pause(0.6), b": waiting\n\n", Pause(0.6)], ""), ([chunk(content="One ")], "One ")],
    ids=["silent", "only comments", "stalled"],
)
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_a_target_that_sends_nothing_is_replaced(
    short_timeout_web: WebProcess,
    http: httpx2.Client,
    caller: Caller,
    targets: Targets,
    path: str,
    pieces: list[Piece],
    sent: str,
    is_streamed: bool,
) -> None:
    first, second = targets.two()
    gate = Gate()
    first.then(Answer(pieces=[*pieces, gate]))
    second.say(TEXT)
    api = Api(http, url=short_timeout_web.url, caller=caller)
    answer = post(api, path, targets.name, stream=is_streamed)
    gate.open()
    assert TEXT in (streamed_text(path, answer) if is_streamed else answer.text)
    assert len(first.received) == 1


def test_the_stored_response_has_the_whole_text_once(api: Api, targets: Targets) -> None:
    first, second = targets.two()
    first.then(cut_after("One ", "two"))
    second.say(TEXT)
    events = api.events(model=targets.name, input="Hi")
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert {event["output_index"] for event in events if "output_index" in event} == {0}
    (done,) = (event for event in events if event["type"] == "response.output_text.done")
    stored = api.retrieve(events[0]["response"]["id"])
    assert (done["text"], text_of(stored), stored["status"]) == (TEXT, [TEXT], "completed")
    assert stored["output"] == events[-1]["response"]["output"]


def test_the_reasoning_of_both_targets_is_not_mixed(api: Api, targets: Targets) -> None:
    first, second = targets.two()
    first.then(stream(chunk(reasoning_content="Hm."), chunk(content="One "), Cut()))
    second.then(stream(chunk(reasoning_content="Well."), chunk(content=TEXT), chunk(finish="stop"), usage()))
    made = api.events(model=targets.name, input="Hi")[-1]["response"]
    assert [item["type"] for item in made["output"]] == ["reasoning", "message"]
    assert (made["output"][0]["content"][0]["text"], text_of(made)) == ("Hm.", [TEXT])


def test_an_answer_that_was_cut_while_reasoning_begins_again(api: Api, targets: Targets) -> None:
    first, second = targets.two()
    first.then(stream(chunk(reasoning_content="Hm."), Cut()))
    second.say(TEXT)
    made = api.events(model=targets.name, input="Hi")[-1]["response"]
    assert ([item["type"] for item in made["output"]], text_of(made)) == (["reasoning", "message"], [TEXT])


@pytest.mark.parametrize("path", ["/responses", "/messages"])
def test_a_target_with_the_other_api_continues(
    api: Api, targets: Targets, responses_upstream: ScriptedUpstream, path: str
) -> None:
    targets.add().then(cut_after("One "))
    with several_targets(responses_upstream, name=targets.name) as others:
        others.add(priority=1, wire_api="responses").then(responses_answer(message_events("One two", " three.")))
        answer = post(api, path, targets.name, stream=True)
    assert (streamed_text(path, answer), is_complete(path, answer)) == (TEXT, True)


@pytest.mark.slow
def test_a_background_response_repeats_the_turn(api: Api, targets: Targets, worker: WorkerProcess) -> None:
    first, second = targets.two()
    first.then(stream(chunk(tool_calls=CALL), Cut()))
    second.say(TEXT)
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}]
    made = api.create(model=targets.name, input="Hi", background=True, stream=False, tools=tools)
    response = ended(api, made["id"])
    assert (response["status"], text_of(response)) == ("completed", [TEXT])


@endpoints
def test_the_text_that_was_cut_is_in_the_usage(api: Api, targets: Targets, path: str) -> None:
    first, second = targets.two()
    first.then(cut_after(*["One "] * 40))
    second.say("One " * 40 + "two.")
    post(api, path, targets.name, stream=True)
    cut, answered = usage_records(api.caller, 2)
    assert (cut.outcome, answered.outcome) == ("failed", "stop")
    assert (cut.estimated, cut.output_tokens) == (True, 40)
