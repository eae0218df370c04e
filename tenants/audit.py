"""Writes the audit log; called inside the transaction of what it tells of."""

from typing import Any

from kernel.origin import origin
from tenants.models import AuditEvent


def audit(
    *,
    team_id: str | None,
    actor: str,
    action: str,
    target: str,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    request_id: str = "",
) -> None:
    """Note who did what to which object, and from where. Callers leave secrets out of `before` and `after`."""
    sender = origin()
    AuditEvent.objects.create(
        team_id=team_id,
        actor=actor,
        action=action,
        target=target,
        before=before or {},
        after=after or {},
        request_id=request_id or sender.request_id,
        address=sender.address or None,
        agent=sender.agent,
    )
