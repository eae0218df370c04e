"""Integers beyond 32 and 64 bits, in every place of a request: 400 or an answer, never 500."""

from typing import Any

import orjson
import pytest

from server.api_urls import ENDPOINTS
from tenants.prices import PriceList
from tests.support.api import Api, ok
from tests.support.chunks import text
from tests.support.limits import limit
from tests.support.model_capabilities import describe
from tests.support.upstream import Script, stream
from tests.support.vector_stores import use_demo_embeddings

MESSAGES = [{"role": "user", "content": "Hi"}]
# As JSON: more than 32 bits, more than Lua's exact integers, more than 64 bits, more than floats.
NUMBERS = [
    "2147483648",
    "1000000000000000",
    "18446744073709551615",
    "1" + "0" * 30,
    "1" + "0" * 5000,
    "1e400",
    "-1e400",
]
MARK = '"\u2603"'

FIELDS: list[tuple[str, dict[str, Any], str]] = [
    ("/responses", {"model": "m", "input": "Hi", "max_output_tokens": "\u2603"}, "max_output_tokens"),
    ("/responses", {"model": "m", "input": "Hi", "max_tool_calls": "\u2603"}, "max_tool_calls"),
    ("/responses", {"model": "m", "input": "Hi", "top_logprobs": "\u2603"}, "top_logprobs"),
    (
        "/responses",
        {"model": "m", "input": "Hi", "context_management": [{"type": "compaction", "compact_threshold": "\u2603"}]},
        "context_management[0].compact_threshold",
    ),
    (
        "/responses",
        {"model": "m", "input": "Hi", "tools": [{"type": "image_generation", "frame_count": "\u2603"}]},
        "tools[0].frame_count",
    ),
    ("/chat/completions", {"model": "m", "messages": MESSAGES, "max_tokens": "\u2603"}, "max_tokens"),
    ("/chat/completions", {"model": "m", "messages": MESSAGES, "max_completion_tokens": "\u2603"}, ""),
    ("/chat/completions", {"model": "m", "messages": MESSAGES, "n": "\u2603"}, "n"),
    ("/completions", {"model": "m", "prompt": "Hi", "max_tokens": "\u2603"}, "max_tokens"),
    ("/completions", {"model": "m", "prompt": "Hi", "best_of": "\u2603"}, "best_of"),
    ("/completions", {"model": "m", "prompt": [0, "\u2603"]}, "prompt[1]"),
    ("/embeddings", {"model": "m", "input": "Hi", "dimensions": "\u2603"}, "dimensions"),
    ("/embeddings", {"model": "m", "input": [1, "\u2603"]}, "input[1]"),
    ("/images/generations", {"model": "m", "prompt": "Hi", "n": "\u2603"}, "n"),
    ("/images/generations", {"model": "m", "prompt": "Hi", "partial_images": "\u2603"}, "partial_images"),
    ("/uploads", {"bytes": "\u2603", "filename": "a", "mime_type": "a/b", "purpose": "user_data"}, "bytes"),
    ("/messages", {"model": "m", "messages": MESSAGES, "max_tokens": "\u2603"}, "max_tokens"),
    ("/messages", {"model": "m", "messages": MESSAGES, "max_tokens": 9, "top_k": "\u2603"}, "top_k"),
    ("/containers", {"name": "a", "expires_after": {"anchor": "last_active_at", "minutes": "\u2603"}}, ""),
    ("/vector_stores", {"expires_after": {"anchor": "last_active_at", "days": "\u2603"}}, "expires_after.days"),
    ("/batches", {"input_file_id": "file-1", "endpoint": "/v1/responses", "completion_window": "24h",
                  "output_expires_after": {"anchor": "created_at", "seconds": "\u2603"}},
     "output_expires_after.seconds"),
]  # fmt: skip


def with_number(body: dict[str, Any], number: str) -> bytes:
    return orjson.dumps(body).replace(MARK.encode(), number.encode())


