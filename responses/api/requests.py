"""Readers of headers, query parameters and credentials, shared by views and streams."""

from typing import Any, cast

from django.http import QueryDict
from rest_framework.request import Request

from kernel.asgi import Scope, header
from kernel.errors import InvalidType, InvalidValue, UnknownParameter, UnsupportedParameter
from kernel.query import nested_values, reject_unknown, unix_time
from kernel.validation import parse_json
from responses.models import Status
from responses.runs.identity import RequestInfo
from responses.runs.selectors import ResponseFilter
from tenants.principal import Principal

_FILTERS = ("model", "status", "conversation_id", "created_after", "created_before", "metadata[…]")
RETRIEVAL = ("stream", "starting_after", "include_obfuscation", "include", "include[]")
"""Query parameters of `GET /v1/responses/{id}`."""


def info_of(scope: Scope) -> RequestInfo:
    """Return the ids of a request, for rows and logs."""
    return RequestInfo(request_id=scope["request_id"], client_request_id=header(scope, b"x-client-request-id"))


def scope_of(request: Request) -> Scope:
    """Return the ASGI scope of a DRF request."""
    return cast("Scope", cast("Any", request._request).scope)  # noqa: SLF001 - DRF has no public name for it


def principal_of(request: Request) -> Principal:
    """Return the principal of an authenticated request."""
    # DRF stores the result of authentication as `user`.
    return cast("Principal", request.user)


def response_filter(query: QueryDict) -> ResponseFilter:
    """Read the filters of `GET /v1/responses`."""
    reject_unknown(query, filters=_FILTERS)
    status = query.get("status")
    if status is not None and status not in Status.values:
        raise InvalidValue.unsupported(status, Status.values, param="status")
    return ResponseFilter(
        model=query.get("model"),
        status=status,
        conversation_id=query.get("conversation_id"),
        created_after=unix_time(query, "created_after"),
        created_before=unix_time(query, "created_before"),
        metadata=nested_values(query, "metadata"),
    )


def reject_unsupported(query: QueryDict, *names: str) -> None:
    """Raise `UnsupportedParameter` for OpenAI's query parameters that this server does not support."""
    for name in names:
        # `stream=false` and empty values do not ask for anything.
        if name in query and query[name] not in {"", "false"}:
            raise UnsupportedParameter(f"The parameter '{name}' is not supported by this server.", param=name)


def reject_body(scope: Scope) -> None:
    """Raise `UnknownParameter` for any parameter; SDKs send no body, or an empty object."""
    if scope["body"].strip():
        for name in parse_json(scope["body"]):
            raise UnknownParameter(name)


def flag(query: QueryDict, name: str, *, default: bool) -> bool:
    """Read a boolean query parameter."""
    text = query.get(name) or str(default).lower()
    if text not in {"true", "false"}:
        raise InvalidType(name, expected="a boolean", got="a string")
    return text == "true"


def sequence_number(query: QueryDict) -> int:
    """Read `starting_after`, the sequence number of the last event that the client has; -1 if it has none."""
    text = query.get("starting_after")
    if text is None:
        return -1
    if not text.isascii() or not text.isdigit():
        raise InvalidType("starting_after", expected="an integer", got="a string")
    # Larger numbers mean the same, "after the end", and Python limits the digits that `int` accepts.
    return int(text[:9])
