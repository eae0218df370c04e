"""Views of `/v1/batches`."""

from rest_framework.request import Request
from rest_framework.response import Response

from kernel.pagination import PageRequest
from kernel.query import reject_unknown
from kernel.validation import parse_json
from kernel.views import ApiView
from responses.api.requests import info_of, principal_of, scope_of
from responses.batches import selectors, services
from responses.batches.requests import parse_batch
from tenants import scope
from tenants.models import Scope


class BatchListView(ApiView):
    """`POST` and `GET /v1/batches`."""

    def post(self, request: Request) -> Response:
        asgi, principal = scope_of(request), principal_of(request)
        principal.require(Scope.BATCHES_WRITE)
        body = parse_batch(parse_json(asgi["body"]))
        batch = services.create_batch(principal=principal, body=body, request=info_of(asgi))
        return Response(selectors.public_batch(batch))

    def get(self, request: Request) -> Response:
        principal = principal_of(request)
        principal.require(Scope.BATCHES_READ)
        reject_unknown(request.query_params)
        page = PageRequest.from_query(request.query_params)
        with scope.team(principal.team_id):
            found = selectors.list_batches(team_id=principal.team_id, page=page)
        return Response(found.as_list(present=selectors.public_batch))


class BatchView(ApiView):
    """`GET /v1/batches/{id}`."""

    def get(self, request: Request, batch_id: str) -> Response:
        principal = principal_of(request)
        principal.require(Scope.BATCHES_READ)
        reject_unknown(request.query_params, page=False)
        with scope.team(principal.team_id):
            batch = selectors.get_batch(principal=principal, batch_id=batch_id)
        return Response(selectors.public_batch(batch))


class CancelBatchView(ApiView):
    """`POST /v1/batches/{id}/cancel`."""

    def post(self, request: Request, batch_id: str) -> Response:
        asgi = scope_of(request)
        batch = services.cancel_batch(principal=principal_of(request), batch_id=batch_id, request=info_of(asgi))
        return Response(selectors.public_batch(batch))
