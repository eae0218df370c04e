"""Errors of `/v1/messages` in Anthropic's envelope, from every part of the server, and authentication."""

import re
from typing import Any

import pytest

from core.errors import UPSTREAM_REJECTIONS
from gateway.anthropic import errors
from tests.support.api import Api, MakeApi, ok
from tests.support.chunks import chunk
from tests.support.model_capabilities import describe
from tests.support.upstream import Cut, Script, refusal, stream

HI = [{"role": "user", "content": "Hi"}]
CALL = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "a cat"}
DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Cats."}}
THOUGHT = {"type": "thinking", "thinking": "Hm."}


def sent(script: Script, **body: Any) -> dict[str, Any]:
    return {"model": script.model, "max_tokens": 100, "messages": HI, **body}


def kind(answer: Any) -> tuple[int, str]:
    """Return status and type of an error."""
    return answer.status_code, answer.json()["error"]["type"]


@pytest.mark.parametrize("header", ["x-api-key", "Authorization"])
@pytest.mark.parametrize("path", ["/messages", "/messages/count_tokens"])
def test_a_key_is_accepted_in_either_header(api: Api, script: Script, header: str, path: str) -> None:
    secret, api.headers = api.caller.secret, {}
    value = secret if header == "x-api-key" else f"Bearer {secret}"
    body = sent(script)
    if path == "/messages":
        script.say("Hello")
    else:
        del body["max_tokens"]
    ok(api.post(path, body, headers={header: value, "anthropic-version": "2023-06-01", "anthropic-beta": "x"}))


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({}, "x-api-key header is required"),
        ({"x-api-key": "sk-wrong"}, "Incorrect API key provided"),
        ({"Authorization": "Bearer sk-wrong"}, "Incorrect API key provided"),
    ],
)
def test_requests_without_a_valid_key_are_rejected(
    api: Api, script: Script, headers: dict[str, str], message: str, live: bool
) -> None:
    api.headers = {}
    answer = api.post("/messages", sent(script, stream=live), headers=headers)
    assert kind(answer) == (401, "authentication_error")
    assert answer.json()["error"]["message"].startswith(message)


@pytest.mark.parametrize("path", ["/messages", "/messages/count_tokens"])
def test_a_key_without_the_scope_is_rejected(make_api: MakeApi, script: Script, path: str) -> None:
    assert kind(make_api(scopes=["models.read"]).post(path, sent(script))) == (403, "permission_error")


@pytest.mark.parametrize("live", [False, True])
def test_an_unknown_model_is_not_found(make_api: MakeApi, script: Script, live: bool) -> None:
    api = make_api(allowed_models=["other"])
    answer = api.post("/messages", sent(script, stream=live))
    assert kind(answer) == (404, "not_found_error")
    assert script.model in answer.json()["error"]["message"]
    body = sent(script)
    del body["max_tokens"]
    assert kind(api.post("/messages/count_tokens", body)) == (404, "not_found_error")


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/messages", (405, "invalid_request_error")),
        ("GET", "/messages/count_tokens", (405, "invalid_request_error")),
        ("POST", "/messages/batches", (404, "not_found_error")),
        ("GET", "/messages/msg_1", (404, "not_found_error")),
    ],
)
def test_errors_of_the_router_have_the_envelope(api: Api, method: str, path: str, expected: tuple[int, str]) -> None:
    assert kind(api.request(method, path)) == expected


@pytest.mark.slow
def test_bodies_over_the_limit_have_the_envelope(api: Api, script: Script) -> None:
    large = b'{"model": "m", "messages": [{"role": "user", "content": "%b"}]}' % (b"a" * (70 * 1024 * 1024))
    assert kind(api.post("/messages", large)) == (413, "request_too_large")


def test_a_malformed_version_is_rejected(api: Api, script: Script) -> None:
    answer = api.post("/messages", sent(script), headers={"anthropic-version": "latest"})
    assert kind(answer) == (400, "invalid_request_error")
    assert answer.json()["error"]["message"] == "anthropic-version: 'latest' is not a valid version."


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "!"}}
# Names of the Responses API.
INTERNAL = re.compile(r"\binput\[|\binput\b['\"]|call_id|function call|filters\.|without an id")
INVALID: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": "many"}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": [{"role": "tool", "content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [*HI, {"role": "assistant", "content": "The answer is ("}]}, "prefill"),
    ({"messages": [{"role": "user", "content": [CALL]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "assistant", "content": [RESULT]}, *HI]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [RESULT]}]}, "`tool_use_id` found in `tool_result` blocks: t1."),
    (
        {"messages": [{"role": "assistant", "content": [CALL]}, *HI]},
        "`tool_use` ids were found without `tool_result` blocks: t1.",
    ),
    (
        {"messages": [*HI, {"role": "user", "content": [{"type": "text", "text": "See"}, IMAGE]}]},
        "messages[1].content[1].source",
    ),
    ({"system": 5}, "system"),
    ({"temperature": 1.5}, "temperature"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"tools": [{"name": "a b", "input_schema": {"type": "object"}}]}, "tools[0].name"),
    ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
    ({"tools": [{"name": "a", "input_schema": {"type": "string"}}]}, "function 'a'"),
    ({"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]}, "code_execution_20250825"),
    (
        {"tools": [{"type": "web_search_20250305", "name": "web_search", "blocked_domains": ["a b"]}]},
        "'tools[0].blocked_domains[0]'",
    ),
    (
        {"messages": [{"role": "user", "content": [{**DOCUMENT, "citations": {"enabled": True}}]}]},
        "messages[0].content[0].citations.enabled: Invalid value: 'true'. Supported values are: 'false'.",
    ),
    (
        {"messages": [{"role": "user", "content": [{**DOCUMENT, "citations": {"enabled": 1}}]}]},
        "Invalid type for 'messages[0].content[0].citations.enabled': expected a boolean, but got an integer instead.",
    ),
    (
        {"messages": [{"role": "assistant", "content": [{**THOUGHT, "signature": "theirs"}]}, *HI]},
        "messages: Invalid `signature` in `thinking` block.",
    ),
    ({"thinking": True}, "Invalid type for 'thinking': expected an object, but got a boolean instead."),
    ({"tool_choice": False}, "Invalid type for 'tool_choice': expected an object, but got a boolean instead."),
    ({"messages": [{"role": "user", "content": []}]}, "messages: at least one message is required that has content."),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": {"type": "tool", "name": "look"}}, "look"),
    ({"thinking": {"type": "enabled", "budget_tokens": 10}}, "thinking.budget_tokens"),
    ({"output_config": {"effort": "extreme"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "cat"}}}}, "output"),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits[0].type"),
    ({"mcp_servers": [{}]}, "mcp_servers"),
    ({"container": "c"}, "container"),
    ({"thread": {"type": "create"}}, "thread"),
    ({"top_k": 5}, "top_k"),
    ({"tpo_p": 0.5}, "'tpo_p'. Did you mean 'top_p'?"),
]


