"""Endpoints of `/v1/webhook_endpoints`."""

from rest_framework.response import Response

from core.db.db_threads import in_db_thread
from core.errors import WebhookTestFailed
from core.http.endpoints import STRING, UNIX_TIME, ApiObject, Endpoint, Schema
from core.http.pagination import PAGE, PageRequest
from responses.webhooks import services
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
from tenants import scope
from tenants.models import Scope
from tenants.views import ApiRequest, ApiView

_EVENT_TYPE: Schema = {"enum": list(EVENT_TYPES)}
_PROPERTIES: Schema = {
    "id": STRING,
    "object": {"const": "webhook_endpoint"},
    "created_at": UNIX_TIME,
    "updated_at": UNIX_TIME,
    "event_types": {"type": "array", "items": _EVENT_TYPE},
    "name": STRING,
    "url": STRING,
    "signing_secret_hint": STRING,
}
_ENDPOINT = ApiObject.of("WebhookEndpoint", _PROPERTIES)
_ENDPOINT_WITH_SECRET = ApiObject.of(
    "WebhookEndpointWithSecret",
    {**_PROPERTIES, "signing_secret": {"type": "string", "description": "Returned only by this request."}},
)
_TEST = ApiObject.of(
    "WebhookEndpointTest",
    {
        "object": {"const": "webhook_endpoint.test"},
        "event_type": _EVENT_TYPE,
        "status_code": {"type": "integer", "description": "HTTP status of the endpoint's response."},
        "success": {"const": True},
        "webhook_endpoint_id": STRING,
    },
)
_EVENT_TYPES = ApiObject.of(
    "WebhookEventTypeList", {"object": {"const": "list"}, "data": {"type": "array", "items": STRING}}
)


class WebhookEndpointsView(ApiView, path="webhook_endpoints"):
    """All webhook endpoints of a team."""

    @Endpoint(
        Scope.WEBHOOKS_WRITE,
        "Create a webhook endpoint",
        body=CreateWebhookEndpoint,
        query=(),
        returns=_ENDPOINT_WITH_SECRET,
        note="https URLs on port 443 with public addresses, and those allowed by `EGRESS_ALLOW`; up to 20 per team",
    )
    def post(self, request: ApiRequest, body: CreateWebhookEndpoint) -> Response:
        created = services.create_endpoint(
            team_id=request.principal.team_id,
            actor=request.principal.actor,
            name=body.name,
            url=body.url,
            event_types=body.event_types,
        )
        return Response(with_secret(created))

    @Endpoint(Scope.WEBHOOKS_READ, "List webhook endpoints", query=(PAGE,), returns=_ENDPOINT.page())
    def get(self, request: ApiRequest, page: PageRequest) -> Response:
        with scope.team(request.principal.team_id):
            found = services.list_endpoints(principal=request.principal, page=page)
        return Response(found.as_list(present=public_endpoint))


class WebhookEndpointView(ApiView, path="webhook_endpoints/<we:endpoint_id>"):
    """One webhook endpoint."""

    @Endpoint(Scope.WEBHOOKS_READ, "Retrieve a webhook endpoint", query=(), returns=_ENDPOINT)
    def get(self, request: ApiRequest, endpoint_id: str) -> Response:
        return Response(public_endpoint(_find(request, endpoint_id)))

    @Endpoint(
        Scope.WEBHOOKS_WRITE, "Update a webhook endpoint", body=UpdateWebhookEndpoint, query=(), returns=_ENDPOINT
    )
    def post(self, request: ApiRequest, endpoint_id: str, body: UpdateWebhookEndpoint) -> Response:
        changed = services.update_endpoint(
            endpoint=_find(request, endpoint_id),
            actor=request.principal.actor,
            name=body.name,
            url=body.url,
            event_types=body.event_types,
        )
        return Response(public_endpoint(changed))

    @Endpoint(
        Scope.WEBHOOKS_WRITE,
        "Delete a webhook endpoint",
        query=(),
        returns=ApiObject.deleted("WebhookEndpoint", "webhook_endpoint.deleted"),
        note="including its deliveries",
    )
    def delete(self, request: ApiRequest, endpoint_id: str) -> Response:
        services.delete_endpoint(endpoint=_find(request, endpoint_id), actor=request.principal.actor)
        return Response({"id": endpoint_id, "object": "webhook_endpoint.deleted", "deleted": True})


class RotateWebhookSecretView(ApiView, path="webhook_endpoints/<we:endpoint_id>/rotate_secret"):
    """Rotation of a signing secret."""

    @Endpoint(
        Scope.WEBHOOKS_WRITE,
        "Rotate the secret of a webhook endpoint",
        body=RotateSecret,
        query=(),
        returns=_ENDPOINT_WITH_SECRET,
    )
    def post(self, request: ApiRequest, endpoint_id: str, body: RotateSecret) -> Response:
        created = services.rotate_secret(
            endpoint=_find(request, endpoint_id),
            actor=request.principal.actor,
            keep_old=bool(body.keep_old_secret_active_for_24_hours),
        )
        return Response(with_secret(created))


class SendWebhookTestView(ApiView, path="webhook_endpoints/<we:endpoint_id>/test"):
    """Sample events for a webhook endpoint."""

    @Endpoint(
        Scope.WEBHOOKS_WRITE,
        "Send a test event",
        body=SendTest,
        query=(),
        returns=_TEST,
        note="sends a sample event immediately; an error unless the endpoint responds with a 2xx status",
    )
    async def post(self, request: ApiRequest, endpoint_id: str, body: SendTest) -> Response:
        endpoint = await in_db_thread(lambda: _find(request, endpoint_id))
        # No database thread is occupied while the endpoint responds.
        outcome = await services.send_test(endpoint=endpoint, event_type=body.event_type)
        await in_db_thread(
            lambda: services.audit_test(
                endpoint=endpoint, actor=request.principal.actor, event_type=body.event_type, result=outcome
            )
        )
        if not outcome.succeeded:
            # OpenAI's result has no form for a failure: `success` is always true.
            raise WebhookTestFailed(f"The webhook endpoint responded with HTTP status {outcome.status}.")
        return Response(
            {
                "object": "webhook_endpoint.test",
                "event_type": body.event_type,
                "status_code": outcome.status,
                "success": True,
                "webhook_endpoint_id": endpoint_id,
            }
        )


class WebhookEventTypesView(ApiView, path="webhook_event_types"):
    """Types of events."""

    @Endpoint(
        Scope.WEBHOOKS_READ,
        "List webhook event types",
        query=(),
        returns=_EVENT_TYPES,
        note="`response.*` of background responses, `batch.*`, and `budget.alert`",
    )
    def get(self, _: ApiRequest) -> Response:
        return Response({"object": "list", "data": list(EVENT_TYPES)})


def _find(request: ApiRequest, endpoint_id: str) -> WebhookEndpoint:
    with scope.team(request.principal.team_id):
        return services.get_endpoint(principal=request.principal, endpoint_id=endpoint_id)
