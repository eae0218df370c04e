"""Leases: a process that works on a row owns it until an expiry time, which it extends while it works.

Taking a lease increments the token of the row (a fencing token), and every write names the token. So a process that has
lost its lease without noticing, because it was paused for example, writes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.conf import settings
from django.db.models import DateTimeField, F, Func, Model, Q, QuerySet
from django.db.models.functions import Least

from core.clock import now, shared, shared_now
from core.process_name import process_name

Row = TypeVar("Row", bound=Model)
STEP_BY_INDEX = "SET LOCAL enable_bitmapscan = off"
"""SQL that makes queries of a transaction step from one team to the next in an index.

Until the next ANALYZE, PostgreSQL does not expect the 100,000 rows that a team has just added, and would sort them all
to find the next team.
"""


def lease_until() -> datetime:
    """Return the expiry time of a lease that is taken or renewed now, by `shared_now`."""
    return shared_now() + timedelta(seconds=settings.LEASE_SECONDS)


@dataclass(eq=False, slots=True, kw_only=True)
class Claim:
    """A row that this process has claimed by its primary key `id`, and the token that its writes must name.

    `has_expired`: the previous lease was not released, so its process has died.
    `labels` identify the work to operators, for example the ids of a line and its batch.
    """

    id: Any
    team_id: str
    token: int = 0
    attempt: int = 1
    has_expired: bool = False
    until: datetime = field(default_factory=lease_until)
    since: datetime = field(default_factory=now)
    labels: Mapping[str, str] = field(default_factory=dict)

    def row(self, rows: "QuerySet[Row]") -> "QuerySet[Row]":
        """Return a query of the row, empty if the lease was lost."""
        return rows.filter(pk=self.id, lease_token=self.token)


def expired_before() -> datetime:
    """Return the time before which leases have expired; it is earlier after a jump of the database's clock.

    When that clock is set forward, all leases of living processes would look expired until they are renewed.
    """
    return shared_now() - shared.set_forward(within=settings.LEASE_SECONDS)


HAS_EXPIRED = "lease_until < LEAST(%(expired)s, statement_timestamp())"
"""The SQL condition of rows whose lease has expired; `expired` is `expired_before()`.

When the database's clock is set back, another process may take a lease by the new time before this process knows it.
"""


def has_expired() -> Q:
    """Return the condition of rows whose lease has expired."""
    database_time = Func(function="statement_timestamp", output_field=DateTimeField())
    return Q(lease_until__lt=Least(expired_before(), database_time))


def is_free() -> Q:
    """Return the condition of rows without a valid lease."""
    return Q(lease_until__isnull=True) | has_expired()


def lock(rows: "QuerySet[Row]", *, of: Sequence[str] = ()) -> "QuerySet[Row]":
    """Return a query that locks rows until the end of the transaction. Rows that are locked already are skipped."""
    return rows.select_for_update(skip_locked=True, no_key=True, of=of)


def take(rows: "QuerySet[Any]", **changes: Any) -> None:
    """Lease rows that the transaction has locked."""
    rows.update(lease_token=F("lease_token") + 1, lease_owner=process_name(), lease_until=lease_until(), **changes)
