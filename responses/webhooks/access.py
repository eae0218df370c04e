"""The door for endpoints: they enter with the principal that asks for them, or not at all; and their lists."""

from kernel.errors import NotFound
from kernel.pagination import Page, PageRequest, Position, keyset
from responses.webhooks.models import WebhookEndpoint
from tenants.principal import Principal


def get_endpoint(*, principal: Principal, endpoint_id: str) -> WebhookEndpoint:
    """An endpoint of the caller's team, or the 404 of an unknown id. Runs inside a scope that sees the team."""
    found = _find(principal.team_id, endpoint_id)
    if found is None:
        raise unknown_endpoint(endpoint_id)
    return found


def list_endpoints(*, principal: Principal, page: PageRequest) -> Page[WebhookEndpoint]:
    """The endpoints of the caller's team, by time."""

    def position(endpoint_id: str, param: str) -> Position:
        found = _find(principal.team_id, endpoint_id)
        if found is None:
            raise unknown_endpoint(endpoint_id, param=param)
        return found.created_at, found.pk

    return keyset(WebhookEndpoint.objects.filter(team_id=principal.team_id), page=page, position=position)


def unknown_endpoint(endpoint_id: str, *, param: str | None = None) -> NotFound:
    """The 404 for an endpoint that does not exist, or not for the caller."""
    return NotFound(f"No such webhook endpoint: {endpoint_id}", param=param)


def _find(team_id: str, endpoint_id: str) -> WebhookEndpoint | None:
    # PostgreSQL refuses NUL in a parameter; no id has one.
    if "\x00" in endpoint_id:
        return None
    return WebhookEndpoint.objects.filter(pk=endpoint_id, team_id=team_id).first()
