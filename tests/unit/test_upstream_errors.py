"""Errors of upstreams in every form: the error for the client, and whether it may retry."""

from typing import Any

import pytest

from core.errors import UPSTREAM_REJECTIONS, Failure
from providers.clients import UpstreamFailed
from providers.event_stream import check_chunk, check_event
from providers.upstream_errors import failure_from_error, failure_from_status, parse_error, reported_error

REJECTED = "The model's server rejected the request: "
FAILED = "The model's server failed"
TOO_LONG = "The input is too long for the model: "

SHAPES: dict[str, tuple[Any, str, str]] = {
    "OpenAI": ({"error": {"message": "No.", "type": "invalid_request_error"}}, "invalid_prompt", REJECTED + "No."),
    "old vLLM": (
        {"object": "error", "message": "No.", "type": "BadRequestError", "param": None, "code": 400},
        "invalid_prompt",
        REJECTED + "No.",
    ),
    "Anthropic": (
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        "server_is_overloaded",
        "The model's server is overloaded.",
    ),
    "MiniMax": (
        {"id": "1", "choices": None, "base_resp": {"status_code": 2013, "status_msg": "invalid params"}},
        "invalid_prompt",
        REJECTED + "invalid params",
    ),
    "MiniMax with an unknown number": (
        {"base_resp": {"status_code": 1000, "status_msg": "unknown error"}},
        "server_error",
        f"{FAILED}: unknown error",
    ),
    "a detail": ({"detail": "Something broke."}, "server_error", f"{FAILED}: Something broke."),
    "FastAPI": (
        {"detail": [{"loc": ["body", "messages", 0, "role"], "msg": "Field required", "type": "missing"}]},
        "invalid_prompt",
        REJECTED + "body.messages.0.role: Field required",
    ),
    "an error in a detail": (
        {"detail": {"error": {"message": "No.", "code": 400}}},
        "invalid_prompt",
        REJECTED + "No.",
    ),
    "problem details": ({"title": "Bad Request", "status": 400, "detail": "No."}, "invalid_prompt", REJECTED + "No."),
    "errors": ({"errors": [{"message": "A."}, {"message": "B."}]}, "server_error", f"{FAILED}: A.; B."),
    "Cloudflare": (
        {"success": False, "errors": [{"code": 7000, "message": "No route"}], "messages": [], "result": None},
        "server_error",
        f"{FAILED}: No route",
    ),
    "a list around the object": (
        [{"error": {"code": 400, "message": "Bad key.", "status": "INVALID_ARGUMENT"}}],
        "invalid_prompt",
        REJECTED + "Bad key.",
    ),
    "a list of errors": ([{"error": "A."}, {"error": "B."}], "server_error", f"{FAILED}: A."),
    "a string": ({"error": "Out of memory."}, "server_error", f"{FAILED}: Out of memory."),
    "a name beside a message": (
        {"error": "Bad Request", "message": "Too warm.", "statusCode": 400},
        "invalid_prompt",
        REJECTED + "Too warm.",
    ),
    "a message that is an object": (
        {"error": {"message": {"reason": "cold", "at": 5}, "code": 422}},
        "invalid_prompt",
        REJECTED + '{"reason":"cold","at":5}',
    ),
    "a message with a message": (
        {"error": {"message": {"message": "Inner."}, "code": "400"}},
        "invalid_prompt",
        REJECTED + "Inner.",
    ),
    "a message that is JSON": (
        {"error": {"message": 'litellm: {"error": {"message": "Slow.", "type": "rate_limit_error"}}'}},
        "rate_limit_exceeded",
        "The model's server is receiving too many requests. Please retry.",
    ),
    "OpenRouter": (
        {
            "id": "gen-1",
            "error": {
                "code": 400,
                "message": "Provider returned error",
                "metadata": {"raw": '{"error":{"message":"Too warm."}}', "provider_name": "X"},
            },
        },
        "invalid_prompt",
        REJECTED + "Provider returned error: Too warm.",
    ),
    "OpenRouter in a stream": (
        {
            "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}],
            "error": {"code": 502, "message": "Provider disconnected"},
        },
        "server_error",
        f"{FAILED} (HTTP 502): Provider disconnected",
    ),
    "an error of the choice": (
        {"choices": [{"delta": {}, "error": {"code": 429, "message": "Slow."}, "finish_reason": "error"}]},
        "rate_limit_exceeded",
        "The model's server is receiving too many requests. Please retry.",
    ),
    "only a message": (
        {"message": "Internal error", "code": "boom"},
        "server_error",
        f"{FAILED} (boom): Internal error",
    ),
    "a code without a message": ({"error": {"code": 400}}, "invalid_prompt", "The request was rejected."),
    "an empty object": ({"error": {}}, "server_error", f"{FAILED}."),
    "an error that is true": ({"error": True, "message": "Boom."}, "server_error", f"{FAILED}: Boom."),
    "a traceback": (
        {
            "error": 'Traceback (most recent call last):\n  File "/srv/app/run.py", line 1\nValueError: at http://gpu7:80/x'
        },
        "server_error",
        f"{FAILED}: ValueError: at […]",
    ),
}


