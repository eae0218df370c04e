"""Endpoints of `/v1/webhook_endpoints`."""

from core.db.db_threads import in_db_thread
from core.errors import WebhookTestFailed
from core.http.endpoints import Endpoint
from core.http.objects import ListPage
from core.http.pagination import PAGE, PageRequest
from responses.webhooks import objects, services
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


class WebhookEndpointsView(ApiView, path="webhook_endpoints"):
    """All webhook endpoints of a team."""

    @Endpoint(
        Scope.WEBHOOKS_WRITE,
        "Create a webhook endpoint",
        body=CreateWebhookEndpoint,
        note="https URLs on port 443 with public addresses, and those allowed by `EGRESS_ALLOW`; up to 20 per team",
    )
    def post(self, request: ApiRequest, body: CreateWebhookEndpoint) -> objects.WebhookEndpointWithSecret:
        created = services.create_endpoint(
            team_id=request.principal.team_id,
            actor=request.principal.actor,
            name=body.name,
            url=body.url,
            event_types=body.event_types,
        )
        return with_secret(created)

    @Endpoint(Scope.WEBHOOKS_READ, "List webhook endpoints", query=(PAGE,))
    def get(self, request: ApiRequest, page: PageRequest) -> ListPage[objects.WebhookEndpoint]:
        with scope.team(request.principal.team_id):
            found = services.list_endpoints(principal=request.principal, page=page)
        return found.as_list(present=public_endpoint)


class WebhookEndpointView(ApiView, path="webhook_endpoints/<we:endpoint_id>"):
    """One webhook endpoint."""

    @Endpoint(Scope.WEBHOOKS_READ, "Retrieve a webhook endpoint")
    def get(self, request: ApiRequest, endpoint_id: str) -> objects.WebhookEndpoint:
        return public_endpoint(_find(request, endpoint_id))

    @Endpoint(Scope.WEBHOOKS_WRITE, "Update a webhook endpoint", body=UpdateWebhookEndpoint)
    def post(self, request: ApiRequest, endpoint_id: str, body: UpdateWebhookEndpoint) -> objects.WebhookEndpoint:
        changed = services.update_endpoint(
            endpoint=_find(request, endpoint_id),
            actor=request.principal.actor,
            name=body.name,
            url=body.url,
            event_types=body.event_types,
        )
        return public_endpoint(changed)

    @Endpoint(Scope.WEBHOOKS_WRITE, "Delete a webhook endpoint", note="including its deliveries")
    def delete(self, request: ApiRequest, endpoint_id: str) -> objects.DeletedWebhookEndpoint:
        services.delete_endpoint(endpoint=_find(request, endpoint_id), actor=request.principal.actor)
        return {"id": endpoint_id, "object": "webhook_endpoint.deleted", "deleted": True}


class RotateWebhookSecretView(ApiView, path="webhook_endpoints/<we:endpoint_id>/rotate_secret"):
    """Rotation of a signing secret."""

    @Endpoint(Scope.WEBHOOKS_WRITE, "Rotate the secret of a webhook endpoint", body=RotateSecret)
    def post(self, request: ApiRequest, endpoint_id: str, body: RotateSecret) -> objects.WebhookEndpointWithSecret:
        created = services.rotate_secret(
            endpoint=_find(request, endpoint_id),
            actor=request.principal.actor,
            keep_old=bool(body.keep_old_secret_active_for_24_hours),
        )
        return with_secret(created)


class SendWebhookTestView(ApiView, path="webhook_endpoints/<we:endpoint_id>/test"):
    """Sample events for a webhook endpoint."""

    @Endpoint(
        Scope.WEBHOOKS_WRITE,
        "Send a test event",
        body=SendTest,
        note="sends a sample event immediately; an error unless the endpoint responds with a 2xx status",
    )
    async def post(self, request: ApiRequest, endpoint_id: str, body: SendTest) -> objects.WebhookEndpointTest:
        endpoint = await in_db_thread(lambda: _find(request, endpoint_id))
        # No database thread is occupied while the endpoint responds.
        outcome = await services.send_test(endpoint=endpoint, event_type=body.event_type)
        await in_db_thread(
            lambda: services.audit_test(
                endpoint=endpoint, actor=request.principal.actor, event_type=body.event_type, result=outcome
            )
        )
        if outcome.status is None or not outcome.succeeded:
            # In OpenAI's result `success` is always true, so a failure is reported as an error.
            raise WebhookTestFailed(f"The webhook endpoint responded with HTTP status {outcome.status}.")
        return {
            "object": "webhook_endpoint.test",
            "event_type": body.event_type,
            "status_code": outcome.status,
            "success": True,
            "webhook_endpoint_id": endpoint_id,
        }


class WebhookEventTypesView(ApiView, path="webhook_event_types"):
    """Types of events."""

    @Endpoint(
        Scope.WEBHOOKS_READ,
        "List webhook event types",
        note="`response.*` of background responses, `batch.*`, and `budget.alert`",
    )
    def get(self, _: ApiRequest) -> objects.WebhookEventTypeList:
        return {"object": "list", "data": list(EVENT_TYPES)}


def _find(request: ApiRequest, endpoint_id: str) -> WebhookEndpoint:
    with scope.team(request.principal.team_id):
        return services.get_endpoint(principal=request.principal, endpoint_id=endpoint_id)
