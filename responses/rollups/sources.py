"""The three sources of sums: their tables, the dimensions by which sums are grouped, and the levels of detail."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from responses.models import RUNNING, Status
from responses.rollups import cells, histograms

_TOKENS = ("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")
_TOKEN_SUMS = {**{name: f"sum({name})" for name in _TOKENS}, "cost": "sum(cost)"}
_MEDIA = (
    "input_audio_tokens", "input_image_tokens", "output_audio_tokens", "output_image_tokens",
    "audio_seconds", "characters", "images",
)  # fmt: skip
_RUNNING = ", ".join(f"'{status}'" for status in RUNNING)
DAY = 1 << 12
"""Added to the number of a level in the sums of whole days, which are stored in the same table."""


@dataclass(frozen=True, kw_only=True)
class RollupSource:
    """A table of rows (`rows`) and the table of its sums (`table`).

    - `time`: the column that decides to which hour a row belongs. The rows have an index that starts with it.
    - `columns`: the columns of the rows that the expressions below use.
    - `dimensions`, `sums`, `histograms`: the columns of the sums, each with its SQL expression over the rows. The first
      dimension is the team.
    - `levels`: the sets of dimensions for which sums are kept, the smallest first.
    - `is_open`: the SQL condition of rows that may still change, or None if rows never change.
    """

    name: str
    rows: str
    table: str
    time: str
    columns: Sequence[str]
    dimensions: Mapping[str, str]
    sums: Mapping[str, str]
    histograms: Mapping[str, str]
    levels: Sequence[frozenset[str]]
    is_open: str | None = None

    @cached_property
    def names(self) -> list[str]:
        """The names of the dimensions, in order."""
        return [*self.dimensions]

    def level(self, wanted: frozenset[str]) -> int:
        """Return the number of the smallest level that contains these dimensions."""
        return self.number(next(level for level in self.levels if wanted <= level))

    def number(self, level: frozenset[str]) -> int:
        """Return the number of a level as in PostgreSQL's GROUPING: one bit per dimension that it does not contain."""
        return sum(1 << place for place, name in enumerate(reversed(self.names)) if name not in level)

    @property
    def numbers(self) -> list[int]:
        """The GROUPING number of each level."""
        return [self.number(level) for level in self.levels]

    @property
    def days(self) -> list[int]:
        """The numbers of the same levels in the sums of whole days."""
        return [DAY + number for number in self.numbers]

    @property
    def id_type(self) -> str:
        """The SQL type of the ids of the rows."""
        return "text" if self.name == "responses" else "bigint"

    def within(self, since: str, until: str) -> str:
        """Return the SQL condition of rows between two times."""
        return f"{self.time} >= {since} AND {self.time} < {until}"


def _levels(names: Sequence[str], *sets: str) -> list[frozenset[str]]:
    return [*(frozenset(level.split()) for level in sets), frozenset(names)]


_RESPONSE_DIMENSIONS = {
    "team_id": "team_id",
    "api_key_id": "api_key_id",
    "model": "model",
    "upstream_id": "upstream_id",
    "status": "status",
    "mode": "CASE WHEN background THEN 'background' ELSE mode END",
}
RESPONSES = RollupSource(
    name="responses",
    rows="responses_response",
    table="responses_responsehour",
    time="created_at",
    columns=(
        "id", "team_id", "api_key_id", "created_at", "status", "mode", "background", "model", "upstream_id",
        "first_token_ms", "duration_ms", "tool_calls", "turns", "cost", *_TOKENS,
    ),
    dimensions=_RESPONSE_DIMENSIONS,
    sums={
        "responses": "count(*)",
        "failed": f"count(*) FILTER (WHERE status = '{Status.FAILED}')",
        "tool_calls": "sum(tool_calls)",
        "unpriced": "count(*) FILTER (WHERE cost IS NULL AND turns > 0)",
        **_TOKEN_SUMS,
    },
    histograms={"duration": "duration_ms", "first_token": "first_token_ms"},
    levels=_levels(
        [*_RESPONSE_DIMENSIONS],
        "", "model", "upstream_id", "status", "mode", "team_id", "model upstream_id status mode",
        "team_id model", "team_id upstream_id", "team_id status", "team_id mode", "team_id api_key_id",
    ),
    is_open=f"status IN ({_RUNNING})",
)  # fmt: skip

