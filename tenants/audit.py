"""Writing of the audit log."""

from collections.abc import Iterable
from typing import Any

from django.db.models import Q

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
    AuditEvent.objects.create(
        team_id=team_id,
        actor=actor,
        action=action,
        target=target,
        before=before or {},
        after=after or {},
        **_origin_columns(request_id),
    )


def audit_teams(*, team_ids: Iterable[str], actor: str, action: str, target: str) -> None:
    """Write one line of the audit log about several teams. Each of them sees it."""
    AuditEvent.objects.create(team_ids=sorted(team_ids), actor=actor, action=action, target=target, **_origin_columns())


def _origin_columns(request_id: str = "") -> dict[str, Any]:
    sender = origin()
    # Tasks and commands have no client address.
    return {
        "request_id": request_id or sender.request_id,
        "address": sender.address or None,
        "agent": sender.agent,
    }


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


def lines_of(team_ids: Iterable[str]) -> Q:
    """Return the condition for the audit lines of teams, including lines about several teams."""
    ids = list(team_ids)
    # Without a team, so that the index by team finds these lines too: under row-level security no index has arrays.
    return Q(team__in=ids) | Q(team=None, team_ids__overlap=ids)
