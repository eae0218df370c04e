"""SQL statements of the platform, from `pg_stat_statements`."""

from dataclasses import dataclass
from typing import Self

import psycopg

from benchmarks.stack import APPLICATION_ROLE

# Only statements of the web process: PostgreSQL checks foreign keys in the role of the tables' owner.
SOURCE = f" FROM pg_stat_statements WHERE userid = (SELECT oid FROM pg_roles WHERE rolname = '{APPLICATION_ROLE}')"
TOTALS = "SELECT coalesce(sum(calls), 0)::bigint, coalesce(sum(rows), 0)::bigint" + SOURCE
EACH = (
    "SELECT calls, total_exec_time, rows, regexp_replace(query, '\\s+', ' ', 'g')"
    + SOURCE
    + " ORDER BY calls DESC, total_exec_time DESC LIMIT 60"
)


@dataclass(frozen=True, kw_only=True)
class Statements:
    """Number of statements without BEGIN and COMMIT, and of rows that they returned or changed."""

    calls: int
    rows: int

    @classmethod
    def so_far(cls, *, admin: str) -> Self:
        with psycopg.connect(admin) as connection:
            row = connection.execute(TOTALS).fetchone()
        return cls(calls=row[0], rows=row[1]) if row else cls(calls=0, rows=0)

    def since(self, earlier: Self) -> Self:
        return type(self)(calls=self.calls - earlier.calls, rows=self.rows - earlier.rows)


def forget(*, admin: str) -> None:
    """Reset the counters."""
    with psycopg.connect(admin) as connection:
        connection.execute("SELECT pg_stat_statements_reset()")


def listed(*, admin: str, requests: int) -> list[str]:
    """Return calls, time and rows per request of each statement since `forget`, the most frequent first."""
    with psycopg.connect(admin) as connection:
        found = connection.execute(EACH).fetchall()
    return [
        f"  {calls / requests:6.2f} calls {1000 * spent / requests:6.0f} us {rows / requests:7.2f} rows  {text[:200]}"
        for calls, spent, rows, text in found
    ]
