"""Maps errors that a Responses upstream reports inside its answer to failures for clients."""

import regex

from kernel.errors import Failure
from responses.providers.clients import failure_from_status

# Errors that the client can fix, so it gets the upstream's own code and message. All others get general messages,
# which reveal nothing about the upstream.
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
# HTTP status of errors that are reported inside a stream, where there is no status. Some servers put the name in
# `code`, others in `type`.
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
_MAX_MESSAGE = 500


def failure_from_error(error: object) -> Failure:
    """Return the failure for the error object of an `error` event, of `response.error` or of an HTTP body."""
    details = error if isinstance(error, dict) else {"message": error}
    code, kind = details.get("code"), details.get("type")
    if isinstance(code, int):
        return failure_from_status(code, details)
    if code in _REQUEST:
        message = str(details.get("message") or "")[:_MAX_MESSAGE]
        return Failure(code=code, message=f"The model's server rejected the request: {message}", status=400)
    for name in (code, kind):
        if name in _STATUS:
            return failure_from_status(_STATUS[name], details)
    # An unknown code may be any string; only one that looks like a code is shown.
    named = f" ({code})" if isinstance(code, str) and _NAME.fullmatch(code) else ""
    return Failure(code="server_error", message=f"The model's server failed{named}.")