def failure_of(document: Any) -> Failure:
    """Return the failure that a chunk raises."""
    with pytest.raises(UpstreamFailed) as caught:
        check_chunk(document, b'"error"')
    return caught.value.failure


@pytest.mark.parametrize("shape", SHAPES)
def test_an_error_of_any_shape_keeps_its_type_and_text(shape: str) -> None:
    document, code, message = SHAPES[shape]
    failure = failure_of(document)
    assert (failure.code, failure.message) == (code, message)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_responses_upstream_reports_the_same_error(shape: str) -> None:
    document, code, message = SHAPES[shape]
    with pytest.raises(UpstreamFailed) as caught:
        check_event(document, b"")
    assert (caught.value.failure.code, caught.value.failure.message) == (code, message)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_text_of_an_upstream_can_be_omitted(shape: str) -> None:
    failure = failure_of(SHAPES[shape][0])
    if failure.general:
        assert failure.message.startswith(failure.general.removesuffix("."))


@pytest.mark.parametrize(
    "document",
    [
        {"choices": [{"delta": {"content": "error"}}], "error": None},
        {"choices": [{"delta": {}}], "base_resp": {"status_code": 0, "status_msg": ""}},
        {"choices": [], "usage": {"prompt_tokens": 1}},
        {"choices": [{"delta": {}, "error": None}], "errors": []},
        {"data": [], "message": "ok"},
        {"message": {"role": "assistant", "content": "Hi"}, "done": True},
        {"type": "ping"},
    ],
)
def test_an_answer_is_not_an_error(document: dict[str, Any]) -> None:
    assert reported_error(document) is None


