"""Endpoint `/v1/me`: the key of the request."""

from django.http import QueryDict
from rest_framework.response import Response

from core.http.endpoints import (
    BOOLEAN,
    INTEGER,
    NULLABLE_INTEGER,
    STRING,
    UNIX_TIME,
    ApiObject,
    Endpoint,
    Schema,
)
from core.http.query import QueryArgument, parameter
from limits import end_user_of
from server.key_status import key_status
from tenants.views import ApiRequest, ApiView

_STRINGS: Schema = {"type": "array", "items": STRING}
_NUMBER: Schema = {"type": "number"}
_SUBJECT = {"subject": {"enum": ["team", "key", "end_user"]}, "subject_id": STRING}
_KEY = ApiObject.of(
    "MeKey",
    {
        "id": STRING,
        "name": STRING,
        "prefix": STRING,
        "last_four": STRING,
        "created_at": UNIX_TIME,
        "expires_at": NULLABLE_INTEGER,
    },
)
_TEAM: Schema = {
    "type": ["object", "null"],
    "properties": {"id": STRING, "name": STRING, "time_zone": STRING},
    "required": ["id", "name", "time_zone"],
}
_LIMIT = ApiObject.of(
    "MeLimit",
    {
        **_SUBJECT,
        "limit": STRING,
        "value": INTEGER,
        "remaining": NULLABLE_INTEGER,
        "reset_seconds": {"type": ["number", "null"]},
    },
)
_BUDGET = ApiObject.of(
    "MeBudget",
    {
        **_SUBJECT,
        "period": {"enum": ["day", "week", "month"]},
        "is_hard": BOOLEAN,
        **dict.fromkeys(("amount", "spent", "reserved", "remaining"), _NUMBER),
        "currency": {"const": "usd"},
        "period_start": INTEGER,
        "period_end": INTEGER,
    },
)
_ME = ApiObject.of(
    "Me",
    {
        "object": {"const": "me"},
        "key": _KEY,
        "team": _TEAM,
        "scopes": _STRINGS,
        "allowed_models": {"type": ["array", "null"], "items": STRING},
        "denied_models": _STRINGS,
        "allowed_tools": _STRINGS,
        "limits": {"type": "array", "items": _LIMIT},
        "budgets": {"type": "array", "items": _BUDGET},
    },
)


def _end_user(query: QueryDict) -> str:
    return end_user_of(query.get("end_user"))


class MeView(ApiView, path="me"):
    """The key of the request."""

    @Endpoint(
        "",
        "Retrieve the key of the request",
        query=(QueryArgument("end_user", [parameter("end_user", STRING)], _end_user),),
        returns=_ME,
        errors=(400, 401, 503),
        note="any key: its team, scopes, models, tools and expiry, and the remaining limits and budgets",
    )
    def get(self, request: ApiRequest, end_user: str) -> Response:
        return Response(key_status(request.principal, end_user=end_user))
