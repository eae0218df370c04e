"""`POST /v1/responses` as JSON: the answer, the stored response and the request to the upstream."""

import time
from typing import Any
from uuid import uuid4

import pytest

from tenants import scope
from tenants.models import UsageRecord
from tests.support.api import Api, Caller, MakeApi, error, ok
from tests.support.chunks import chunk, text, usage
from tests.support.rows import every_row_with
from tests.support.upstream import Script, refusal, stream, whole

USAGE = {
    "input_tokens": 7,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 10,
}
EMPTY: dict[str, Any] = {
    "object": "response",
    "status": "completed",
    "background": False,
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "usage": USAGE,
    "user": None,
    "metadata": {},
    "access_programs": None,
    "prompt_cache_retention": None,
    "moderation": None,
}


def test_post_returns_the_whole_response(api: Api, script: Script) -> None:
    script.say("Hel", "lo")
    before = int(time.time())
    response = api.create(model=script.model, input="Hi")
    assert {name: response[name] for name in EMPTY} == EMPTY
    assert response.keys() - EMPTY.keys() == {"id", "created_at", "completed_at", "model", "output"}
    assert response["id"].startswith("resp_")
    assert response["model"] == script.model
    assert before <= response["created_at"] <= response["completed_at"] <= time.time()


def test_the_output_is_one_message(api: Api, script: Script) -> None:
    script.say("Hel", "lo")
    (message,) = api.create(model=script.model, input="Hi")["output"]
    assert message.pop("id").startswith("msg_")
    part = {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    assert message == {"type": "message", "status": "completed", "role": "assistant", "content": [part]}


def test_the_stored_response_equals_the_returned_one(api: Api, script: Script) -> None:
    script.say("Hello")
    response = api.create(model=script.model, input="Hi", metadata={"a": "b"})
    assert api.retrieve(response["id"]) == response


def test_the_upstream_receives_only_parameters_of_the_client(api: Api, script: Script) -> None:
    script.say("Hello")
    api.create(model=script.model, input="Hi")
    assert script.bodies == [
        {
            "model": script.model,
            "messages": [{"role": "user", "content": "Hi"}],
            "stream": False,
        }
    ]


def test_the_upstream_receives_its_own_key_and_not_the_callers(api: Api, script: Script) -> None:
    script.say("Hello")
    api.create(model=script.model, input="Hi")
    assert script.received[0].headers["Authorization"] == "Bearer upstream-secret"


def test_instructions_become_the_system_message(api: Api, script: Script) -> None:
    script.say("Ahoy")
    response = api.create(model=script.model, instructions="Talk like a pirate.", input="Hi")
    assert response["instructions"] == "Talk like a pirate."
    system, user = {"role": "system", "content": "Talk like a pirate."}, {"role": "user", "content": "Hi"}
    assert script.messages == [[system, user]]


def test_metadata_is_stored(api: Api, script: Script) -> None:
    script.say("Hello")
    metadata = {f"k{i}" * 32: "v" * 512 for i in range(9)} | {f"k{i}": "" for i in range(7)}
    response = api.create(model=script.model, input="Hi", metadata=metadata)
    assert response["metadata"] == api.retrieve(response["id"])["metadata"] == metadata


def test_cached_and_reasoning_tokens_are_reported(api: Api, script: Script) -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 2}}
    numbers = usage(prompt_tokens=9, completion_tokens=5, total_tokens=14, **details)
    script.then(stream(chunk(content="Hello", finish="stop"), numbers))
    shown = api.create(model=script.model, input="Hi")["usage"]
    assert shown["input_tokens_details"]["cached_tokens"] == 4
    assert shown["output_tokens_details"]["reasoning_tokens"] == 2
    assert (shown["input_tokens"], shown["output_tokens"], shown["total_tokens"]) == (9, 5, 14)


def test_an_upstream_call_writes_one_usage_record(api: Api, script: Script, caller: Caller) -> None:
    script.say("Hello")
    response = api.create(model=script.model, input="Hi")
    with scope.team(caller.team.pk):
        row = UsageRecord.objects.get(object_id=response["id"])
    assert (row.endpoint, row.outcome, row.model, row.api_key_id) == ("responses", "stop", script.model, caller.key.pk)
    assert (row.input_tokens, row.output_tokens, row.estimated) == (7, 3, False)


def test_usage_is_estimated_if_the_upstream_reports_none(api: Api, script: Script, caller: Caller) -> None:
    script.then(stream(chunk(content="Hello", finish="stop")))
    response = api.create(model=script.model, input="Hi")
    with scope.team(caller.team.pk):
        row = UsageRecord.objects.get(object_id=response["id"])
    assert row.estimated
    assert response["usage"]["output_tokens"] == row.output_tokens > 0