@pytest.mark.parametrize(("change", "mentioned"), INVALID, ids=[mentioned for _, mentioned in INVALID])
def test_invalid_requests_are_rejected_by_name(
    api: Api, script: Script, change: dict[str, Any], mentioned: str
) -> None:
    answer = api.post("/messages", sent(script, **change))
    assert kind(answer) == (400, "invalid_request_error")
    message = answer.json()["error"]["message"]
    assert mentioned in message
    assert not INTERNAL.search(message)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]"])
def test_invalid_json_is_rejected(api: Api, raw: bytes) -> None:
    assert kind(api.post("/messages", raw)) == (400, "invalid_request_error")


def test_an_effort_that_the_model_does_not_support_is_rejected(api: Api, script: Script, database: None) -> None:
    describe(script, reasoning_efforts=["low"])
    answer = api.post("/messages", sent(script, output_config={"effort": "high"}))
    assert kind(answer) == (400, "invalid_request_error")
    assert "output_config.effort" in answer.json()["error"]["message"]


def test_a_prompt_beyond_the_context_window_is_too_long(api: Api, script: Script, database: None) -> None:
    describe(script, context_window=1000)
    answer = api.post("/messages", sent(script, messages=[{"role": "user", "content": "word " * 2000}]))
    assert kind(answer) == (400, "invalid_request_error")
    assert answer.json()["error"]["message"].startswith("prompt is too long: ")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, (400, "invalid_request_error")),
        (401, (500, "api_error")),
        (404, (404, "not_found_error")),
        (429, (429, "rate_limit_error")),
        (500, (500, "api_error")),
        (503, (529, "overloaded_error")),
    ],
)
def test_errors_of_the_upstream_have_anthropics_types(
    api: Api, script: Script, status: int, expected: tuple[int, str]
) -> None:
    script.then(refusal(status, "Too many words.", headers={"Retry-After": "7"}))
    answer = api.post("/messages", sent(script))
    assert kind(answer) == expected
    assert answer.headers.get("retry-after") == ("7" if status in {429, 503} else None)


@pytest.mark.parametrize(
    ("status", "expected"),
    [(400, "invalid_request_error"), (429, "rate_limit_error"), (503, "overloaded_error"), (500, "api_error")],
)
def test_a_stream_that_the_upstream_refuses_has_the_status_of_its_error(
    api: Api, script: Script, status: int, expected: str
) -> None:
    script.then(refusal(status, "Too many words.", headers={"Retry-After": "7"}))
    answer = api.post("/messages", sent(script, stream=True))
    status = 529 if status == 503 else status
    assert kind(answer) == (status, expected)
    assert answer.headers.get("retry-after") == ("7" if status in {429, 529} else None)


def test_a_broken_stream_ends_with_an_error(api: Api, script: Script) -> None:
    script.then(stream(chunk(content="Hel"), Cut()))
    with api.stream("/messages", **sent(script)) as live:
        *_, last = live.rest()
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")


def test_rejections_by_upstreams_are_request_errors() -> None:
    for code in UPSTREAM_REJECTIONS:
        _, body = errors.convert(400, {"code": code, "message": "No.", "param": None})
        assert body["error"]["type"] == "invalid_request_error"


def test_threads_are_reported_as_unsupported(api: Api, script: Script) -> None:
    answer = api.post("/messages", sent(script, thread={"type": "create"}))
    assert answer.json()["error"]["details"] == {"error_code": "thread_unsupported_request"}


@pytest.mark.parametrize("header", ["x-api-key", "Authorization"])
def test_large_bodies_are_accepted_with_a_key_in_either_header(api: Api, script: Script, header: str) -> None:
    script.say("Hello")
    secret, api.headers = api.caller.secret, {}
    value = secret if header == "x-api-key" else f"Bearer {secret}"
    long = [{"role": "user", "content": "word " * 500_000}]
    ok(api.post("/messages", sent(script, messages=long), headers={header: value}))


def test_large_bodies_without_a_key_have_the_envelope(api: Api, script: Script) -> None:
    api.headers = {}
    long = [{"role": "user", "content": "word " * 500_000}]
    assert kind(api.post("/messages", sent(script, messages=long))) == (401, "authentication_error")
