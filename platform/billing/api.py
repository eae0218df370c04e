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
    result = ApiObject.of(f"Usage{name}Result", {"object": {"const": kind.result}, **figures, **groups})
    bucket = ApiObject.of(
        f"Usage{name}Bucket",
        {
            "object": {"const": "bucket"},
            "start_time": UNIX_TIME,
            "end_time": UNIX_TIME,
            "results": {"type": "array", "items": result},
        },
    )
    return ApiObject.of(
        f"Usage{name}Page",
        {
            "object": {"const": "page"},
            "data": {"type": "array", "items": bucket},
            "has_more": BOOLEAN,
            "next_page": NULLABLE_STRING,
        },
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


def _usage(kind: UsageKind, summary: str) -> Endpoint:
    return Endpoint(
        Scope.USAGE_READ,
        summary,
        query=(usage_argument(kind),),
        returns=_page_of(kind, _figures(kind)),
        errors=(400, 401, 403),
        note=_NOTE,
    )


class UsageCompletionsView(ApiView, path="organization/usage/completions"):
    """Tokens and requests of responses, chat completions, messages and completions."""

    @_usage(kinds.COMPLETIONS, "Get usage of completions")
    def get(self, request: ApiRequest, usage: UsageQuery) -> Response:
        return Response(usage_page(usage, principal=request.principal))


class UsageEmbeddingsView(ApiView, path="organization/usage/embeddings"):
    """Tokens and requests of embeddings."""

    @_usage(kinds.EMBEDDINGS, "Get usage of embeddings")
    def get(self, request: ApiRequest, usage: UsageQuery) -> Response:
        return Response(usage_page(usage, principal=request.principal))


class UsageModerationsView(ApiView, path="organization/usage/moderations"):
    """Tokens and requests of moderations."""

    @_usage(kinds.MODERATIONS, "Get usage of moderations")
    def get(self, request: ApiRequest, usage: UsageQuery) -> Response:
        return Response(usage_page(usage, principal=request.principal))


class UsageImagesView(ApiView, path="organization/usage/images"):
    """Images and requests."""

    @_usage(kinds.IMAGES, "Get usage of images")
    def get(self, request: ApiRequest, usage: UsageQuery) -> Response:
        return Response(usage_page(usage, principal=request.principal))


class UsageAudioSpeechesView(ApiView, path="organization/usage/audio_speeches"):
    """Characters that were spoken."""

    @_usage(kinds.AUDIO_SPEECHES, "Get usage of audio speeches")
    def get(self, request: ApiRequest, usage: UsageQuery) -> Response:
        return Response(usage_page(usage, principal=request.principal))


class UsageAudioTranscriptionsView(ApiView, path="organization/usage/audio_transcriptions"):
    """Seconds that were transcribed or translated."""

    @_usage(kinds.AUDIO_TRANSCRIPTIONS, "Get usage of audio transcriptions")
    def get(self, request: ApiRequest, usage: UsageQuery) -> Response:
        return Response(usage_page(usage, principal=request.principal))


class UsageVectorStoresView(ApiView, path="organization/usage/vector_stores"):
    """Bytes in vector stores."""

    @_usage(kinds.VECTOR_STORES, "Get usage of vector stores")
    def get(self, request: ApiRequest, usage: UsageQuery) -> Response:
        return Response(usage_page(usage, principal=request.principal))


class UsageCodeInterpreterSessionsView(ApiView, path="organization/usage/code_interpreter_sessions"):
    """Containers that were created."""

    @_usage(kinds.CODE_INTERPRETER_SESSIONS, "Get usage of code interpreter sessions")
    def get(self, request: ApiRequest, usage: UsageQuery) -> Response:
        return Response(usage_page(usage, principal=request.principal))


class UsageFileSearchCallsView(ApiView, path="organization/usage/file_search_calls"):
    """Searches in vector stores by models."""

    @_usage(kinds.FILE_SEARCH_CALLS, "Get usage of file search calls")
    def get(self, request: ApiRequest, usage: UsageQuery) -> Response:
        return Response(usage_page(usage, principal=request.principal))


class UsageWebSearchCallsView(ApiView, path="organization/usage/web_search_calls"):
    """Web searches by models."""

    @_usage(kinds.WEB_SEARCH_CALLS, "Get usage of web search calls")
    def get(self, request: ApiRequest, usage: UsageQuery) -> Response:
        return Response(usage_page(usage, principal=request.principal))


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
