"""Invalid requests get a documented 4xx with `param` and `code`, never a 500, HTML or a traceback."""

from typing import Any

import httpx2
import orjson
import pytest

from tests.support.api import Api, error, ok
from tests.support.upstream import Script
from tests.support.web import WebProcess

MIB = 1024 * 1024
HI: dict[str, Any] = {"model": "m", "input": "Hi"}
USER = {"role": "user", "content": "Hi"}
NAME_TOO_LONG = "n" * 65
DEEP = 100_000

LISTS = {"/models", "/responses"}

TABLE: list[tuple[dict[str, Any], str | None, str | None]] = [
    ({}, "input", "missing_required_parameter"),
    ({"model": "m"}, "input", "missing_required_parameter"),
    ({"input": "Hi"}, "model", "missing_required_parameter"),
    ({**HI, "model": None}, "model", "invalid_type"),
    ({**HI, "model": 1}, "model", "invalid_type"),
    ({**HI, "model": ""}, "model", "empty_string"),
    ({**HI, "model": "m" * 201}, "model", "string_above_max_length"),
    ({**HI, "input": None}, "input", "invalid_type"),
    ({**HI, "input": 5}, "input", "invalid_type"),
    ({**HI, "input": {}}, "input", "invalid_type"),
    ({**HI, "input": ""}, "input", "missing_required_parameter"),
    ({**HI, "input": []}, "input", "missing_required_parameter"),
    ({**HI, "input": ["Hi"]}, "input[0]", "invalid_type"),
    ({**HI, "input": [None]}, "input[0]", "invalid_type"),
    ({**HI, "input": [{}]}, "input[0]", "invalid_value"),
    ({**HI, "input": [{"content": "Hi"}]}, "input[0]", "invalid_value"),
    ({**HI, "input": [{"role": "user"}]}, "input[0].content", "missing_required_parameter"),
    ({**HI, "input": [{"type": "message"}]}, "input[0].role", "missing_required_parameter"),
    ({**HI, "input": [{**USER, "role": "nobody"}]}, "input[0].role", "invalid_value"),
    ({**HI, "input": [{**USER, "role": 1}]}, "input[0].role", "invalid_type"),
    ({**HI, "input": [{**USER, "content": 1}]}, "input[0].content", "invalid_type"),
    ({**HI, "input": [{**USER, "content": None}]}, "input[0].content", "invalid_type"),
    ({**HI, "input": [{**USER, "content": ["Hi"]}]}, "input[0].content[0]", "invalid_type"),
    ({**HI, "input": [{**USER, "content": [{}]}]}, "input[0].content[0]", "invalid_value"),
    ({**HI, "input": [{**USER, "content": [{"type": "output_text"}]}]}, "input[0].content[0]", "invalid_value"),
    ({**HI, "input": [{**USER, "name": "Bob"}]}, "input[0].name", "unknown_parameter"),
    ({**HI, "input": [{**USER, "phase": "later"}]}, "input[0].phase", "invalid_value"),
    ({**HI, "input": [USER, {"type": "nonsense"}]}, "input[1]", "invalid_value"),
    ({**HI, "input": [{"type": ["message"]}]}, "input[0]", "invalid_value"),
    ({**HI, "input": [{**USER, "id": "i" * 256}]}, "input[0].id", "string_above_max_length"),
    ({**HI, "input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id", "missing_required_parameter"),
    ({**HI, "inptu": "x"}, "inptu", "unknown_parameter"),
    ({**HI, "messages": []}, "messages", "unsupported_parameter"),
    ({**HI, "temperature": "hot"}, "temperature", "invalid_type"),
    ({**HI, "temperature": True}, "temperature", "invalid_type"),
    ({**HI, "temperature": 2.1}, "temperature", "decimal_above_max_value"),
    ({**HI, "top_p": -0.1}, "top_p", "decimal_below_min_value"),
    ({**HI, "max_output_tokens": 1}, "max_output_tokens", "integer_below_min_value"),
    ({**HI, "max_output_tokens": 16.5}, "max_output_tokens", "invalid_type"),
    ({**HI, "max_output_tokens": "16"}, "max_output_tokens", "invalid_type"),
    ({**HI, "max_tool_calls": 0}, "max_tool_calls", "integer_below_min_value"),
    ({**HI, "top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
    ({**HI, "store": "yes"}, "store", "invalid_type"),
    ({**HI, "store": 1}, "store", "invalid_type"),
    ({**HI, "stream": "true"}, "stream", "invalid_type"),
    ({**HI, "stream": 1}, "stream", "invalid_type"),
    ({**HI, "instructions": ["x"]}, "instructions", "invalid_type"),
    ({**HI, "previous_response_id": 5}, "previous_response_id", "invalid_type"),
    ({**HI, "metadata": []}, "metadata", "invalid_type"),
    ({**HI, "metadata": {"a": 1}}, "metadata.a", "invalid_type"),
    ({**HI, "metadata": {"a": None}}, "metadata.a", "invalid_type"),
    ({**HI, "metadata": {"a": "v" * 513}}, "metadata.a", "string_above_max_length"),
    ({**HI, "metadata": {f"k{i}": "" for i in range(17)}}, "metadata", "object_above_max_properties"),
    ({**HI, "safety_identifier": "s" * 129}, "safety_identifier", "string_above_max_length"),
    ({**HI, "prompt_cache_key": NAME_TOO_LONG}, "prompt_cache_key", "string_above_max_length"),
    ({**HI, "service_tier": "gold"}, "service_tier", "invalid_value"),
    ({**HI, "truncation": "sometimes"}, "truncation", "invalid_value"),
    ({**HI, "background": "no"}, "background", "invalid_type"),
    ({**HI, "include": "all"}, "include", "invalid_type"),
    ({**HI, "reasoning": {"effort": "heroic"}}, "reasoning.effort", "invalid_value"),
    ({**HI, "reasoning": {"depth": 1}}, "reasoning.depth", "unknown_parameter"),
    ({**HI, "reasoning": {"context": "some_turns"}}, "reasoning.context", "invalid_value"),
    ({**HI, "reasoning": {"summary": "poetic"}}, "reasoning.summary", "invalid_value"),
    ({**HI, "prompt_cache_options": {"mode": "magic"}}, "prompt_cache_options.mode", "invalid_value"),
    ({**HI, "prompt_cache_options": {"ttl": 30}}, "prompt_cache_options.ttl", "invalid_type"),
    ({**HI, "prompt_cache_retention": "1h"}, "prompt_cache_retention", "invalid_value"),
    ({**HI, "image": {"context_compression": True}}, "image.context_compression", "invalid_type"),
    ({**HI, "access_programs": {"cyber": "x"}}, "access_programs.cyber", "invalid_value"),
    ({**HI, "generate": "no"}, "generate", "invalid_type"),
    ({**HI, "prompt": "pmpt_1"}, "prompt", "invalid_type"),
    ({**HI, "prompt": {"version": "1"}}, "prompt.id", "missing_required_parameter"),
    ({**HI, "prompt": {"id": "pmpt_1", "variables": {"a": 1}}}, "prompt.variables.a", "invalid_type"),
    ({**HI, "moderation": {}}, "moderation.model", "missing_required_parameter"),
    (
        {**HI, "moderation": {"model": "m", "policy": {"input": {"mode": "warn"}}}},
        "moderation.policy.input.mode",
        "invalid_value",
    ),
    ({**HI, "moderation": {"model": "m"}, "generate": False}, "moderation", "invalid_value"),
    ({**HI, "top_k": 1.5}, "top_k", "invalid_type"),
    ({**HI, "min_p": 2}, "min_p", "decimal_above_max_value"),
    ({**HI, "chat_template_kwargs": []}, "chat_template_kwargs", "invalid_type"),
    ({**HI, "text": {"format": {"type": "xml"}}}, "text.format.type", "invalid_value"),
    ({**HI, "text": {"format": {}}}, "text.format.type", "missing_required_parameter"),
    ({**HI, "text": {"format": {"type": 5}}}, "text.format.type", "invalid_type"),
    ({**HI, "text": {"format": {"type": "json_schema"}}}, "text.format.name", "missing_required_parameter"),
    ({**HI, "text": "plain"}, "text", "invalid_type"),
    ({**HI, "stream_options": {"include_usage": True}}, "stream_options.include_usage", "unknown_parameter"),
    ({**HI, "tools": {}}, "tools", "invalid_type"),
    ({**HI, "tools": ["look"]}, "tools[0]", "invalid_type"),
    ({**HI, "tools": [{"name": "look"}]}, "tools[0].type", "missing_required_parameter"),
    ({**HI, "tools": [{"type": ["function"]}]}, "tools[0].type", "invalid_type"),
    ({**HI, "tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter"),
    (
        {**HI, "tools": [{"type": "function", "function": {"name": "look"}}]},
        "tools[0].name",
        "missing_required_parameter",
    ),
    ({**HI, "tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "invalid_value"),
    ({**HI, "tools": [{"type": "function", "name": NAME_TOO_LONG}]}, "tools[0].name", "string_above_max_length"),
    ({**HI, "tools": [{"type": "function", "name": "a", "parameters": "x"}]}, "tools[0].parameters", "invalid_type"),
    ({**HI, "tools": [{"type": "nonsense"}]}, "tools[0].type", "invalid_value"),
    (
        {**HI, "tools": [{"type": "code_interpreter", "container": {"type": "moon"}}]},
        "tools[0].container.type",
        "invalid_value",
    ),
    ({**HI, "tool_choice": {"type": "nonsense"}}, "tool_choice.type", "invalid_value"),
    ({**HI, "tool_choice": {"name": "look"}}, "tool_choice.type", "missing_required_parameter"),
    ({**HI, "tools": [{"type": "local_shell"}] * 1_001}, "tools", "array_above_max_length"),
    ({**HI, "tool_choice": "maybe"}, "tool_choice", "invalid_value"),
    ({**HI, "tool_choice": 1}, "tool_choice", "invalid_type"),
    ({**HI, "previous_response_id": "resp_unknown"}, "previous_response_id", "previous_response_not_found"),
    # NUL characters of a body are dropped.
    ({**HI, "previous_response_id": "resp_\x00"}, "previous_response_id", "previous_response_not_found"),
]


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize(("body", "param", "code"), TABLE)
def test_an_invalid_body_is_rejected_with_param_and_code(
    api: Api, stream: bool, body: dict[str, Any], param: str | None, code: str | None
) -> None:
    wanted = {"stream": True} if stream else {}
    assert error(api.post("/responses", {**wanted, **body})) == (400, param, code)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"moderation": 1}, {"include": 1}),
        ({"metadata": 1}, {"text": 1}),
        ({"tool_choice": 1}, {"store": 1}),
        ({"max_tool_calls": 0}, {"reasoning": 1}),
        ({"prompt_cache_options": 1}, {"prompt_cache_key": 1}),
        ({"service_tier": 1}, {"top_logprobs": 99}),
        ({"top_logprobs": 99}, {"model": 1}),
    ],
)
def test_the_defect_that_openai_would_report_first_is_reported(
    api: Api, first: dict[str, Any], second: dict[str, Any]
) -> None:
    named = error(api.post("/responses", {**HI, **second, **first}))[1]
    assert [named] == list(first)


@pytest.mark.parametrize("path", ["/responses", "/chat/completions"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"{'model': 'm'}",
        b'{"model": "m", "input": "Hi",}',
        b'{"model": "m", "input": "\xff"}',
        b'{"model": "m", "input": "\\ud800"}',
        b'{"model": "m", "stream": true, "input": "\\udfff"}',
        b'{"model": "m", "input": "Hi", "temperature": NaN}',
        b'{"model": "m", "input": "Hi", "temperature": Infinity}',
        b'{"model": "m", "input": "tab\t"}',
        b"[" * DEEP + b"]" * DEEP,
        b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    ],
)
def test_a_body_that_is_not_json_is_rejected(api: Api, path: str, body: bytes) -> None:
    assert error(api.post(path, body)) == (400, None, "invalid_json")


@pytest.mark.parametrize("path", ["/responses", "/chat/completions"])
@pytest.mark.parametrize("body", [b"[]", b'"Hi"', b"1", b"null", b"true"])
def test_a_body_that_is_not_an_object_is_rejected(api: Api, path: str, body: bytes) -> None:
    assert error(api.post(path, body)) == (400, None, "invalid_type")


@pytest.mark.parametrize("number", [b"1e400", b"-1e400", b"1" * 400, b"1e-400", b"9" * 30])
@pytest.mark.parametrize("place", [b'"temperature": %b', b'"max_output_tokens": %b', b'"top_logprobs": %b'])
def test_numbers_out_of_range_are_rejected(api: Api, place: bytes, number: bytes) -> None:
    body = b'{"model": "unknown", "input": "Hi", %b}' % (place % number)
    status, param, _ = error(api.post("/responses", body))
    assert (status, param in {None, "temperature", "max_output_tokens", "top_logprobs", "model"}) == (400, True)


def test_huge_numbers_in_tool_schemas_are_stored_unchanged(api: Api, script: Script) -> None:
    script.say("Hello")
    parameters = (
        b'{"a": 123456789012345678901234567890, "b": 1.7976931348623157e308, "c": -0.0, "d": 18446744073709551615}'
    )
    tool = b'{"type": "function", "name": "look", "parameters": %b}' % parameters
    body = b'{"model": "%b", "input": "Hi", "tools": [%b]}' % (script.model.encode(), tool)
    response = ok(api.post("/responses", body))
    assert api.retrieve(response["id"]) == response


@pytest.mark.parametrize("depth", [100, 200, 250, 500, 1000])
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
def test_a_deeply_nested_schema_causes_no_server_error(api: Api, depth: int, stream: bool) -> None:
    schema = b'{"a":' * depth + b"1" + b"}" * depth
    tool = b'{"type": "function", "name": "look", "parameters": %b}' % schema
    wanted = b"true" if stream else b"false"
    answer = api.post("/responses", b'{"model":"unknown","input":"Hi","tools":[%b],"stream":%b}' % (tool, wanted))
    if depth < 128:
        assert "model_not_found" in answer.text
    else:
        assert error(answer) == (400, None, "invalid_value")


@pytest.mark.parametrize("depth", [100, 250, 500, 1000])
def test_a_deeply_nested_schema_causes_no_server_error_in_chat_completions(api: Api, depth: int) -> None:
    schema = b'{"a":' * depth + b"1" + b"}" * depth
    body = b'{"model":"unknown","messages":[{"role":"user","content":"Hi"}],"metadata":%b}' % schema
    assert error(api.post("/chat/completions", body))[0] == 400


def test_nul_characters_are_removed(api: Api, script: Script) -> None:
    script.say("Hel\x00lo")
    response = api.create(model=script.model, input="H\x00i", metadata={"a\x00": "b\x00"}, instructions="\x00")
    assert script.messages[0][-1]["content"] == "Hi"
    assert response["output"][0]["content"][0]["text"] == "Hello"
    assert api.retrieve(response["id"]) == response
    assert response["metadata"] == {"a": "b"}


def test_a_misspelled_parameter_gets_a_suggestion(api: Api) -> None:
    answer = api.post("/responses", {**HI, "temprature": 1})
    assert answer.json()["error"]["message"] == "Unknown parameter: 'temprature'. Did you mean 'temperature'?"


def test_the_parameter_messages_gets_a_hint_at_input(api: Api) -> None:
    answer = api.post("/responses", {"model": "m", "messages": [USER]})
    message = "Unsupported parameter: 'messages'. In the Responses API, this parameter has moved to 'input'."
    assert answer.json()["error"]["message"] == message


@pytest.mark.parametrize("path", ["/responses", "/responses/resp_x", "/responses/resp_x/input_items", "/models"])
def test_an_unsupported_method_gets_405(api: Api, path: str) -> None:
    answer = api.request("PATCH", path)
    assert error(answer)[0] == 405
    assert "GET" in answer.headers["allow"]


@pytest.mark.parametrize(
    "path", ["", "/", "/nothing", "/responses/", "/responses/a/b", "/responses/a/input_items/", "/chat"]
)
def test_an_unknown_url_gets_an_error_envelope(api: Api, path: str) -> None:
    answer = api.get(path)
    assert error(answer) == (404, None, None)
    assert answer.json()["error"]["message"] == f"Invalid URL (GET /v1{path})"


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("/responses", "ends with /v1."),
        ("/chat/completions", "ends with /v1."),
        ("/v1/v1/models", "ends with one /v1."),
    ],
)
def test_a_wrong_base_url_is_named(web: WebProcess, http: httpx2.Client, path: str, advice: str) -> None:
    url = f"{web.url}{path}"
    for answer in (http.post(url, json={"model": "m"}), http.get(url)):
        assert answer.status_code == 404
        assert answer.json()["error"]["message"].endswith(
            f"({answer.request.method} {path}): the base URL of the API {advice}"
        )


