"""Access to endpoints on behalf of a principal: single endpoints and lists of one team."""

from kernel.errors import NotFound
from kernel.pagination import Page, PageRequest, Position, keyset
from responses.webhooks.models import WebhookEndpoint
from tenants.principal import Principal


def get_endpoint(*, principal: Principal, endpoint_id: str) -> WebhookEndpoint:
    """Return an endpoint of the caller's team.

    Must run inside a scope that sees the team. Raises NotFound for an unknown id or another team's id.
    """
    found = _find(principal.team_id, endpoint_id)
    if found is None:
        raise unknown_endpoint(endpoint_id)
    return found


def list_endpoints(*, principal: Principal, page: PageRequest) -> Page[WebhookEndpoint]:
    """Return a page of the endpoints of the caller's team, ordered by creation time."""

    def position(endpoint_id: str, param: str) -> Position:
        found = _find(principal.team_id, endpoint_id)
        if found is None:
            raise unknown_endpoint(endpoint_id, param=param)
        return found.created_at, found.pk

    return keyset(WebhookEndpoint.objects.filter(team_id=principal.team_id), page=page, position=position)


def unknown_endpoint(endpoint_id: str, *, param: str | None = None) -> NotFound:
    """Return the 404 error for an endpoint that does not exist or belongs to another team."""
    return NotFound(f"No such webhook endpoint: {endpoint_id}", param=param)


def _find(team_id: str, endpoint_id: str) -> WebhookEndpoint | None:
    # PostgreSQL refuses NUL in a parameter; no id has one.
    if "\x00" in endpoint_id:
        return None
    return WebhookEndpoint.objects.filter(pk=endpoint_id, team_id=team_id).first()
