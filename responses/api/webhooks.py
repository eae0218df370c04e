"""Views of `/v1/webhook_endpoints`."""

from typing import Any, TypeVar

from pydantic import BaseModel
from rest_framework.request import Request
from rest_framework.response import Response
from typing_extensions import override

from kernel.db_threads import in_db_thread
from kernel.pagination import PageRequest
from kernel.query import reject_unknown
from kernel.validation import parse_json, validate
from kernel.views import ApiView
from responses.api.requests import principal_of, scope_of
from responses.api.views import AsyncApiView
from responses.webhooks import access, services
from responses.webhooks.events import EVENT_TYPES
from responses.webhooks.models import WebhookEndpoint
from responses.webhooks.schema import (
    CreateWebhookEndpoint,
    RotateSecret,
    SendTest,
    UpdateWebhookEndpoint,
    public_endpoint,
    with_secret,
)
from responses.webhooks.services import Actor
from tenants import scope
from tenants.models import Scope
from tenants.principal import Principal

Schema = TypeVar("Schema", bound=BaseModel)


class WebhookEndpointListView(ApiView):
    """`GET` and `POST /v1/webhook_endpoints`."""

    def get(self, request: Request) -> Response:
        principal = _principal(request, Scope.WEBHOOKS_READ)
        reject_unknown(request.query_params)
        page = PageRequest.from_query(request.query_params)
        with scope.team(principal.team_id):
            found = access.list_endpoints(principal=principal, page=page)
        return Response(found.as_list(present=public_endpoint))

    def post(self, request: Request) -> Response:
        principal = _principal(request, Scope.WEBHOOKS_WRITE)
        reject_unknown(request.query_params, page=False)
        body = _read(CreateWebhookEndpoint, request)
        created = services.create_endpoint(
            team_id=principal.team_id,
            actor=_actor(request),
            name=body.name,
            url=body.url,
            event_types=body.event_types,
        )
        return Response(with_secret(created))


class WebhookEndpointView(ApiView):
    """`GET`, `POST` and `DELETE /v1/webhook_endpoints/{id}`."""

    def get(self, request: Request, endpoint_id: str) -> Response:
        principal = _principal(request, Scope.WEBHOOKS_READ)
        reject_unknown(request.query_params, page=False)
        return Response(public_endpoint(_find(principal, endpoint_id)))

    def post(self, request: Request, endpoint_id: str) -> Response:
        principal = _principal(request, Scope.WEBHOOKS_WRITE)
        reject_unknown(request.query_params, page=False)
        body = _read(UpdateWebhookEndpoint, request)
        changed = services.update_endpoint(
            endpoint=_find(principal, endpoint_id),
            actor=_actor(request),
            name=body.name,
            url=body.url,
            event_types=body.event_types,
        )
        return Response(public_endpoint(changed))

    def delete(self, request: Request, endpoint_id: str) -> Response:
        principal = _principal(request, Scope.WEBHOOKS_WRITE)
        reject_unknown(request.query_params, page=False)
        services.delete_endpoint(endpoint=_find(principal, endpoint_id), actor=_actor(request))
        return Response({"id": endpoint_id, "object": "webhook_endpoint.deleted", "deleted": True})


class RotateWebhookSecretView(ApiView):
    """`POST /v1/webhook_endpoints/{id}/rotate_secret`."""

    def post(self, request: Request, endpoint_id: str) -> Response:
        principal = _principal(request, Scope.WEBHOOKS_WRITE)
        reject_unknown(request.query_params, page=False)
        body = _read(RotateSecret, request)
        created = services.rotate_secret(
            endpoint=_find(principal, endpoint_id),
            actor=_actor(request),
            keep_old=bool(body.keep_old_secret_active_for_24_hours),
        )
        return Response(with_secret(created))


class SendWebhookTestView(AsyncApiView):
    """`POST /v1/webhook_endpoints/{id}/test`."""

    @override
    async def post(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        endpoint_id: str = kwargs["endpoint_id"]
        principal = _principal(request, Scope.WEBHOOKS_WRITE)
        reject_unknown(request.query_params, page=False)
        event_type = _read(SendTest, request).event_type
        endpoint = await in_db_thread(lambda: _find(principal, endpoint_id))
        # No database thread is occupied while the endpoint responds.
        outcome = await services.send_test(endpoint=endpoint, event_type=event_type)
        await in_db_thread(
            lambda: services.audit_test(endpoint=endpoint, actor=_actor(request), event_type=event_type, result=outcome)
        )
        return Response(
            {
                "object": "webhook_endpoint.test",
                "event_type": event_type,
                "status_code": outcome.status,
                "success": True,
                "webhook_endpoint_id": endpoint_id,
            }
        )


class WebhookEventTypesView(ApiView):
    """`GET /v1/webhook_event_types`."""

    def get(self, request: Request) -> Response:
        _principal(request, Scope.WEBHOOKS_READ)
        reject_unknown(request.query_params, page=False)
        return Response({"object": "list", "data": list(EVENT_TYPES)})


def _principal(request: Request, needed: Scope) -> Principal:
    principal = principal_of(request)
    principal.require(needed)
    return principal


def _actor(request: Request) -> Actor:
    return Actor(name=f"key:{principal_of(request).key_id}", request_id=scope_of(request)["request_id"])


def _read(schema: type[Schema], request: Request) -> Schema:
    # Clients may omit the body if all of its fields are optional.
    body = scope_of(request)["body"]
    return validate(schema, parse_json(body) if body else {})


def _find(principal: Principal, endpoint_id: str) -> WebhookEndpoint:
    with scope.team(principal.team_id):
        return access.get_endpoint(principal=principal, endpoint_id=endpoint_id)