def test_unknown_pages_do_not_get_api_errors(web: WebProcess, http: httpx2.Client) -> None:
    answer = http.get(f"{web.url}/unknown")
    assert answer.status_code == 404
    assert "base URL" not in answer.text


@pytest.mark.parametrize("name", ["%ed%a0%80", "%ff", "..%2f..", "x" * 5000, "%27%3b--", "🦀"])
def test_models_with_malformed_names_are_not_found(api: Api, name: str) -> None:
    assert error(api.get(f"/models/{name}"))[0] == 404


@pytest.mark.parametrize("name", ["after", "before", "limit", "order", "status", "created_after", "created_before"])
@pytest.mark.parametrize("value", ["%00", "%ff", "x%00y", "99999999999999999999", "-1", "nan", "inf", "1e300", "[]"])
def test_malformed_query_parameters_are_client_errors(api: Api, name: str, value: str) -> None:
    status = api.get(f"/responses?{name}={value}").status_code
    assert status in {200, 400, 404}


@pytest.mark.parametrize("name", ["model", "metadata[a]", "metadata[%00]", "metadata[]", "conversation_id"])
@pytest.mark.parametrize("value", ["%00", "%ff", "", "x" * 5000])
def test_filters_without_matches_return_an_empty_list(api: Api, name: str, value: str) -> None:
    answer = api.get(f"/responses?{name}={value}")
    assert answer.status_code in {200, 400}


