"""Changes and queries of endpoints and deliveries. Each write is one transaction that includes its audit event."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from core import egress
from core.clock import now
from core.errors import EgressFailed, EgressRefused, NotFound, TooManyWebhookEndpoints
from core.http.pagination import Page, PageRequest, keyset
from deliveries.outbox import queue
from deliveries.outbox.attempt import AttemptResult
from responses.webhooks.attempt import send
from responses.webhooks.events import new_event_id, sample_data, sample_object_id
from responses.webhooks.models import DisabledReason, WebhookDelivery, WebhookEndpoint
from responses.webhooks.signing import new_secret
from tenants import scope
from tenants.audit import audit
from tenants.models import Team
from tenants.principal import Principal

MAX_ENDPOINTS = 20
OVERLAP = timedelta(hours=24)


def get_endpoint(*, principal: Principal, endpoint_id: str, param: str | None = None) -> WebhookEndpoint:
    """Return an endpoint of the caller's team.

    Must run inside a scope that sees the team. Raises NotFound for an unknown id or another team's id.
    """
    found = WebhookEndpoint.objects.filter(pk=endpoint_id, team_id=principal.team_id).first()
    if found is None:
        raise NotFound(f"No such webhook endpoint: {endpoint_id}", param=param)
    return found


def list_endpoints(*, principal: Principal, page: PageRequest) -> Page[WebhookEndpoint]:
    """Return a page of the endpoints of the caller's team, ordered by creation time."""
    rows = WebhookEndpoint.objects.filter(team_id=principal.team_id)

    def unknown(endpoint_id: str, *, param: str) -> NotFound:
        return NotFound(f"No such webhook endpoint: {endpoint_id}", param=param)

    return keyset(rows, page=page, find=lambda cursor: rows.filter(pk=cursor).first(), unknown=unknown)


def check_url(url: str) -> None:
    """Raise EgressRefused for a URL that deliveries are not allowed to reach."""
    try:
        egress.default().check(url)
    except EgressRefused as refused:
        raise EgressRefused(refused.message, param="url") from refused


def create_endpoint(*, team_id: str, actor: str, name: str, url: str, event_types: Sequence[str]) -> WebhookEndpoint:
    """Create an endpoint. Raises EgressRefused, or TooManyWebhookEndpoints above the limit of a team."""
    check_url(url)
    with scope.team(team_id):
        # Locks the team: two simultaneous requests could otherwise both pass the check of the limit. The limit exists
        # because every event is stored and sent once per endpoint.
        Team.objects.select_for_update(no_key=True).get(pk=team_id)
        if WebhookEndpoint.objects.filter(team_id=team_id).count() >= MAX_ENDPOINTS:
            raise TooManyWebhookEndpoints(f"A team can have at most {MAX_ENDPOINTS} webhook endpoints.")
        at = now()
        endpoint = WebhookEndpoint.objects.create(
            team_id=team_id,
            name=name,
            url=url,
            event_types=_set(event_types),
            secret=new_secret(),
            created_at=at,
            updated_at=at,
        )
        _audit(endpoint, actor, "created", after=_settings(endpoint))
    return endpoint


def update_endpoint(
    *,
    endpoint: WebhookEndpoint,
    actor: str,
    name: str | None = None,
    url: str | None = None,
    event_types: Sequence[str] | None = None,
) -> WebhookEndpoint:
    """Change the given settings. A new URL enables an endpoint that was disabled because of its failures."""
    if url is not None and url != endpoint.url:
        check_url(url)
    with scope.team(endpoint.team_id):
        row = _locked(endpoint)
        before = _settings(row)
        has_moved = url is not None and url != row.url
        row.name = row.name if name is None else name
        row.url = row.url if url is None else url
        row.event_types = row.event_types if event_types is None else _set(event_types)
        if _settings(row) == before:
            return row
        if has_moved:
            row.failing_since = None
            # An endpoint that a person disabled stays disabled.
            if row.disabled_reason != DisabledReason.BY_HAND:
                row.enabled, row.disabled_at, row.disabled_reason = True, None, ""
        row.updated_at = now()
        row.save()
        _audit(row, actor, "updated", before=before, after=_settings(row))
    return row


