"""Errors of the demo upstream: OpenAI's error object with status and parameter for each bad request."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from demo_upstream.models import LISTED
from tests.support.demo_upstream import Demo, talking

TOOL = {"type": "function", "function": {"name": "get_time"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
USER = {"role": "user", "content": "hi"}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "noon"}


@pytest.fixture
async def demo() -> AsyncIterator[Demo]:
    async with talking() as demo:
        yield demo


@pytest.mark.parametrize(
    ("parameters", "param", "code"),
    [
        ({"n": 2}, "n", "unsupported_value"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"temperature": "1"}, "temperature", "invalid_type"),
        ({"stream": "yes"}, "stream", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens", "invalid_parameter_combination"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"stream": True, "stream_options": {"other": 1}}, "stream_options.other", "unknown_parameter"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"functions": []}, "functions", "unknown_parameter"),
        ({"audio": {}}, "audio", "unknown_parameter"),
        ({"modalities": ["audio"]}, "modalities[0]", "invalid_value"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "invalid_value"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing_required_parameter"),
        ({"tool_choice": "auto"}, "tool_choice", "invalid_value"),
        ({"tools": [TOOL], "tool_choice": "always"}, "tool_choice.type", "invalid_value"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice", "invalid_value"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}},
            "tool_choice",
            "invalid_value",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "invalid_value"),
        ({"tools": [{"type": "function", "name": "f"}]}, "tools[0].function", "missing_required_parameter"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": "hi"}, "messages", "invalid_type"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0]", "invalid_value"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0]", "invalid_value"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "video"}]}]},
            "messages[0].content[0].type",
            "invalid_value",
        ),
        ({"messages": [USER, {"role": "tool", "content": "noon"}]}, "messages[1]", "invalid_value"),
        ({"messages": [USER, RESULT]}, "messages[1]", "invalid_value"),
        ({"messages": [USER, CALLING, USER]}, "messages[2]", "invalid_value"),
        ({"messages": [USER, CALLING, RESULT, RESULT]}, "messages[3]", "invalid_value"),
        ({"messages": [USER, CALLING]}, "messages", "invalid_value"),
        ({"model": 5}, "model", "invalid_type"),
        ({"model": "demo-embedding"}, "model", "unsupported_value"),
    ],
)
async def test_an_error_names_the_invalid_parameter(
    demo: Demo, parameters: dict[str, Any], param: str, code: str
) -> None:
    body = {"model": "demo-d0", "messages": [USER], **parameters}
    answer = await demo.post("/chat/completions", body)
    error = answer.json["error"]
    assert (answer.status, error["param"], error["code"]) == (400, param, code)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("name", ["gpt-5", "demo-", "demo-d", "demo-d123456", "demo-error-200", "demo-error-600", ""])
async def test_an_unknown_model_is_rejected(demo: Demo, name: str) -> None:
    answer = await demo.refusal("hi", model=name)
    error = answer.json["error"]
    assert (answer.status, error["param"], error["code"]) == (404, "model", "model_not_found")


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"model": "\\ud800"}'])
async def test_a_body_that_is_not_json_is_rejected(demo: Demo, body: bytes) -> None:
    answer = await demo.post("/chat/completions", body)
    assert (answer.status, answer.json["error"]["code"]) == (400, "invalid_json")


async def test_a_body_that_is_not_an_object_is_rejected(demo: Demo) -> None:
    answer = await demo.post("/chat/completions", [1])
    assert (answer.status, answer.json["error"]["param"]) == (400, None)


async def test_an_error_names_the_missing_parameter(demo: Demo) -> None:
    answer = await demo.post("/chat/completions", {"messages": [USER]})
    assert (answer.json["error"]["param"], answer.json["error"]["code"]) == ("model", "missing_required_parameter")


async def test_null_counts_as_absent_and_replayed_fields_are_ignored(demo: Demo) -> None:
    history: list[dict[str, Any]] = [
        USER,
        {"role": "assistant", "content": "ok", "refusal": None, "annotations": []},
        USER,
    ]
    nothing = dict.fromkeys(["tools", "tool_choice", "stop", "temperature", "response_format", "n", "stream_options"])
    assert await demo.ask(history, **nothing)


async def test_an_image_of_many_megabytes_is_accepted(demo: Demo) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 20_000_000}}
    assert "1 image" in await demo.ask([{"role": "user", "content": [image]}])


@pytest.mark.parametrize(("path", "status"), [("/nowhere", 404), ("/v1/chat/completions", 405)])
async def test_unknown_urls_and_methods_get_an_error_object(demo: Demo, path: str, status: int) -> None:
    answer = await demo.get(path)
    assert (answer.status, answer.json["error"]["type"]) == (status, "invalid_request_error")


async def test_the_health_check_succeeds(demo: Demo) -> None:
    assert (await demo.get("/health")).json == {"status": "ok"}


async def test_models_are_listed_and_retrieved(demo: Demo) -> None:
    listed = (await demo.get("/v1/models")).json
    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == list(LISTED)
    for card in listed["data"]:
        assert (await demo.get(f"/v1/models/{card['id']}")).json == card


async def test_a_model_with_a_pace_can_be_retrieved_and_an_unknown_one_cannot(demo: Demo) -> None:
    assert (await demo.get("/v1/models/demo-d50")).json["id"] == "demo-d50"
    assert (await demo.get("/v1/models/gpt-5")).json["error"]["code"] == "model_not_found"
