"""Failed and truncated upstream answers in all three APIs, as JSON, as a stream, in the background and stored."""

from typing import Any

import pytest

from responses.models import ChatCompletion
from tenants import scope
from tests.support.api import Api, error
from tests.support.background import ended
from tests.support.chunks import Chunk, chunk, completion
from tests.support.upstream import Answer, Script, stream, whole

HI = [{"role": "user", "content": "Hi"}]
ENTRY = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}
HALF = {**ENTRY, "function": {"name": "look", "arguments": '{"a'}}
LOOK = {"name": "look", "parameters": {"type": "object", "properties": {}}}


def document(finish: str | None = "stop", *, message: Any = None, **choice: Any) -> Chunk:
    """Return a completion with one choice."""
    answer = completion("Hel")
    message = {"role": "assistant", "content": "Hel"} if message is None else message
    return {**answer, "choices": [{**answer["choices"][0], "message": message, "finish_reason": finish, **choice}]}


def with_error(given: Chunk) -> Chunk:
    return {**given, "choices": [{**given["choices"][0], "error": {"code": 502, "message": "gone"}}]}


CALLED, CUT = (
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{key: value for key, value in call.items() if key != "index"}],
    }
    for call in (ENTRY, HALF)
)
FAILED: dict[str, Answer] = {
    "an error": stream(chunk(content="Hel"), chunk(finish="error")),
    "an abort after a call": stream(chunk(tool_calls=[ENTRY]), chunk(finish="abort")),
    "an error inside a choice": stream(chunk(content="Hel"), with_error(chunk(finish="stop"))),
    "no end": stream(chunk(content="Hel"), done=False),
    "no end after words for null": stream(chunk(content="Hel", finish="null"), done=False),
    "nothing but the end": stream(),
    "an early end at Groq": stream(
        chunk(content="Hel"), {**chunk(finish="stop"), "x_groq": {"error": "over_capacity"}}
    ),
    "half a call and no reason": stream(chunk(tool_calls=[HALF])),
    "half a call and an unknown reason": stream(chunk(tool_calls=[HALF]), chunk(finish="mystery")),
    "announced calls": stream(chunk(content="Hel"), chunk(finish="tool_calls")),
    "nothing for an unknown reason": stream(chunk(finish="mystery")),
    "an error as a document": whole(document("error")),
    "resources as a document": whole(document("insufficient_system_resource", message=CALLED)),
    "half a call as a document": whole(document(None, message=CUT)),
    "an error in the choice of a document": whole(with_error(document())),
    "a choice without a message": whole({"choices": [{"index": 0}]}),
}
CUT_OFF: dict[str, tuple[str, str, str]] = {
    "MAX_TOKENS": ("max_output_tokens", "length", "max_tokens"),
    "model_length": ("max_output_tokens", "length", "max_tokens"),
    "length": ("max_output_tokens", "length", "max_tokens"),
    "SAFETY": ("content_filter", "content_filter", "refusal"),
    "RECITATION": ("content_filter", "content_filter", "refusal"),
}


# As a document, the scripted upstream would send them without the defect.
ONLY_STREAMED = {
    "an early end at Groq",
    "an error inside a choice",
    "half a call and no reason",
    "no end after words for null",
    "nothing but the end",
}


@pytest.mark.parametrize("what", FAILED)
def test_a_failed_upstream_answer_fails_a_response(api: Api, script: Script, what: str) -> None:
    script.then(FAILED[what])
    asked = {"model": script.model, "input": "Hi", "tools": [{"type": "function", **LOOK}]}
    assert api.events(**asked)[-1]["response"]["status"] == "failed"
    if what not in ONLY_STREAMED:
        script.then(FAILED[what])
        assert api.post("/responses", asked).status_code >= 500


