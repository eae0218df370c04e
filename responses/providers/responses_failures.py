"""What callers are told of an error that an upstream reports in the course of a response."""

import regex

from kernel.errors import Failure
from responses.providers.clients import failure_of_status

# Whoever sent the request can do something about these, so that they get the upstream's own code and words.
_REQUEST = {
    "invalid_prompt",
    "context_length_exceeded",
    "data_residency_mismatch",
    "bio_policy",
    "misalignment_policy_violation",
    "invalid_image",
    "invalid_image_format",
    "invalid_base64_image",
    "invalid_image_url",
    "image_too_large",
    "image_too_small",
    "image_parse_error",
    "image_content_policy_violation",
    "invalid_image_mode",
    "image_file_too_large",
    "unsupported_image_media_type",
    "empty_image_file",
    "failed_to_download_image",
    "image_file_not_found",
}
_STATUS = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "insufficient_quota": 429,
    "slow_down": 429,
    "invalid_api_key": 401,
    "model_not_found": 404,
    "server_is_overloaded": 503,
    "invalid_request_error": 400,
}
_NAME = regex.compile(r"[a-z_]{1,60}")
_MAX_WORDS = 500


def failure_of_error(error: object) -> Failure:
    """The failure for an error object: that of an `error` event, of `response.error`, or of a body."""
    said = error if isinstance(error, dict) else {"message": error}
    code, kind = said.get("code"), said.get("type")
    if isinstance(code, int):
        return failure_of_status(code, said)
    if code in _REQUEST:
        words = str(said.get("message") or "")[:_MAX_WORDS]
        return Failure(code=code, message=f"The model's server rejected the request: {words}", status=400)
    for name in (code, kind):
        if name in _STATUS:
            return failure_of_status(_STATUS[name], said)
    named = f" ({code})" if isinstance(code, str) and _NAME.fullmatch(code) else ""
    return Failure(code="server_error", message=f"The model's server failed{named}.")
