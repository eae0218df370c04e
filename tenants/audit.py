"""Writing of the audit log."""

from typing import Any

from core.origin import origin
from tenants.models import AuditEvent
from tenants.principal import Principal


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
    """Write a line of the audit log, within the transaction of the change.

    Address, user agent and request id come from the current request. `before` and `after` must not contain secrets.
    """
    sender = origin()
    AuditEvent.objects.create(
        team_id=team_id,
        actor=actor,
        action=action,
        target=target,
        before=before or {},
        after=after or {},
        request_id=request_id or sender.request_id,
        # Tasks and commands have no client address.
        address=sender.address or None,
        agent=sender.agent,
    )


def audit_call(
    principal: Principal,
    action: str,
    target: str,
    *,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    """Write a line of the audit log for a change that a caller of the API made in its team."""
    audit(team_id=principal.team_id, actor=principal.actor, action=action, target=target, before=before, after=after)
