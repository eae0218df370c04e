"""Query parameters of responses, and request ids. Used by views and by streams."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.http import QueryDict

from core.errors import InvalidType
from core.http.asgi import Scope, header
from core.http.endpoints import INTEGER, STRING
from core.http.query import METADATA_FILTER, QueryArgument, choice, nested_values, parameter, unix_time
from idempotency.http import IS_KEYED
from responses.models import Status
from responses.runs.identity import RequestInfo
from responses.runs.selectors import ResponseFilter

STREAMED = "Server-sent events if `stream` is true"
FORWARDED = (400, 401, 403, 413, 429, 500, 503)
"""Error statuses of endpoints that forward requests to an upstream and return its errors."""


def info_of(scope: Scope) -> RequestInfo:
    """Return the ids of a request, for rows and logs."""
    return RequestInfo(
        request_id=scope["request_id"],
        client_request_id=header(scope, b"x-client-request-id"),
        has_key=scope.get(IS_KEYED, False),
    )


def warning_headers(warnings: Sequence[str]) -> dict[str, str]:
    """Return the header that tells the client which parts of its request were left out."""
    return {"x-warning": " ".join(warnings)} if warnings else {}


RESPONSE_FILTERS = QueryArgument(
    "filters",
    [
        parameter("model", STRING),
        parameter("status", {"enum": list(Status.values)}),
        parameter("conversation_id", STRING),
        parameter("created_after", INTEGER),
        parameter("created_before", INTEGER),
        METADATA_FILTER,
        parameter("safety_identifier", STRING),
        parameter("user", STRING),
        parameter("error_code", STRING),
        parameter("request_id", STRING),
    ],
    lambda query: ResponseFilter(
        model=query.get("model"),
        status=choice(query, "status", Status.values),
        conversation_id=query.get("conversation_id"),
        created_after=unix_time(query, "created_after"),
        created_before=unix_time(query, "created_before"),
        metadata=nested_values(query, "metadata"),
        # A response has one end user, whichever of the two parameters has named it.
        end_users=tuple(filter(None, (query.get("safety_identifier"), query.get("user")))),
        error_code=query.get("error_code"),
        request_id=query.get("request_id"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Options for streaming a stored response. Only events with numbers above `after` are sent; -1 means all."""

    after: int
    obfuscation: bool


def _replay(query: QueryDict) -> Replay:
    _flag(query, "stream", default=False)
    obfuscation, after = _flag(query, "include_obfuscation", default=True), query.get("starting_after")
    if after is not None and not (after.isascii() and after.isdigit()):
        raise InvalidType("starting_after", expected="an integer", got="a string")
    # Larger numbers all mean "after the end", and Python limits the number of digits that `int` accepts.
    return Replay(after=-1 if after is None else int(after[:9]), obfuscation=obfuscation)


def _flag(query: QueryDict, name: str, *, default: bool) -> bool:
    text = query.get(name) or str(default).lower()
    if text not in {"true", "false"}:
        raise InvalidType(name, expected="a boolean", got="a string")
    return text == "true"


# The last two parameters affect only streams, but an invalid value is rejected in any case.
REPLAY = QueryArgument(
    "replay",
    [
        parameter("stream", {"type": "boolean", "default": False}),
        parameter("starting_after", {"type": "integer", "minimum": 0}),
        parameter("include_obfuscation", {"type": "boolean", "default": True}),
    ],
    _replay,
)
