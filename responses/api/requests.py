"""What views and streams read off a request, the same way for both."""

from typing import Any, cast

from django.http import QueryDict
from rest_framework.request import Request

from kernel.asgi import Scope, header
from kernel.errors import InvalidType, InvalidValue, UnknownParameter, UnsupportedParameter
from kernel.query import nested_values, reject_unknown, unix_time
from kernel.validation import parse_json
from responses.models import Status
from responses.runs.ledger import RequestInfo
from responses.runs.selectors import ResponseFilter
from tenants.principal import Principal

_FILTERS = ("model", "status", "conversation_id", "created_after", "created_before", "metadata[…]")
RETRIEVAL = ("stream", "starting_after", "include_obfuscation", "include", "include[]")
"""What the query of `GET /v1/responses/{id}` may hold."""


def info(scope: Scope) -> RequestInfo:
    """The ids of a request, for rows and logs."""
    return RequestInfo(request_id=scope["request_id"], client_request_id=header(scope, b"x-client-request-id"))


def scope_of(request: Request) -> Scope:
    """The ASGI scope behind a DRF request."""
    return cast("Scope", cast("Any", request._request).scope)  # noqa: SLF001 - DRF has no public name for it


def principal_of(request: Request) -> Principal:
    """Who is calling; DRF calls it the user."""
    return cast("Principal", request.user)


def response_filter(query: QueryDict) -> ResponseFilter:
    """The filters of `GET /v1/responses`."""
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


def refuse_unsupported(query: QueryDict, *names: str) -> None:
    """Refuse query parameters that the wire knows and this server does not; `stream=false` asks for nothing."""
    for name in names:
        if name in query and query[name] not in {"", "false"}:
            raise UnsupportedParameter(f"The parameter '{name}' is not supported by this server.", param=name)


def refuse_body(scope: Scope) -> None:
    """Refuse parameters where there are none; SDKs send no body at all, or an empty object."""
    if scope["body"].strip():
        for name in parse_json(scope["body"]):
            raise UnknownParameter(name)


def flag(query: QueryDict, name: str, *, default: bool) -> bool:
    """A boolean, as a query writes it."""
    text = query.get(name) or str(default).lower()
    if text not in {"true", "false"}:
        raise InvalidType(name, expected="a boolean", got="a string")
    return text == "true"


def sequence_number(query: QueryDict) -> int:
    """`starting_after`: the number of the last event that the client has; -1 when it has none."""
    text = query.get("starting_after")
    if text is None:
        return -1
    if not text.isascii() or not text.isdigit():
        raise InvalidType("starting_after", expected="an integer", got="a string")
    return int(text[:9])