NAMED: dict[str, list[dict[str, Any]]] = {
    "rate_limit_exceeded": [
        {"type": "rate_limit_error"},
        {"code": "rate_limit_exceeded"},
        {"type": "RateLimitError"},
        {"status": "RESOURCE_EXHAUSTED", "code": 429},
        {"message": "Rate limit reached for requests"},
        {"code": "insufficient_quota"},
        {"code": 402, "message": "Insufficient Balance"},
        {"code": "Throttling.RateQuota", "message": "Requests rate exceeded."},
        {"type": "service_tier_capacity_exceeded", "code": "3505"},
        {"message": "An error occurred (ThrottlingException): Too many tokens, please wait before trying again."},
        {"code": "insufficient_user_quota", "type": "new_api_error"},
    ],
    "server_error": [
        {"code": "invalid_api_key", "message": "sk-1"},
        {"type": "authentication_error"},
        {"code": 401},
        {"code": 403, "message": "No access."},
        {"code": 400, "message": "API key not valid.", "status": "INVALID_ARGUMENT"},
        {"code": 400, "message": "Incorrect API key provided: sk***1."},
        {"code": 400, "message": "Missing or invalid Authorization header.", "status": "INVALID_ARGUMENT"},
    ],
    "model_not_found": [
        {"code": "model_not_found", "type": "invalid_request_error"},
        {"type": "NotFoundError"},
        {"code": 404},
        {"message": "Model Not Exist", "type": "invalid_request_error", "code": "invalid_request_error"},
        {"message": "model 'llama9' not found, try pulling it first"},
        {"message": "The model `a/b-1:free` does not exist.", "code": 400},
        {"message": "a/b is not a valid model ID", "code": 400},
        {"message": "The provided model identifier is invalid.", "code": 400},
    ],
    "content_policy_violation": [
        {"code": "content_filter", "message": "Filtered."},
        {"type": "content_policy_violation"},
        {"code": "data_inspection_failed"},
        {"code": 403, "message": "Your input was flagged for violence."},
        {"type": "invalid_request_error", "message": "Output blocked by content filtering policy"},
        {"code": "OutputTextSensitiveContentDetected", "type": "BadRequest"},
        {"code": 400, "message": "litellm.ContentPolicyViolationError: No."},
    ],
    "server_is_overloaded": [
        {"type": "overloaded_error"},
        {"code": 503},
        {"code": 529},
        {"status": "UNAVAILABLE"},
        {"message": "The model is overloaded. Please try again later."},
    ],
}


@pytest.mark.parametrize("code", NAMED)
def test_named_error_types_are_recognised(code: str) -> None:
    assert {failure_from_error(error).code for error in NAMED[code]} == {code}


def test_an_exhausted_quota_is_not_a_rate_limit() -> None:
    limit = failure_from_status(429, {"error": {"code": "1302", "message": "Too much concurrency."}})
    for text in ("Your account is in arrears.", "Insufficient balance.", "You have used up your allocation."):
        quota = failure_from_status(429, {"error": {"code": "1113", "message": text}})
        assert (quota.status, quota.message == limit.message, "quota" in quota.message) == (429, False, True)


NO_QUOTA: list[tuple[int, dict[str, Any]]] = [
    (400, {"type": "invalid_request_error", "message": "Your credit balance is too low to access the Anthropic API."}),
    (403, {"code": 30001, "message": "Sorry, your account balance is insufficient"}),
    (403, {"error": "Your newly created team doesn't have any credits or licenses yet."}),
    (403, {"code": "AccountOverdueError", "message": "Your account has an overdue balance.", "type": "Forbidden"}),
    (403, {"code": 403, "message": "Key limit exceeded (monthly limit)."}),
    (
        412,
        {"code": "PRECONDITION_FAILED", "message": "Account is suspended, possibly due to reaching the spending limit"},
    ),
    (429, {"error": "Your team has either used all available credits or reached its monthly spending limit."}),
]


@pytest.mark.parametrize(("status", "error"), NO_QUOTA)
def test_an_exhausted_quota_is_recognised_for_every_provider(status: int, error: dict[str, Any]) -> None:
    failure = failure_from_status(status, error)
    assert (failure.status, failure.code, "quota" in failure.message) == (429, "rate_limit_exceeded", True)


FLAGGED: list[tuple[int, dict[str, Any]]] = [
    (400, {"message": "Content Exists Risk", "type": "invalid_request_error", "code": "invalid_request_error"}),
    (400, {"code": "1301", "message": "System detected potentially unsafe or sensitive content in input."}),
    (400, {"code": "1301", "message": "系统检测到输入或生成内容可能包含不安全或敏感内容"}),
    (403, {"code": "The caller does not have permission", "error": "Content violates usage guidelines."}),
]


@pytest.mark.parametrize(("status", "error"), FLAGGED)
def test_a_content_filter_is_recognised_for_every_provider(status: int, error: dict[str, Any]) -> None:
    assert failure_from_status(status, error).code == "content_policy_violation"