def padded(model: str, size: int, **more: Any) -> bytes:
    """Return a body of about this size with an image."""
    image = {"type": "input_image", "image_url": "data:image/png;base64,"}
    asks = {"model": model, "input": [{"role": "user", "content": [image] * -(-size // (16 * MIB))}], **more}
    raw = orjson.dumps(asks)
    each = (size - len(raw)) // (-(-size // (16 * MIB))) // 4 * 4
    return raw.replace(b";base64,", b";base64," + b"A" * each)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
def test_a_body_of_20_mebibytes_is_accepted(api: Api, script: Script, stream: bool) -> None:
    script.say("Nice.")
    answer = api.post("/responses", padded(script.model, 20 * MIB, stream=stream))
    assert answer.status_code == 200
    assert "Nice." in answer.text
    urls = [part["image_url"]["url"] for part in script.messages[0][0]["content"]]
    assert sum(map(len, urls)) > 19 * MIB


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/responses", "/chat/completions"])
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
def test_a_body_beyond_64_mebibytes_is_rejected(api: Api, path: str, stream: bool) -> None:
    answer = api.post(path, padded("m", 64 * MIB + 16, stream=stream))
    assert error(answer) == (413, None, "request_too_large")


@pytest.mark.parametrize("accept", ["text/html", "application/xml;q=0.9", "garbage", "", "text/event-stream"])
@pytest.mark.parametrize("path", ["/models", "/responses", "/responses/resp_x", "/nothing"])
def test_responses_are_json_for_any_accept_header(api: Api, path: str, accept: str) -> None:
    answer = api.request("GET", path, headers={"Accept": accept})
    assert (answer.status_code, answer.headers["content-type"]) == (200 if path in LISTS else 404, "application/json")


def test_a_json_key_that_looks_like_a_union_tag_is_rejected(api: Api) -> None:
    item = {"role": "user", "content": "Hi", "tag:a": 1, "tag:b": 2}
    answer = api.post("/responses", {"model": "m", "input": [item]})
    assert error(answer) == (400, "input[0].tag:a", "unknown_parameter")


def test_too_many_query_parameters_are_rejected(api: Api) -> None:
    assert error(api.request("GET", "/responses?" + "a&" * 1500))[0] == 400


def test_a_huge_invalid_list_is_rejected_quickly(api: Api) -> None:
    answer = api.post("/responses", {"model": "m", "input": [0] * 200_000})
    assert error(answer)[0] == 400
    assert answer.elapsed.total_seconds() < 2


def test_a_large_body_without_a_valid_key_is_rejected_early(web: WebProcess, http: httpx2.Client) -> None:
    stranger = Api(http, url=web.url, secret="sk-nobody")
    assert error(stranger.post("/responses", b"x" * 2_000_000)) == (401, None, "invalid_api_key")