@pytest.mark.parametrize("what", FAILED)
@pytest.mark.parametrize("store", [False, True])
def test_a_failed_upstream_answer_fails_a_chat_completion(api: Api, script: Script, what: str, store: bool) -> None:
    script.then(FAILED[what])
    asked = {"model": script.model, "messages": HI, "store": store, "tools": [{"type": "function", "function": LOOK}]}
    with api.stream("/chat/completions", **asked) as live:
        last = live.rest()[-1]
    assert ("error" in last, "data: [DONE]" in live.raw) == (True, False)
    if what not in ONLY_STREAMED:
        script.then(FAILED[what])
        assert api.post("/chat/completions", asked).status_code >= 500
    with scope.team(api.caller.team.pk):
        assert not ChatCompletion.objects.exists()


@pytest.mark.parametrize("what", FAILED)
def test_a_failed_upstream_answer_fails_a_message(api: Api, script: Script, what: str) -> None:
    script.then(FAILED[what])
    asked = {"model": script.model, "messages": HI, "max_tokens": 9}
    asked["tools"] = [{"name": "look", "input_schema": LOOK["parameters"]}]
    with api.stream("/messages", **asked) as live:
        assert live.rest()[-1]["type"] == "error"
    if what not in ONLY_STREAMED:
        script.then(FAILED[what])
        assert api.post("/messages", asked).status_code >= 500


@pytest.mark.parametrize("reason", CUT_OFF)
@pytest.mark.parametrize("form", ["stream", "document"])
def test_a_truncated_answer_is_reported_as_such_in_every_api(api: Api, script: Script, reason: str, form: str) -> None:
    streams = form == "stream"
    answer = stream(chunk(content="Hel"), chunk(finish=reason)) if streams else whole(document(reason))
    script.then(answer, answer, answer)
    detail, finish, stop = CUT_OFF[reason]
    response = api.events(model=script.model, input="Hi")[-1]["response"]
    assert (response["status"], response["incomplete_details"]["reason"]) == ("incomplete", detail)
    asked = {"model": script.model, "messages": HI, "store": True}
    with api.stream("/chat/completions", **asked) as live:
        assert live.rest()[-1]["choices"][0]["finish_reason"] == finish
    stored = api.get("/chat/completions").json()["data"]
    assert [kept["choices"][0]["finish_reason"] for kept in stored] == [finish]
    with api.stream("/messages", model=script.model, messages=HI, max_tokens=9) as live:
        (delta,) = [event["delta"] for event in live.rest() if event["type"] == "message_delta"]
    assert delta["stop_reason"] == stop


@pytest.mark.parametrize("reason", ["eos", "end_turn", "STOP", "mystery"])
def test_other_finish_reasons_of_complete_answers_are_mapped_to_openais(api: Api, script: Script, reason: str) -> None:
    script.then(whole(document(reason)), whole(document("tool_use", message=CALLED)))
    asked = {"model": script.model, "messages": HI}
    assert api.post("/chat/completions", asked).json()["choices"][0]["finish_reason"] == "stop"
    assert api.post("/chat/completions", asked).json()["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("word", ["null", "None"])
def test_words_for_null_are_not_finish_reasons(api: Api, script: Script, word: str) -> None:
    script.then(stream(chunk(content="Hel", finish=word), chunk(content="lo", finish=word), chunk(finish="stop")))
    with api.stream("/chat/completions", model=script.model, messages=HI) as live:
        assert [sent["choices"][0]["finish_reason"] for sent in live.rest()] == [None, None, "stop"]


def test_each_of_several_choices_is_checked(api: Api, script: Script) -> None:
    first, second = document()["choices"][0], {**document("error")["choices"][0], "index": 1}
    script.then(whole({**completion("Hi"), "choices": [first, second]}))
    assert error(api.post("/chat/completions", {"model": script.model, "messages": HI, "n": 2}))[2] == "server_error"


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(("reason", "status"), [("error", "failed"), ("MAX_TOKENS", "incomplete")])
def test_a_background_response_is_not_completed(api: Api, script: Script, reason: str, status: str) -> None:
    script.then(stream(chunk(content="Hel"), chunk(finish=reason)))
    made = api.create(model=script.model, input="Hi", background=True)
    assert ended(api, made["id"])["status"] == status
