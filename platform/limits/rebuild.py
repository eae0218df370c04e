"""The state of a team's limits, read from PostgreSQL to be loaded into Redis.

First, the team's epoch is incremented. This waits for reservations that are being stored; later reservations fail,
because their epoch is old. Then a single statement reads the open reservations and the spending from one snapshot.
"""

from datetime import timedelta
from typing import Any, Protocol

from django.conf import settings
from django.db import connection
from django.utils.module_loading import import_string

from core.clock import shared_now
from core.periods import bounds, microseconds
from tenants import scope
from tenants.models import Budget

# Clocks may differ by less than this. Near the end of a period, the spending of both periods is read.
_SKEW = timedelta(minutes=1)
_NEXT_EPOCH = """
    INSERT INTO tenants_limitepoch AS epochs (team_id, epoch) VALUES (%s, 1)
    ON CONFLICT (team_id) DO UPDATE SET epoch = epochs.epoch + 1 RETURNING epoch
"""
# All other rows exist only to record the usage of their calls; they reserve nothing.
_OPEN = "(amount > 0 OR is_run OR is_queued OR is_stream)"
_RESERVATIONS = f"""
    SELECT 'reservation', id, api_key_id, end_user, concat(
               CASE WHEN is_run THEN 'R' END, CASE WHEN is_queued THEN 'Q' END, CASE WHEN is_stream THEN 'S' END
           ), amount, (extract(epoch FROM created_at) * 1000000)::bigint
    FROM tenants_reservation WHERE team_id = %(team)s AND {_OPEN}
"""  # noqa: S608 - a constant
_SPENT = "SELECT '{source}', subject, '', '', '', amount, {start}::bigint FROM ({spent}) AS spent"
UNITS = 10**10
"""Units of the script's amounts in a dollar."""


class CountedSql(Protocol):
    """Returns the SQL of the spending that budgets count, in another app's tables (setting `BUDGETS_COUNTED_SQL`)."""

    def __call__(self, kind: str, *, since: str, until: str) -> str:
        """Return the SQL for all subjects of a kind. The period is between the expressions `since` and `until`."""


def subjects(key_id: str, end_user: str) -> list[str]:
    """Return the subjects of a request as the script names them: the team, the key and the end user."""
    return ["t", f"k:{key_id}", *([f"u:{end_user}"] if end_user else [])]


def read_state(team_id: str) -> dict[str, Any]:
    """Begin a new epoch of a team and return the document that the script loads as the team's state."""
    with scope.team(team_id), connection.cursor() as cursor:
        cursor.execute(_NEXT_EPOCH, [team_id])
        (epoch,) = cursor.fetchone()
    with scope.team(team_id), connection.cursor() as cursor:
        cursor.execute("SELECT time_zone FROM tenants_team WHERE id = %s", [team_id])
        (zone,) = cursor.fetchone()
        tracked: set[tuple[str, str]] = set()
        statements, parameters = [_RESERVATIONS], dict[str, Any](team=team_id)
        counted_sql: CountedSql = import_string(settings.BUDGETS_COUNTED_SQL)
        hard = Budget.objects.filter(team=team_id, is_hard=True)
        for period, key_id, end_user in hard.values_list("period", "limit_set__api_key_id", "limit_set__end_user"):
            tracked.add(("k" if key_id else "u" if end_user else "t", period))
        present = shared_now()
        for kind, period in sorted(tracked):
            for since, until in sorted({bounds(period, at, zone) for at in (present - _SKEW, present + _SKEW)}):
                place = len(statements)
                spent_sql = counted_sql(kind, since=f"%(since{place})s", until=f"%(until{place})s")
                statements.append(_SPENT.format(source=f"{kind}{period}", start=f"%(start{place})s", spent=spent_sql))
                parameters |= {f"since{place}": since, f"until{place}": until, f"start{place}": microseconds(since)}
        cursor.execute(" UNION ALL ".join(statements), parameters)
        rows, spent = [], []
        for source, identifier, key_id, end_user, flags, amount, at in cursor.fetchall():
            if source == "reservation":
                rows.append([identifier, flags, _units(amount), at, subjects(key_id, end_user)])
            else:
                kind, period = source[0], source[1:]
                subject = "t" if kind == "t" else f"{kind}:{identifier}"
                spent.append([f"s:{subject}:{period}:{at}", _units(amount)])
    names = "".join(f"{kind}{period} " for kind, period in sorted(tracked))
    return {"op": "load", "epoch": epoch, "zone": zone, "tracked": f" {names}", "spent": spent, "rows": rows}


def open_reservations(team_id: str) -> dict[str, int]:
    """Return the time of each reservation that counts, in Unix microseconds, by the id of the reservation."""
    with scope.team(team_id), connection.cursor() as cursor:
        cursor.execute(_RESERVATIONS, {"team": team_id})
        return {row[1]: row[6] for row in cursor.fetchall()}


def _units(amount: Any) -> int:
    return int(amount * UNITS)
