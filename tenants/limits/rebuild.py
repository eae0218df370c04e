"""The state of a team's limits, read from PostgreSQL to be loaded into Redis.

First the epoch of the team is incremented. That waits for the reservations that are being stored, and those that come
later fail, as their epoch is old. Then one statement, and so one snapshot, reads the open reservations and what was
spent.
"""

from datetime import timedelta
from typing import Any

from django.db import connection

from kernel.clock import now
from tenants import scope
from tenants.limits.periods import bounds, microseconds
from tenants.models import Budget

# Clocks may differ by less than this. Near the end of a period, the spending of both periods is read.
_SKEW = timedelta(minutes=1)
_NEXT_EPOCH = """
    INSERT INTO tenants_limitepoch AS epochs (team_id, epoch) VALUES (%s, 1)
    ON CONFLICT (team_id) DO UPDATE SET epoch = epochs.epoch + 1 RETURNING epoch
"""
# Rows of other calls are only there to record their usage.
_OPEN = "(amount > 0 OR is_run OR is_queued OR is_stream)"
_RESERVATIONS = f"""
    SELECT 'reservation', id, api_key_id, end_user, concat(
               CASE WHEN is_run THEN 'R' END, CASE WHEN is_queued THEN 'Q' END, CASE WHEN is_stream THEN 'S' END
           ), amount, (extract(epoch FROM created_at) * 1000000)::bigint
    FROM tenants_reservation WHERE team_id = %s AND {_OPEN}
"""  # noqa: S608 - a constant
_SPENT = """
    SELECT %s::text, {subject}, '', '', '', sum(coalesce(budget_cost, cost)), %s::bigint
    FROM tenants_usagerecord
    WHERE team_id = %s AND occurred_at >= %s AND occurred_at < %s AND (cost > 0 OR budget_cost > 0) {condition}
    GROUP BY {subject}
"""
_SUBJECTS = {
    "t": ("team_id", ""),
    "k": ("api_key_id", "AND api_key_id IS NOT NULL"),
    "u": ("end_user", "AND end_user <> ''"),
}
UNITS = 10**10
"""Units of the script's amounts in a dollar."""


def subjects(key_id: str, end_user: str) -> list[str]:
    """Return the subjects of a request as the script names them: the team, the key and the end user."""
    return ["t", f"k:{key_id}", *([f"u:{end_user}"] if end_user else [])]


def read_state(team_id: str) -> dict[str, Any]:
    """Begin a new epoch and return the document with which the script loads the state of a team."""
    with scope.team(team_id), connection.cursor() as cursor:
        cursor.execute(_NEXT_EPOCH, [team_id])
        (epoch,) = cursor.fetchone()
    with scope.team(team_id), connection.cursor() as cursor:
        cursor.execute("SELECT time_zone FROM tenants_team WHERE id = %s", [team_id])
        (zone,) = cursor.fetchone()
        tracked: set[tuple[str, str]] = set()
        statements, parameters = [_RESERVATIONS], list[Any]([team_id])
        hard = Budget.objects.filter(team=team_id, is_hard=True)
        for period, key_id, end_user in hard.values_list("period", "limit_set__api_key_id", "limit_set__end_user"):
            tracked.add(("k" if key_id else "u" if end_user else "t", period))
        present = now()
        for kind, period in sorted(tracked):
            subject, condition = _SUBJECTS[kind]
            for since, until in sorted({bounds(period, at, zone) for at in (present - _SKEW, present + _SKEW)}):
                statements.append(_SPENT.format(subject=subject, condition=condition))
                parameters += [f"{kind}{period}", microseconds(since), team_id, since, until]
        cursor.execute(" UNION ALL ".join(statements), parameters)
        rows, spent = [], []
        for source, one, key_id, end_user, flags, amount, at in cursor.fetchall():
            if source == "reservation":
                rows.append([one, flags, _units(amount), at, subjects(key_id, end_user)])
            else:
                kind, period = source[0], source[1:]
                subject = "t" if kind == "t" else f"{kind}:{one}"
                spent.append([f"s:{subject}:{period}:{at}", _units(amount)])
    names = "".join(f"{kind}{period} " for kind, period in sorted(tracked))
    return {"op": "load", "epoch": epoch, "zone": zone, "tracked": f" {names}", "spent": spent, "rows": rows}


def open_reservations(team_id: str) -> dict[str, int]:
    """Return the reservations that count, by id, with the time at which they were made, in Unix microseconds."""
    with scope.team(team_id), connection.cursor() as cursor:
        cursor.execute(_RESERVATIONS, [team_id])
        return {row[1]: row[6] for row in cursor.fetchall()}


def _units(amount: Any) -> int:
    return int(amount * UNITS)