_CALL_DIMENSIONS = {
    "team_id": "team_id",
    "api_key_id": "coalesce(api_key_id, '')",
    "model": "model",
    "upstream_id": "upstream_id",
    "endpoint": "endpoint",
    "outcome": "outcome",
    "batch": "batch::text",
    "service_tier": "service_tier",
    "end_user": "end_user",
}
CALLS = RollupSource(
    name="calls",
    rows="tenants_usagerecord",
    table="responses_callhour",
    time="occurred_at",
    columns=(
        "id", "team_id", "api_key_id", "occurred_at", "endpoint", "model", "upstream_id", "outcome", "batch",
        "service_tier", "end_user", "duration_ms", "cost", "budget_cost", *_TOKENS, *_MEDIA,
    ),
    dimensions=_CALL_DIMENSIONS,
    sums={
        "calls": "count(*)",
        "failed": "count(*) FILTER (WHERE outcome = 'failed')",
        # Calls of the platform's own tools have no upstream that charges for them.
        "unpriced": "count(*) FILTER (WHERE cost IS NULL AND upstream_id <> '')",
        **_TOKEN_SUMS,
        "budget_cost": "sum(coalesce(budget_cost, cost))",
        **{name: f"sum({name})" for name in _MEDIA},
    },
    histograms={"duration": "duration_ms"},
    # Budgets need the sums of each end user. If these had all other dimensions, there would be as many sums as calls.
    levels=_levels(
        [name for name in _CALL_DIMENSIONS if name != "end_user"],
        "", "model", "upstream_id", "endpoint", "outcome", "team_id", "model upstream_id endpoint outcome",
        "team_id model", "team_id upstream_id", "team_id endpoint", "team_id outcome", "team_id api_key_id",
        "team_id end_user",
    ),
    # Records never change. If a record is inserted after its hour was summed, a trigger remembers it
    # (`remember_late_usage` in the migration), and it is added like a row that has ended.
    is_open="false",
)  # fmt: skip

_TOOL_DIMENSIONS = {"team_id": "team_id", "kind": "kind", "name": "name", "status": "status"}
TOOLS = RollupSource(
    name="tools",
    rows="responses_toolcall",
    table="responses_toolhour",
    time="started_at",
    columns=("id", "team_id", "started_at", "ended_at", "waited_ms", "kind", "name", "status"),
    dimensions=_TOOL_DIMENSIONS,
    sums={"calls": "count(*)", "failed": "count(*) FILTER (WHERE status = 'failed')"},
    # Without the time that people took to decide. Rows that only ask for approval have no other time.
    histograms={
        "duration": """CASE WHEN status NOT IN ('asked', 'approved', 'denied')
            THEN greatest(0, 1000 * extract(epoch FROM ended_at - started_at) - coalesce(waited_ms, 0))::int END"""
    },
    levels=_levels([*_TOOL_DIMENSIONS], "", "kind", "kind name", "kind name status", "team_id", "team_id kind name"),
    # Many clients never send outputs of calls or answers to approval requests, so calls are open only for a limited
    # time.
    is_open="""ended_at IS NULL AND CASE status
        WHEN 'waiting' THEN started_at > now() - interval '1 hour'
        WHEN 'asked' THEN started_at > now() - interval '7 days'
        ELSE true END""",
)

SOURCES = (RESPONSES, CALLS, TOOLS)


def cells_sql(
    source: RollupSource,
    rows: str,
    *,
    sets: Sequence[frozenset[str]],
    wanted: Sequence[str] | None = None,
    whole_days: bool = False,
) -> str:
    """Return the SQL that sums rows (an element of a FROM clause) at some levels of detail.

    They are summed by hour, or part of one, or by day of UTC. The columns are the hour (the start of the day), the
    dimensions of any of the levels, the `wanted` sums and histograms (all by default), and `level` if the levels
    together contain every dimension.
    """
    dimensions = [name for name in source.names if any(name in level for level in sets)]
    sums = {name: sql for name, sql in source.sums.items() if wanted is None or name in wanted}
    buckets = {name: sql for name, sql in source.histograms.items() if wanted is None or name in wanted}
    start = cells.day_sql(source.time) if whole_days else cells.cell_sql(source.time)
    inner = [f"{start} AS hour", *source.columns]
    inner += [f"{source.dimensions[name]} AS d_{name}" for name in dimensions]
    inner += [f"{histograms.bucket_sql(sql)} AS b_{name}" for name, sql in buckets.items()]
    # A null team means the sum of all teams; other dimensions that a level does not contain are empty.
    shown = {name: f"d_{name}" if name == "team_id" else f"coalesce(d_{name}, '')" for name in dimensions}
    outer = ["hour", *(f"{sql} AS {name}" for name, sql in shown.items())]
    outer += [f"{sql} AS {name}" for name, sql in sums.items()]
    outer += [f"{histograms.count_sql(f'b_{name}')} AS {name}" for name in buckets]
    if len(dimensions) == len(source.names):
        grouping = f"GROUPING({', '.join(f'd_{name}' for name in dimensions)})"
        outer.append(f"{grouping} + {DAY if whole_days else 0} AS level")
    grouped = ", ".join(f"({', '.join(f'd_{name}' for name in dimensions if name in level)})" for level in sets)
    # OFFSET 0 prevents PostgreSQL from computing the bucket of a row again for each bucket that is counted.
    return f"""
SELECT {", ".join(outer)}
FROM (SELECT {", ".join(inner)} FROM {rows} AS rows OFFSET 0) AS rows
GROUP BY hour, GROUPING SETS ({grouped})
"""  # noqa: S608 - names and expressions of our own