def rotate_secret(*, endpoint: WebhookEndpoint, actor: str, keep_old: bool) -> WebhookEndpoint:
    """Create a new secret. With `keep_old`, deliveries carry signatures of both secrets for another 24 hours."""
    with scope.team(endpoint.team_id):
        row, at = _locked(endpoint), now()
        row.previous_secret, row.previous_until = (row.secret, at + OVERLAP) if keep_old else ("", None)
        row.secret, row.updated_at = new_secret(), at
        row.save()
        _audit(row, actor, "secret_rotated", after={"old_secret_kept": keep_old})
    return row


def set_enabled(*, endpoint: WebhookEndpoint, actor: str, enabled: bool) -> bool:
    """Enable or disable an endpoint. Return False if the endpoint already had this state."""
    with scope.team(endpoint.team_id):
        # Pending deliveries stay in the outbox while the endpoint is disabled.
        changed = WebhookEndpoint.objects.filter(pk=endpoint.pk, enabled=not enabled).update(
            enabled=enabled,
            disabled_at=None if enabled else now(),
            disabled_reason="" if enabled else DisabledReason.BY_HAND,
            failing_since=None,
        )
        if changed:
            queue.wake()
            _audit(endpoint, actor, "enabled" if enabled else "disabled")
    return changed == 1


def delete_endpoint(*, endpoint: WebhookEndpoint, actor: str) -> None:
    """Delete an endpoint with its deliveries. Raises NotFound if it no longer exists."""
    with scope.team(endpoint.team_id):
        # The full lock makes the outbox skip this endpoint until it is gone.
        row = _locked(endpoint, no_key=False)
        _audit(row, actor, "deleted", before=_settings(row))
        row.delete()


async def send_test(*, endpoint: WebhookEndpoint, event_type: str) -> AttemptResult:
    """Send a sample event, whose object does not exist, immediately and without retries.

    Raises EgressFailed if there was no response.
    """
    # Never saved: a test is not part of the endpoint's deliveries.
    sample = WebhookDelivery(
        event_id=new_event_id(),
        endpoint=endpoint,
        event_type=event_type,
        object_id=sample_object_id(event_type),
        data=sample_data(event_type),
        created_at=now(),
    )
    result = await send(sample, egress=egress.default())
    if result.status is None:
        raise EgressFailed(result.error)
    return result


def audit_test(*, endpoint: WebhookEndpoint, actor: str, event_type: str, result: AttemptResult) -> None:
    """Record a sample event in the audit log."""
    with scope.team(endpoint.team_id):
        _audit(endpoint, actor, "tested", after={"event_type": event_type, "status": result.status})


def resend(*, delivery: WebhookDelivery, actor: str) -> bool:
    """Queue a delivery for an immediate attempt, whatever its state is. Return False if an attempt is in progress."""
    with scope.team(delivery.team_id):
        # The event keeps its id, so that receivers recognize duplicates.
        changed = queue.resend(delivery)
        if changed:
            audit(
                team_id=delivery.team_id,
                actor=actor,
                action="webhook_delivery.resent",
                target=delivery.event_id,
                after={"endpoint": delivery.endpoint_id},
            )
    return changed


def _locked(endpoint: WebhookEndpoint, *, no_key: bool = True) -> WebhookEndpoint:
    row = WebhookEndpoint.objects.select_for_update(no_key=no_key).filter(pk=endpoint.pk).first()
    if row is None:
        raise NotFound(f"No such webhook endpoint: {endpoint.pk}")
    return row


def _set(event_types: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(event_types))


def _settings(endpoint: WebhookEndpoint) -> dict[str, Any]:
    return {"name": endpoint.name, "url": endpoint.url, "event_types": list(endpoint.event_types)}


def _audit(
    endpoint: WebhookEndpoint,
    actor: str,
    verb: str,
    *,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    action = f"webhook_endpoint.{verb}"
    audit(team_id=endpoint.team_id, actor=actor, action=action, target=endpoint.pk, before=before, after=after)
