"""Comparison of the stored rows with the number of requests."""

from dataclasses import dataclass
from typing import Self

import psycopg

from benchmarks.cells import Cell
from benchmarks.load import Measurement

# Executed as superuser: row-level security hides all rows from other roles that have not set a team.
STORED = {
    "responses": "SELECT count(*) FROM responses_response",
    "responses completed": "SELECT count(*) FROM responses_response WHERE status = 'completed'",
    "items": "SELECT count(*) FROM conversations_item",
    "placements": "SELECT count(*) FROM conversations_placement",
    "turns": "SELECT count(*) FROM responses_turn",
    "usage rows": "SELECT count(*) FROM tenants_usagerecord",
    "responses with a whole log": """
        SELECT count(*) FROM (
            SELECT response_id FROM responses_eventbatch GROUP BY response_id
            HAVING min(first_sequence) = 0 AND sum(last_sequence - first_sequence + 1) = max(last_sequence) + 1
        ) AS gapless""",
}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Number of completed requests to the platform, and of ``failed`` ones.

    ``stored`` responses have items and an event log; those with ``store: false`` have only a row.
    """

    stored: int = 0
    unstored: int = 0
    failed: int = 0

    def plus(self, cell: Cell, measurement: Measurement) -> Self:
        stored, unstored = (measurement.completed, 0) if cell.stored else (0, measurement.completed)
        return type(self)(
            stored=self.stored + stored,
            unstored=self.unstored + unstored,
            failed=self.failed + measurement.failed,
        )

    def expected(self) -> dict[str, int]:
        """Return the expected rows: an input item, an output item, a turn and a gapless log per stored response."""
        completed = self.stored + self.unstored
        return {
            "responses": completed,
            "responses completed": completed,
            "items": 2 * self.stored,
            "placements": 2 * self.stored,
            "turns": completed,
            "usage rows": completed,
            "responses with a whole log": self.stored,
        }


@dataclass(frozen=True, kw_only=True)
class Count:
    """Expected and actual number of rows of a kind."""

    kind: str
    expected: int
    found: int

    @property
    def matches(self) -> bool:
        return self.expected == self.found


def counted(*, admin: str, asked: Asked) -> list[Count]:
    """Count the stored rows."""
    # Without waiting: everything that a client was notified of must be committed.
    with psycopg.connect(admin) as connection:
        found = {kind: _number(connection, query) for kind, query in STORED.items()}
    return [Count(kind=kind, expected=number, found=found[kind]) for kind, number in asked.expected().items()]


def _number(connection: psycopg.Connection[tuple[int]], query: str) -> int:
    row = connection.execute(query.encode()).fetchone()
    return row[0] if row else 0
