"""Anthropic's error envelope: conversion of errors from any part of this server."""

from collections.abc import Mapping
from typing import Any

import orjson

from core.errors import (
    ApiError,
    BadRequest,
    ContextTooLong,
    ModelNotFound,
    NotFound,
    Overloaded,
    RateLimited,
    ServerError,
    UnsupportedParameter,
    UpstreamTimeout,
    UpstreamUnreachable,
)

# Anthropic's status for a model that is overloaded.
_OVERLOADED = 529
_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    _OVERLOADED: "overloaded_error",
}
_STATUSES = {503: _OVERLOADED}
# Anthropic's statuses and words where clients depend on them.
_CODES: dict[str | None, int] = {ModelNotFound.default_code: NotFound.status}
_FAILURES: dict[str | None, type[ApiError]] = {kind.default_code: kind for kind in (RateLimited, Overloaded)}
_FAILURES |= {kind.default_code: Overloaded for kind in (UpstreamUnreachable, UpstreamTimeout)}
_TOO_LONG = "prompt is too long: "
Detail = Mapping[str, Any]


def convert(status: int, detail: Detail, *, request_id: str | None = None) -> tuple[int, dict[str, Any]]:
    """Return Anthropic's status and body for an error of OpenAI's format."""
    code, param, message = detail.get("code"), detail.get("param"), str(detail.get("message") or "")
    status = _CODES.get(code, _STATUSES.get(status, status))
    if code == ContextTooLong.default_code:
        # Coding agents recognize this error by its first words, and then shorten the conversation.
        message = _TOO_LONG + message
    elif param and f"'{param}'" not in message and str(param) not in message:
        message = f"{param}: {message}"
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    error: dict[str, Any] = {"type": kind, "message": message}
    if (param, code) == ("thread", UnsupportedParameter.default_code):
        # With this code, the SDK sends the whole conversation instead of a thread.
        error["details"] = {"error_code": "thread_unsupported_request"}
    body: dict[str, Any] = {"type": "error", "error": error}
    return status, body if request_id is None else {**body, "request_id": request_id}


def event(error: ApiError) -> bytes:
    """Return an error as the last event of a stream."""
    _, body = convert(error.status, error.detail())
    return b"event: error\ndata: %b\n\n" % orjson.dumps(body)


def event_of(detail: Detail) -> bytes:
    """Return the error of a run as the last event of a stream."""
    kind = _FAILURES.get(detail.get("code"), BadRequest if detail.get("type") == BadRequest.type else ServerError)
    _, body = convert(kind.status, detail)
    return b"event: error\ndata: %b\n\n" % orjson.dumps(body)
