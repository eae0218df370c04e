"""Maps errors that a Responses upstream reports inside its answer to failures for clients."""

import regex

from kernel.errors import UPSTREAM_REJECTIONS, Failure
from responses.providers.clients import failure_from_status

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
    # Errors that the client can fix, so it gets the upstream's own code and message. All others get general messages,
    # which reveal nothing about the upstream.
    if code in UPSTREAM_REJECTIONS:
        message = str(details.get("message") or "")[:_MAX_MESSAGE]
        return Failure(code=code, message=f"The model's server rejected the request: {message}", status=400)
    for name in (code, kind):
        if name in _STATUS:
            return failure_from_status(_STATUS[name], details)
    # An unknown code may be any string; only one that looks like a code is shown.
    named = f" ({code})" if isinstance(code, str) and _NAME.fullmatch(code) else ""
    return Failure(code="server_error", message=f"The model's server failed{named}.")