@pytest.mark.parametrize("number", NUMBERS, ids=range(len(NUMBERS)))
def test_a_large_integer_in_a_body_is_refused(api: Api, script: Script, number: str) -> None:
    limit(api.caller, budget="900000", tokens_per_minute=1000)
    for path, body, param in FIELDS:
        named = {**body, "model": script.model} if "model" in body else body
        answer = api.post(path, with_number(named, number))
        if path == "/uploads" and answer.status_code == 413:
            continue  # sizes of files have more than 32 bits
        assert answer.status_code == 400, (path, param, answer.text)
        if path != "/messages":
            fault = answer.json()["error"]
            is_read = len(number) < 100 and "e" not in number
            assert fault["code"] == ("integer_above_max_value" if is_read else "invalid_json"), (path, param, fault)
            assert fault["param"] == ((param or fault["param"]) if is_read else None)


QUERIES = [
    (endpoint, parameter["name"])
    for endpoint in ENDPOINTS
    for argument in endpoint.query or ()
    for parameter in argument.parameters
    if parameter["schema"].get("type") == "integer"
]


@pytest.mark.slow
@pytest.mark.parametrize("digits", [10, 19, 20, 40, 5000])
def test_an_integer_in_a_query_never_causes_a_server_error(api: Api, admin_api: Api, digits: int) -> None:
    for endpoint, name in QUERIES:
        client = admin_api if endpoint.path.startswith("organization/") else api
        path = endpoint.template.format(**dict.fromkeys(endpoint.ids, "x"))
        for number in ("9" * digits, "-" + "9" * digits):
            answer = client.request(endpoint.method, f"{path}?{name}={number}&start_time=1")
            assert answer.status_code in {200, 400, 404}, (path, name, answer.text)


NUMBERED_IDS = [endpoint for endpoint in ENDPOINTS if endpoint.ids and endpoint.method == "GET"]


@pytest.mark.slow
@pytest.mark.parametrize("digits", [10, 19, 20, 40, 5000])
def test_a_number_in_a_path_never_causes_a_server_error(api: Api, admin_api: Api, digits: int) -> None:
    for endpoint in NUMBERED_IDS:
        client = admin_api if endpoint.path.startswith("organization/") else api
        for prefix in ("", "user-", "audit_log-"):
            path = endpoint.template.format(**dict.fromkeys(endpoint.ids, prefix + "9" * digits))
            assert client.get(path).status_code in {400, 404}, path


