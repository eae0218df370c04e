"""Notify teams of API keys that will expire soon."""

from datetime import UTC, timedelta

from django.db.models import F

from core.clock import now
from deliveries.notifications.services import Message, notify
from tenants import scope
from tenants.models import ApiKey, KeySource, Notification, NotificationKind

_NOTICE = timedelta(days=14)
# The creator of a key for a day knows that it expires, and programs may create many such keys.
_SHORT_LIFE = timedelta(days=1)


def notify_of_expiring_keys() -> int:
    """Notify the teams of keys that expire within 14 days, once per key and time of expiry. Return their number."""
    at = now()
    with scope.every_team():
        keys = ApiKey.objects.filter(
            expires_at__gt=at, expires_at__lte=at + _NOTICE, revoked_at=None, disabled_at=None, source=KeySource.PERSON
        ).exclude(expires_at__lte=F("created_at") + _SHORT_LIFE)
        expiring = list(keys.select_related("team").order_by("expires_at"))
        notified = set(
            Notification.objects.filter(
                kind=NotificationKind.KEY_EXPIRING,
                team__in={key.team_id for key in expiring},
                key__in=[_key_of(key) for key in expiring],
            ).values_list("key", flat=True)
        )
    return sum(_notify(key) for key in expiring if _key_of(key) not in notified)


def _key_of(key: ApiKey) -> str:
    # A key with a changed time of expiry is reported again.
    return f"{key.pk} {key.expires_at}"


def _notify(key: ApiKey) -> bool:
    if key.expires_at is None:
        return False
    moment = f"{key.expires_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    message = Message(
        subject=f"The API key {key.name} of the team {key.team.name} expires soon",
        text=f"The API key {key.name} ({key.prefix}…{key.last_four}) of the team {key.team.name} expires on {moment}. "
        "From then on, requests with it are refused. Create another key and install it where this one is used.",
        path=f"/admin/tenants/apikey/{key.pk}/change/",
    )
    details = {"key_id": key.pk, "expires_at": key.expires_at.isoformat()}
    with scope.team(key.team_id):
        kind = NotificationKind.KEY_EXPIRING
        return notify(team_id=key.team_id, kind=kind, key=_key_of(key), message=message, details=details) is not None
