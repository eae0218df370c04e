"""Endpoints of `/v1/batches`."""

from rest_framework.response import Response

from core.http.endpoints import (
    INTEGER,
    NULLABLE_INTEGER,
    NULLABLE_OBJECT,
    NULLABLE_STRING,
    STRING,
    UNIX_TIME,
    ApiObject,
    Endpoint,
)
from core.http.pagination import PAGE, PageRequest
from gateway.batches import selectors, services
from gateway.batches.requests import SCOPES, CreateBatch
from responses.api.requests import info_of
from responses.models.batches import BatchStatus
from tenants import scope
from tenants.models import Scope
from tenants.views import ApiRequest, ApiView

_MOMENTS = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
_COUNTS = dict.fromkeys(("total", "completed", "failed"), INTEGER)
_REQUIRED = {
    "id": STRING,
    "object": {"const": "batch"},
    "endpoint": {"enum": list(SCOPES)},
    "status": {"enum": list(BatchStatus.values)},
    "errors": NULLABLE_OBJECT,
    "input_file_id": STRING,
    "output_file_id": NULLABLE_STRING,
    "error_file_id": NULLABLE_STRING,
    "completion_window": {"const": "24h"},
    "created_at": UNIX_TIME,
    "expires_at": INTEGER,
    **{f"{moment}_at": NULLABLE_INTEGER for moment in _MOMENTS},
    "request_counts": {"type": "object", "properties": _COUNTS, "required": list(_COUNTS)},
    "metadata": {"type": ["object", "null"], "additionalProperties": STRING},
}
# Model and usage are left out until they are known.
_BATCH = ApiObject.of("Batch", {**_REQUIRED, "model": STRING, "usage": {"type": "object"}}, required=list(_REQUIRED))


class BatchesView(ApiView, path="batches"):
    """All batches of a team."""

    @Endpoint(
        Scope.BATCHES_WRITE,
        "Create a batch",
        body=CreateBatch,
        returns=_BATCH,
        note="for responses, chat completions or embeddings; the key also needs the scope of that endpoint",
    )
    def post(self, request: ApiRequest, body: CreateBatch) -> Response:
        batch = services.create_batch(principal=request.principal, body=body, request=info_of(request.asgi))
        return Response(selectors.public_batch(batch))

    @Endpoint(Scope.BATCHES_READ, "List batches", query=(PAGE,), returns=_BATCH.page())
    def get(self, request: ApiRequest, page: PageRequest) -> Response:
        with scope.team(request.principal.team_id):
            found = selectors.list_batches(team_id=request.principal.team_id, page=page)
        return Response(found.as_list(present=selectors.public_batch))


class BatchView(ApiView, path="batches/<batch:batch_id>"):
    """One batch."""

    @Endpoint(Scope.BATCHES_READ, "Retrieve a batch", query=(), returns=_BATCH)
    def get(self, request: ApiRequest, batch_id: str) -> Response:
        with scope.team(request.principal.team_id):
            batch = selectors.get_batch(principal=request.principal, batch_id=batch_id)
        return Response(selectors.public_batch(batch))


class CancelBatchView(ApiView, path="batches/<batch:batch_id>/cancel"):
    """Cancellation of a batch."""

    @Endpoint(
        Scope.BATCHES_WRITE,
        "Cancel a batch",
        errors=(401, 403, 404, 409),
        returns=_BATCH,
        note="active requests are cancelled immediately",
    )
    def post(self, request: ApiRequest, batch_id: str) -> Response:
        batch = services.cancel_batch(principal=request.principal, batch_id=batch_id)
        return Response(selectors.public_batch(batch))
