"""Writes about endpoints and deliveries, for the API and the admin: each is one transaction with its audit line."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from kernel import egress
from kernel.clock import now
from kernel.errors import EgressFailed, EgressRefused, TooManyWebhookEndpoints
from responses.webhooks import outbox
from responses.webhooks.access import unknown_endpoint
from responses.webhooks.attempt import AttemptResult, WebhookEvent, send
from responses.webhooks.events import new_event_id, sample_object_id
from responses.webhooks.models import DeliveryState, DisabledReason, WebhookDelivery, WebhookEndpoint
from responses.webhooks.signing import new_secret
from tenants import scope
from tenants.audit import audit
from tenants.models import Team

MAX_ENDPOINTS = 20
OVERLAP = timedelta(hours=24)


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who does something, as the audit log names it, and in which request."""

    name: str
    request_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSecret:
    """An endpoint whose secret was just made. It is shown once, with this."""

    endpoint: WebhookEndpoint
    secret: str = field(repr=False)


def check_url(url: str) -> None:
    """Refuse a URL that no delivery could ever reach."""
    try:
        egress.default().check(url)
    except EgressRefused as refused:
        raise EgressRefused(refused.message, param="url") from refused


def create_endpoint(*, team_id: str, actor: Actor, name: str, url: str, event_types: Sequence[str]) -> NewSecret:
    """Make an endpoint. A team has a limited number of them, since each multiplies every event."""
    check_url(url)
    secret = new_secret()
    with scope.team(team_id):
        Team.objects.select_for_update(no_key=True).get(pk=team_id)
        if WebhookEndpoint.objects.filter(team_id=team_id).count() >= MAX_ENDPOINTS:
            message = f"A team can have at most {MAX_ENDPOINTS} webhook endpoints."
            raise TooManyWebhookEndpoints(message)
        at = now()
        endpoint = WebhookEndpoint.objects.create(
            team_id=team_id,
            name=name,
            url=url,
            event_types=_set(event_types),
            secret=secret,
            created_at=at,
            updated_at=at,
        )
        _audit(endpoint, actor, "created", after=_settings(endpoint))
    return NewSecret(endpoint=endpoint, secret=secret)


def update_endpoint(
    *,
    endpoint: WebhookEndpoint,
    actor: Actor,
    name: str | None = None,
    url: str | None = None,
    event_types: Sequence[str] | None = None,
) -> WebhookEndpoint:
    """Change what is given. An endpoint that was disabled because of its URL is enabled by another one."""
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
            if row.disabled_reason != DisabledReason.BY_HAND:
                row.enabled, row.disabled_at, row.disabled_reason = True, None, ""
        row.updated_at = now()
        row.save()
        _audit(row, actor, "updated", before=before, after=_settings(row))
    return row


def rotate_secret(*, endpoint: WebhookEndpoint, actor: Actor, keep_old: bool) -> NewSecret:
    """Make another secret. The old one signs for another 24 hours, beside the new one, or not at all."""
    secret = new_secret()
    with scope.team(endpoint.team_id):
        row = _locked(endpoint)
        at = now()
        row.previous_secret, row.previous_until = (row.secret, at + OVERLAP) if keep_old else ("", None)
        row.secret, row.updated_at = secret, at
        row.save()
        _audit(row, actor, "secret_rotated", after={"old_secret_kept": keep_old})
    return NewSecret(endpoint=row, secret=secret)


def set_enabled(*, endpoint: WebhookEndpoint, actor: Actor, enabled: bool) -> bool:
    """Switch an endpoint on or off by hand; False when it was so before. What waits for it goes on, or waits."""
    with scope.team(endpoint.team_id):
        changed = WebhookEndpoint.objects.filter(pk=endpoint.pk, enabled=not enabled).update(
            enabled=enabled,
            disabled_at=None if enabled else now(),
            disabled_reason="" if enabled else DisabledReason.BY_HAND,
            failing_since=None,
        )
        if changed:
            outbox.wake()
            _audit(endpoint, actor, "enabled" if enabled else "disabled")
    return changed == 1


def delete_endpoint(*, endpoint: WebhookEndpoint, actor: Actor) -> None:
    """Delete an endpoint with its deliveries. Its lock keeps new ones from being written meanwhile."""
    with scope.team(endpoint.team_id):
        row = WebhookEndpoint.objects.select_for_update().filter(pk=endpoint.pk).first()
        if row is None:
            raise unknown_endpoint(endpoint.pk)
        _audit(row, actor, "deleted", before=_settings(row))
        row.delete()


async def send_test(*, endpoint: WebhookEndpoint, event_type: str) -> AttemptResult:
    """Post a sample event now, once; it tells of an object that does not exist. Raises where nobody answered."""
    event = WebhookEvent(id=new_event_id(), type=event_type, object_id=sample_object_id(event_type), created_at=now())
    outcome = await send(event, endpoint=endpoint, egress=egress.default())
    if outcome.status is None:
        raise EgressFailed(outcome.error)
    return outcome


def note_test(*, endpoint: WebhookEndpoint, actor: Actor, event_type: str, outcome: AttemptResult) -> None:
    """Leave a line in the audit log about a test."""
    with scope.team(endpoint.team_id):
        _audit(endpoint, actor, "tested", after={"event_type": event_type, "status": outcome.status})


def resend(*, delivery: WebhookDelivery, actor: Actor) -> bool:
    """Have a delivery attempted at once, whatever became of it; False while an attempt is under way.

    It keeps its id, so that a receiver which has had it can tell.
    """
    with scope.team(delivery.team_id):
        at = now()
        idle = WebhookDelivery.objects.filter(pk=delivery.pk).exclude(claimed_until__gt=at)
        changed = idle.update(state=DeliveryState.PENDING, next_attempt_at=at, claimed_until=None, delivered_at=None)
        if changed:
            outbox.wake()
            audit(
                team_id=delivery.team_id,
                actor=actor.name,
                action="webhook_delivery.resent",
                target=delivery.event_id,
                after={"endpoint": delivery.endpoint_id},
                request_id=actor.request_id,
            )
    return changed == 1


def _locked(endpoint: WebhookEndpoint) -> WebhookEndpoint:
    row = WebhookEndpoint.objects.select_for_update(no_key=True).filter(pk=endpoint.pk).first()
    if row is None:
        raise unknown_endpoint(endpoint.pk)
    return row


def _set(event_types: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(event_types))


def _settings(endpoint: WebhookEndpoint) -> dict[str, Any]:
    return {"name": endpoint.name, "url": endpoint.url, "event_types": list(endpoint.event_types)}


def _audit(endpoint: WebhookEndpoint, actor: Actor, verb: str, **what: dict[str, Any]) -> None:
    audit(
        team_id=endpoint.team_id,
        actor=actor.name,
        action=f"webhook_endpoint.{verb}",
        target=endpoint.pk,
        request_id=actor.request_id,
        **what,
    )
