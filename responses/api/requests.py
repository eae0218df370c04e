"""What views and streams read off a request, the same way for both."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, cast

from django.http import QueryDict
from rest_framework.request import Request

from conversations.items import INCLUDABLE
from kernel.asgi import Scope, header
from kernel.errors import InvalidType, InvalidValue, UnknownParameter, UnsupportedParameter
from responses.ledger import RequestInfo
from responses.models import Status
from responses.selectors import ResponseFilter
from tenants.principal import Principal

_PAGE = ("limit", "order", "after", "before")
_FILTERS = ("model", "status", "conversation_id", "created_after", "created_before", "metadata[…]")


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
    refuse_unknown(query, filters=_FILTERS)
    status = query.get("status")
    if status is not None and status not in Status.values:
        raise InvalidValue.outside(status, Status.values, param="status")
    return ResponseFilter(
        model=query.get("model"),
        status=status,
        conversation_id=query.get("conversation_id"),
        created_after=_moment(query, "created_after"),
        created_before=_moment(query, "created_before"),
        metadata=_nested(query, "metadata"),
    )


def refuse_unknown(query: QueryDict, *, filters: Sequence[str] = (), page: bool = True) -> None:
    """Refuse names that an endpoint does not know: a filter with a slip in its name would show everything."""
    known = (*(_PAGE if page else ()), *filters)
    for name in query:
        plain = "metadata[…]" if name.startswith("metadata[") and name.endswith("]") else name
        if plain not in known:
            near = get_close_matches(name, known, n=1)
            raise UnknownParameter(name, suggestion=near[0] if near else None)


def refuse_unsupported(query: QueryDict, *names: str) -> None:
    """Refuse query parameters that the wire knows and this server does not; `stream=false` asks for nothing."""
    for name in names:
        if name in query and query[name] not in {"", "false"}:
            raise UnsupportedParameter(f"The parameter '{name}' is not supported by this server.", param=name)


def includes(query: QueryDict) -> frozenset[str]:
    """`include[]=a&include[]=b`, `include=a&include=b` and `include=a,b` all ask for the same."""
    given = [*query.getlist("include"), *query.getlist("include[]")]
    names = [name for text in given for name in text.split(",") if name]
    for name in names:
        if name not in INCLUDABLE:
            raise InvalidValue.outside(name, INCLUDABLE, param="include")
    return frozenset(names)


def sequence_number(query: QueryDict) -> int:
    """`starting_after`: the number of the last event that the client has; -1 when it has none."""
    text = query.get("starting_after")
    if text is None:
        return -1
    if not text.isascii() or not text.isdigit():
        raise InvalidType("starting_after", expected="an integer", got="a string")
    return int(text[:9])


def _moment(query: QueryDict, name: str) -> datetime | None:
    text = query.get(name)
    if text is None:
        return None
    try:
        return datetime.fromtimestamp(float(text), UTC)
    except (ValueError, OverflowError, OSError):
        raise InvalidType(name, expected="a Unix time in seconds", got="a string") from None


def _nested(query: Mapping[str, str], name: str) -> dict[str, str]:
    """`metadata[key]=value` → `{key: value}`."""
    opening = f"{name}["
    found = {key: query[key] for key in query if key.startswith(opening) and key.endswith("]")}
    return {key[len(opening) : -1]: value for key, value in found.items()}
