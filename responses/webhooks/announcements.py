"""Events that teams receive by webhook, and their members by mail."""

from collections.abc import Mapping
from typing import Any

from deliveries.notifications import Message, notify
from responses.webhooks.outbox import announce
from tenants.models import NotificationKind


def announce_with_mail(
    *, team_id: str, object_id: str, kind: NotificationKind, message: Mapping[str, str], data: Mapping[str, Any]
) -> None:
    """Announce an object to the team once, in the caller's transaction. The type of the event is the kind.

    `message` has the fields of a `Message`. The transaction must have a scope that sees the team.
    """
    made = notify(team_id=team_id, kind=kind, key=object_id, message=Message(**message), details=data)
    if made is not None:
        announce(team_id=team_id, event_type=kind.value, object_id=object_id, data=data)