FREE: list[tuple[str, dict[str, Any]]] = [
    ("/responses", {"input": "Hi", "metadata": {"a": "\u2603"}}),
    (
        "/responses",
        {
            "input": "Hi",
            "tools": [
                {
                    "type": "function",
                    "name": "f",
                    "strict": False,
                    "parameters": {"type": "object", "properties": {"a": {"type": "integer", "maximum": "\u2603"}}},
                }
            ],
        },
    ),
    (
        "/responses",
        {
            "input": "Hi",
            "text": {
                "format": {
                    "type": "json_schema",
                    "name": "s",
                    "schema": {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": "\u2603"}}},
                }
            },
        },
    ),
    (
        "/responses",
        {"input": [{"type": "computer_call", "call_id": "c", "action": {"type": "move", "x": "\u2603", "y": 1},
                    "pending_safety_checks": [], "status": "completed"}, {"role": "user", "content": "Hi"}]},
    ),
    ("/responses", {"input": "Hi", "prompt": {"id": "pmpt_x", "variables": {"a": "\u2603"}}}),
    ("/chat/completions", {"messages": MESSAGES, "seed": "\u2603"}),
    ("/chat/completions", {"messages": MESSAGES, "logit_bias": {"\u2603": 1, "5": "\u2603"}}),
    ("/chat/completions", {"messages": MESSAGES, "chat_template_kwargs": {"a": ["\u2603"]}}),
    ("/messages", {"messages": MESSAGES, "max_tokens": 9, "tools": [
        {"name": "f", "input_schema": {"type": "object", "properties": {"a": {"maximum": "\u2603"}}}}]}),
    ("/conversations", {"items": [{"role": "user", "content": "Hi"}], "metadata": {"a": "\u2603"}}),
    ("/vector_stores", {"name": "a", "metadata": {"a": "\u2603"}}),
    ("/vector_stores/vs_1/search", {"query": "a", "filters": {"type": "eq", "key": "a", "value": "\u2603"}}),
    ("/vector_stores/vs_1/files", {"file_id": "file-1", "attributes": {"a": "\u2603"}}),
]  # fmt: skip


@pytest.mark.parametrize("number", NUMBERS, ids=range(len(NUMBERS)))
def test_a_large_number_in_free_json_is_accepted_or_refused(
    api: Api, script: Script, demo_url: str, number: str
) -> None:
    use_demo_embeddings(api.caller.team, url=demo_url)
    script.always(stream(*text('{"a": 1}')))
    store = ok(api.post("/vector_stores", {"name": "a"}))["id"]
    for path, body in FREE:
        named = {"model": script.model, **body} if path.startswith(("/responses", "/chat", "/messages")) else body
        answer = api.post(path.replace("vs_1", store), with_number(named, number))
        assert answer.status_code < 500, (path, answer.text)
        if answer.status_code == 200 and path == "/responses":
            assert api.get(f"/responses/{answer.json()['id']}/input_items").status_code == 200


MAXIMA: list[tuple[str, dict[str, Any], str]] = [
    ("/responses", {"input": "Hi"}, "max_output_tokens"),
    ("/chat/completions", {"messages": MESSAGES}, "max_tokens"),
    ("/completions", {"prompt": "Hi"}, "max_tokens"),
    ("/messages", {"messages": MESSAGES}, "max_tokens"),
]


@pytest.mark.parametrize("number", [2**31 - 1, 10**15, 2**53, 2**63 - 1])
def test_a_large_maximum_under_a_hard_budget_is_too_large_or_too_expensive(
    api: Api, script: Script, number: int
) -> None:
    limit(api.caller, budget="1")
    # Without a price it would be refused before its cost is calculated.
    describe(script, prices=PriceList.simple(input="1", output="1"))
    for path, body, param in MAXIMA:
        answer = api.post(path, {"model": script.model, **body, param: number})
        assert answer.status_code == (429 if number < 2**31 else 400), (path, answer.text)


FORMS: list[tuple[str, dict[str, str], str]] = [
    ("/files", {"purpose": "user_data", "expires_after[anchor]": "created_at", "expires_after[seconds]": "9"}, "file"),
    ("/images/edits", {"prompt": "a", "n": "9"}, "image"),
    ("/images/edits", {"prompt": "a", "output_compression": "9"}, "image"),
    ("/images/edits", {"prompt": "a", "partial_images": "9"}, "image"),
    ("/audio/transcriptions", {"temperature": "9"}, "file"),
    ("/audio/transcriptions", {"chunking_strategy[type]": "server_vad",
                               "chunking_strategy[prefix_padding_ms]": "9"}, "file"),
    ("/audio/transcriptions", {"chunking_strategy": '{"type": "server_vad", "silence_duration_ms": 9}'}, "file"),
    ("/audio/translations", {"temperature": "9"}, "file"),
]  # fmt: skip


@pytest.mark.parametrize("digits", [10, 19, 20, 40, 5000])
def test_a_large_integer_in_a_form_is_refused(api: Api, script: Script, digits: int) -> None:
    for path, fields, file in FORMS:
        large = {name: value.replace("9", "9" * digits) for name, value in fields.items()}
        data = large if path == "/files" else {"model": script.model, **large}
        answer = api.request("POST", path, data=data, files={file: ("a.png", b"x")})
        assert answer.status_code == 400, (path, fields, answer.text)