def test_finish_reason_length_makes_the_response_incomplete(api: Api, script: Script) -> None:
    script.say("Hel", finish="length")
    response = api.create(model=script.model, input="Hi", max_output_tokens=16)
    assert response["status"] == response["output"][0]["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (response["completed_at"], response["error"]) == (None, None)
    assert api.retrieve(response["id"]) == response


def test_a_content_filter_makes_the_response_incomplete(api: Api, script: Script) -> None:
    script.say("Hel", finish="content_filter")
    response = api.create(model=script.model, input="Hi")
    assert response["incomplete_details"] == {"reason": "content_filter"}
    assert api.retrieve(response["id"]) == response


def test_a_refusal_becomes_a_refusal_part(api: Api, script: Script) -> None:
    script.then(stream(chunk(refusal="I "), chunk(refusal="won't."), chunk(finish="stop")))
    response = api.create(model=script.model, input="Hi")
    assert response["output"][0]["content"] == [{"type": "refusal", "refusal": "I won't."}]
    assert api.retrieve(response["id"]) == response


def test_reasoning_precedes_the_message(api: Api, script: Script) -> None:
    script.then(stream(chunk(reasoning_content="Hm. "), chunk(reasoning_content="Ah."), *text("Yes")))
    reasoning, message = api.create(model=script.model, input="Hi")["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm. Ah."}]
    assert (reasoning["type"], reasoning["summary"], message["type"]) == ("reasoning", [], "message")


def test_the_service_tier_is_reported_by_the_upstream(api: Api, script: Script) -> None:
    script.then(stream({**chunk(content="Hi", finish="stop"), "service_tier": "flex"}))
    response = api.create(model=script.model, input="Hi", service_tier="auto")
    assert response["service_tier"] == api.retrieve(response["id"])["service_tier"] == "flex"


def test_an_upstream_may_answer_a_stream_request_with_json(api: Api, script: Script) -> None:
    message = {"role": "assistant", "content": "Hello"}
    script.then(whole({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}))
    response = api.create(model=script.model, input="Hi")
    assert response["output"][0]["content"][0]["text"] == "Hello"


def test_unicode_is_unchanged(api: Api, script: Script) -> None:
    words = "Grüße 👋🏽 \u2028 \u202e 日本"
    script.say(*words)
    response = api.create(model=script.model, input=words)
    assert response["output"][0]["content"][0]["text"] == words
    assert script.messages[0][0]["content"] == api.input_items(response["id"])[0]["content"][0]["text"] == words


def test_an_unstored_response_cannot_be_retrieved(api: Api, script: Script) -> None:
    script.say("Hello")
    response = api.create(model=script.model, input="Hi", store=False)
    assert (response["store"], response["output"][0]["content"][0]["text"]) == (False, "Hello")
    for path in ("", "/input_items"):
        assert error(api.get(f"/responses/{response['id']}{path}")) == (404, None, None)
    assert error(api.delete(f"/responses/{response['id']}")) == (404, None, None)
    assert ok(api.get("/responses"))["data"] == []


def test_an_unstored_response_has_a_usage_record(api: Api, script: Script, caller: Caller) -> None:
    script.say("Hello")
    response = api.create(model=script.model, input="Hi", store=False)
    with scope.team(caller.team.pk):
        row = UsageRecord.objects.get(object_id=response["id"])
    assert (row.input_tokens, row.output_tokens) == (7, 3)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/responses", "/chat/completions", "/messages"])
def test_the_text_of_an_unstored_response_is_not_kept(api: Api, script: Script, path: str, stream: bool) -> None:
    text = f"text-{uuid4().hex}"
    script.then(refusal(400, f"Not allowed: {text}"))
    body: dict[str, Any] = {"model": script.model, "stream": stream}
    if path == "/responses":
        body |= {"input": text, "store": False}
    else:
        body |= {"messages": [{"role": "user", "content": text}], "max_tokens": 16}
    assert text in api.post(path, body).text
    assert every_row_with(text) == []


def test_another_teams_previous_response_is_not_found(api: Api, outsider: Api, script: Script) -> None:
    script.say("Hello")
    first = api.create(model=script.model, input="Hi")
    foreign = outsider.post("/responses", {"model": script.model, "input": "?", "previous_response_id": first["id"]})
    unknown = outsider.post("/responses", {"model": script.model, "input": "?", "previous_response_id": "resp_x"})
    assert error(foreign) == (400, "previous_response_id", "previous_response_not_found")
    assert foreign.text.replace(first["id"], "resp_x") == unknown.text


def test_creation_requires_the_write_scope(make_api: MakeApi) -> None:
    reader = make_api(scopes=["responses.read"])
    assert error(reader.post("/responses", {"model": "m", "input": "Hi"})) == (403, None, "insufficient_scope")