def test_an_error_name_takes_precedence_over_the_status() -> None:
    unknown = failure_from_status(400, {"message": "No.", "code": "model_not_found", "type": "invalid_request_error"})
    assert (unknown.code, unknown.param) == ("model_not_found", "model")
    limited = failure_from_status(400, {"message": "No.", "code": "rate_limit_exceeded"})
    assert (limited.code, limited.status) == ("rate_limit_exceeded", 429)


@pytest.mark.parametrize("code", UPSTREAM_REJECTIONS)
def test_codes_of_refusals_are_kept_with_any_status(code: str) -> None:
    error = {"message": "Too small.", "code": code, "type": "invalid_request_error"}
    assert failure_from_status(400, error).code == failure_from_error(error).code == code


def test_the_text_of_an_http_status_is_kept_only_if_the_client_can_act() -> None:
    assert failure_from_status(500, {"message": "Trace"}).message == f"{FAILED} (HTTP 500)."
    assert failure_from_status(422, {"detail": "No."}).message == REJECTED + "No."
    assert failure_from_status(400, "Not like this.").message == REJECTED + "Not like this."
    assert failure_from_status(400, "<html>nginx").message == "The request was rejected."


OVERFLOWS = [
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
    "prompt is too long: 210000 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    "This model's maximum prompt length is 131072 but the request contains 140000 tokens.",
    "Please reduce the length of the messages or completion. Current length is 10000 while limit is 8192",
    "Input is too long for requested model.",
    "too many tokens: size limit exceeded by 100 tokens",
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens",
    "Input validation error: `inputs` must have less than 1024 tokens. Given: 2000",
    "Range of input length should be [1, 30720]",
    "Invalid request: Your request exceeded model token limit: 8192",
    "Prompt exceeds max length",
    "The decoder prompt (length 10000) is longer than the maximum model length of 8192.",
    "The input (10000 tokens) is longer than the model's context length (8192 tokens).",
    "the request exceeds the available context size, try increasing it",
    "Trying to keep the first 5000 tokens when context the overflows. The model is loaded with context length of 4096",
    "Prompt length (5000) exceeds maximum input length (4096).",
    "invalid params, context window exceeds limit (2013)",
    "Request body too large for gpt-4o model. Max size: 8000 tokens.",
    "Requested tokens (3000) exceed context window of 2048",
    "the input token count is 32798 but model only supports up to 32768.",
    "Input length (5000 tokens) exceeds the maximum allowed length (4096 tokens).",
    "Input length 140000 exceeds the maximum length 131072.",
    "Total tokens of image and text exceed max message tokens.",
    "length of prompt_tokens (39962) must be less than max_seq_len (32768).",
    "Number of prompt tokens: 5000 exceeds model max length: 4096",
    "the number of input tokens 5000 cannot exceed the total tokens limit 4096 for this model",
    "max_tokens must be at least 1, got -904.",
]


@pytest.mark.parametrize("words", OVERFLOWS)
def test_a_context_overflow_is_recognised_for_every_provider(words: str) -> None:
    for failure in (failure_from_status(400, {"message": words}), failure_from_error({"message": words, "code": 500})):
        assert (failure.code, failure.param, failure.message) == ("context_length_exceeded", "input", TOO_LONG + words)


@pytest.mark.parametrize(
    "error",
    [
        {"type": "exceed_context_size_error"},
        {"code": "context_length_exceeded"},
        {"type": "ContextWindowExceededError"},
    ],
)
def test_a_context_overflow_is_recognised_by_its_name(error: dict[str, Any]) -> None:
    assert failure_from_error(error).code == "context_length_exceeded"


def test_nested_errors_are_read_up_to_a_limit() -> None:
    error: Any = "deep"
    for _ in range(50):
        error = {"error": error}
    assert parse_error(error).message == ""


@pytest.mark.parametrize("number", [[1002], {"a": 1}, "1002", True])
def test_a_number_of_another_type_does_not_fail(number: object) -> None:
    report = reported_error({"base_resp": {"status_code": number, "status_msg": "Busy."}})
    assert report is not None
    assert report.message == "Busy."
