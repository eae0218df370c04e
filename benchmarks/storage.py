"""Bytes that a stored response of 64 tokens takes: on disk, with indexes and TOAST, and in the write-ahead log."""

from collections.abc import Callable, Iterator

import psycopg
from pydantic import BaseModel, ConfigDict

from benchmarks.report import Floor

MOST_DISK_KB, MOST_WAL_KB = 5.0, 6.0
_SIZES = """
SELECT c.relname, pg_total_relation_size(c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname = 'public'
"""
# A process reports its last second late, so these are shares and not counts. PostgreSQL 15 does not count new pages.
_UPDATES = """
SELECT relname, n_tup_upd, n_tup_hot_upd, (to_jsonb(table_statistics) ->> 'n_tup_newpage_upd')::bigint
FROM pg_stat_user_tables AS table_statistics WHERE n_tup_upd > 0 ORDER BY n_tup_upd DESC
"""


class Updates(BaseModel):
    """Shares of a table's updates: those that are HOT, and those that stay on the page of the row (None if unknown)."""

    model_config = ConfigDict(frozen=True)

    table: str
    hot: float
    same_page: float | None

    def text(self) -> str:
        """Return the shares for the report."""
        stays = "" if self.same_page is None else f", {self.same_page:.0%} on the same page"
        return f"{self.table} {self.hot:.0%} HOT{stays}"


class Storage(BaseModel):
    """Bytes per response. ``wal_after_checkpoint`` includes the images of pages that change for the first time."""

    model_config = ConfigDict(frozen=True)

    responses: int
    disk: float
    wal: float
    wal_after_checkpoint: float
    tables: dict[str, float]
    updates: list[Updates]

    def floors(self) -> Iterator[Floor]:
        """Yield the limits."""
        yield Floor(name="KB on disk per response", figure=self.disk / 1024, limit=MOST_DISK_KB)
        yield Floor(name="KB of WAL per response", figure=self.wal / 1024, limit=MOST_WAL_KB)

    def lines(self) -> Iterator[str]:
        """Yield the report."""
        yield f"bytes per response of 64 tokens ({self.responses:,} streams): {self.disk:,.0f} on disk,"
        yield f"{self.wal:,.0f} of WAL, {self.wal_after_checkpoint:,.0f} of WAL right after a checkpoint"
        yield "on disk by table: " + ", ".join(f"{name} {size:,.0f}" for name, size in self.tables.items())
        yield "updates: " + "; ".join(each.text() for each in self.updates)


def measure(admin: str, load: Callable[[], int]) -> Storage:
    """Run the same load three times and measure the last two. `load` returns its number of responses.

    The first load fills pages that were allocated before, so that only the responses of the others make the tables
    grow.
    """
    with psycopg.connect(admin, autocommit=True) as database:

        def position() -> float:
            [found] = database.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn").fetchone() or (0,)
            return float(found)

        def sizes() -> dict[str, int]:
            return {str(name): int(size) for name, size in database.execute(_SIZES)}

        load()
        database.execute("CHECKPOINT")
        before, began = sizes(), position()
        responses = load()
        after_checkpoint, began = position() - began, position()
        later = load()
        wal = position() - began
        database.execute("CHECKPOINT")
        after = sizes()
        updates = [
            Updates(table=name, hot=hot / count, same_page=None if moved is None else 1 - moved / count)
            for name, count, hot, moved in database.execute(_UPDATES)
        ]
    both = responses + later
    grown = {name: (size - before.get(name, 0)) / max(1, both) for name, size in after.items()}
    return Storage(
        responses=both,
        disk=sum(grown.values()),
        wal=wal / max(1, later),
        wal_after_checkpoint=after_checkpoint / max(1, responses),
        tables={name: size for name, size in sorted(grown.items(), key=lambda pair: -pair[1]) if size},
        updates=updates,
    )
