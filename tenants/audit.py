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
    team_ids: Iterable[str] | None = None,
) -> None:
    """Write a line of the audit log, within the transaction of the change.

    A line about several teams has `team_ids` instead of a team, and must not contain anything that only some of these
    teams may know. Address, user agent and request id come from the current request. `before` and `after` must not
    contain secrets.
    """
    sender = origin()
    AuditEvent.objects.create(
        team_id=team_id,
        team_ids=None if team_ids is None else sorted(team_ids),
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


def lines_of(team_ids: Iterable[str]) -> Q:
    """Return the condition for the audit lines of teams, including lines about several teams."""
    ids = list(team_ids)
    # Without a team, so that the index by team finds these lines too: under row-level security no index has arrays.
    return Q(team__in=ids) | Q(team=None, team_ids__overlap=ids)
