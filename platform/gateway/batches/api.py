"""Endpoints of `/v1/batches`."""

from core.http.endpoints import Endpoint
from core.http.objects import ListPage
from core.http.pagination import PAGE, PageRequest
from gateway.batches import objects, selectors, services
from gateway.batches.requests import CreateBatch
from responses.api.requests import info_of
from tenants import scope
from tenants.models import Scope
from tenants.views import ApiRequest, ApiView


class BatchesView(ApiView, path="batches"):
    """All batches of a team."""

    @Endpoint(
        Scope.BATCHES_WRITE,
        "Create a batch",
        query=None,
        body=CreateBatch,
        note="for responses, chat completions or embeddings; the key also needs the scope of that endpoint",
    )
    def post(self, request: ApiRequest, body: CreateBatch) -> objects.Batch:
        batch = services.create_batch(principal=request.principal, body=body, request=info_of(request.asgi))
        return selectors.public_batch(batch)

    @Endpoint(Scope.BATCHES_READ, "List batches", query=(PAGE,))
    def get(self, request: ApiRequest, page: PageRequest) -> ListPage[objects.Batch]:
        with scope.team(request.principal.team_id):
            found = selectors.list_batches(team_id=request.principal.team_id, page=page)
        return found.as_list(present=selectors.public_batch)


class BatchView(ApiView, path="batches/<batch:batch_id>"):
    """One batch."""

    @Endpoint(Scope.BATCHES_READ, "Retrieve a batch")
    def get(self, request: ApiRequest, batch_id: str) -> objects.Batch:
        with scope.team(request.principal.team_id):
            batch = selectors.get_batch(principal=request.principal, batch_id=batch_id)
        return selectors.public_batch(batch)


class CancelBatchView(ApiView, path="batches/<batch:batch_id>/cancel"):
    """Cancellation of a batch."""

    @Endpoint(
        Scope.BATCHES_WRITE,
        "Cancel a batch",
        query=None,
        errors=(401, 403, 404, 409),
        note="active requests are cancelled immediately",
    )
    def post(self, request: ApiRequest, batch_id: str) -> objects.Batch:
        batch = services.cancel_batch(principal=request.principal, batch_id=batch_id)
        return selectors.public_batch(batch)
