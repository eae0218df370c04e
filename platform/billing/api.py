"""Endpoints of `/v1/organization/usage` and `/v1/organization/costs`."""

from rest_framework.response import Response

from billing.reports import kinds
from billing.reports.kinds import UsageKind
from billing.reports.query import UsageQuery, usage_argument
from billing.reports.report import usage_page
from core.http.endpoints import (
    BOOLEAN,
    INTEGER,
    NULLABLE_INTEGER,
    NULLABLE_STRING,
    UNIX_TIME,
    ApiObject,
    Endpoint,
    Schema,
)
from tenants.models import Scope
from tenants.views import ApiRequest, ApiView

_NOTE = "the team's usage; an admin key with `admin.usage.read` sees every team. Buckets are whole"
_AMOUNT: Schema = {
    "type": ["object", "null"],
    "description": "US dollars, exact; null if no call had a price.",
    "properties": {"value": {"type": "number"}, "currency": {"const": "usd"}},
}
_GROUP_SCHEMAS: dict[str, Schema] = {"batch": {"type": ["boolean", "null"]}}


def _page_of(kind: UsageKind, figures: dict[str, Schema]) -> ApiObject:
    name = "".join(part.capitalize() for part in kind.name.split("_"))
    groups = {group: _GROUP_SCHEMAS.get(group, NULLABLE_STRING) for group in kind.groups}
    result = ApiObject.of(
        f"Usage{name}Result",
        {"object": {"const": kind.result}, **figures, **groups},
        description="The usage of one group in a time bucket.",
    )
    bucket = ApiObject.of(
        f"Usage{name}Bucket",
        {
            "object": {"const": "bucket"},
            "start_time": UNIX_TIME,
            "end_time": UNIX_TIME,
            "results": {"type": "array", "items": result},
        },
        description="The usage of one time bucket.",
    )
    return ApiObject.of(
        f"Usage{name}Page",
        {
            "object": {"const": "page"},
            "data": {
                "type": "array",
                "items": bucket,
                "description": "The buckets of the page, empty ones included.",
            },
            "has_more": BOOLEAN,
            "next_page": NULLABLE_STRING,
        },
        description="A page of time buckets.",
    )


def _figures(kind: UsageKind) -> dict[str, Schema]:
    """Return the schemas of the figures of a kind, which are integers."""
    sums = dict.fromkeys([*kind.measures, "usage_bytes", "sessions"], 0)
    return dict.fromkeys(kind.figures(sums), INTEGER)


_COSTS = _page_of(
    kinds.COSTS,
    {
        "amount": _AMOUNT,
        "quantity": NULLABLE_INTEGER,
        "quantity_unit": NULLABLE_STRING,
        "unpriced_requests": INTEGER,
    },
)


def _usage_view(kind: UsageKind) -> type[ApiView]:
    """Return the view of one kind of usage."""

    class UsageView(ApiView, path=f"organization/usage/{kind.name}"):
        @Endpoint(
            Scope.USAGE_READ,
            f"Get usage of {kind.name.replace('_', ' ')}",
            query=(usage_argument(kind),),
            returns=_page_of(kind, _figures(kind)),
            errors=(400, 401, 403),
            note=_NOTE,
        )
        def get(self, request: ApiRequest, usage: UsageQuery) -> Response:
            return Response(usage_page(usage, principal=request.principal))

    return UsageView


CompletionsView = _usage_view(kinds.COMPLETIONS)
EmbeddingsView = _usage_view(kinds.EMBEDDINGS)
ModerationsView = _usage_view(kinds.MODERATIONS)
ImagesView = _usage_view(kinds.IMAGES)
AudioSpeechesView = _usage_view(kinds.AUDIO_SPEECHES)
AudioTranscriptionsView = _usage_view(kinds.AUDIO_TRANSCRIPTIONS)
VectorStoresView = _usage_view(kinds.VECTOR_STORES)
CodeInterpreterSessionsView = _usage_view(kinds.CODE_INTERPRETER_SESSIONS)
FileSearchCallsView = _usage_view(kinds.FILE_SEARCH_CALLS)
WebSearchCallsView = _usage_view(kinds.WEB_SEARCH_CALLS)


class CostsView(ApiView, path="organization/costs"):
    """Costs in US dollars."""

    @Endpoint(
        Scope.USAGE_READ,
        "Get costs",
        query=(usage_argument(kinds.COSTS),),
        returns=_COSTS,
        errors=(400, 401, 403),
        note=f"{_NOTE}. Requests without a price are in `unpriced_requests`, not in the amount",
    )
    def get(self, request: ApiRequest, usage: UsageQuery) -> Response:
        return Response(usage_page(usage, principal=request.principal))
