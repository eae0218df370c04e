"""Histogram above the response list: responses by time and outcome."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from console.widgets import compact
from kernel.clock import now
from responses.admin.response_list import filters
from responses.admin.response_list.changelist import SCAN_LIMIT, FilteredChangeList, bound_params
from responses.models import Status
from responses.rollups import queries
from responses.rollups.queries import RollupQuery
from responses.rollups.sources import RESPONSES
from tenants.console.roles import everywhere, teams_of

MAX_BARS = 30
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_BAR_SECONDS = (
    *(minutes * _MINUTE for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * _HOUR for hours in (1, 2, 3, 6, 12)),
    *(days * _DAY for days in (1, 2, 7, 30)),
)
_KINDS = {Status.COMPLETED.value: "completed", Status.FAILED.value: "failed"}
_ORDER = ("completed", "failed", "other")
# Filters whose dimension the hourly sums have.
_SUMMED = {filters.TeamFilter, filters.ModelFilter}
_COUNT = """
SELECT floor(extract(epoch FROM created_at) / %s)::bigint AS bar, status,
       count(*) FILTER (WHERE matches), count(*), min(created_at)
FROM ({rows}) AS newest
GROUP BY 1, 2
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramBar:
    """Bar of one time interval; heights and positions in percent of the plot."""

    x: float
    width: float
    parts: Sequence[tuple[str, float, float]]
    hint: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Bars with axis labels and total.

    `truncated_at` is the time of the oldest counted response if the count reached the scan limit. `truncated_percent`
    is the share of the plot before that time.
    """

    bars: Sequence[HistogramBar]
    marks: Sequence[tuple[float, str]]
    highest: str
    total: str
    interval: str
    truncated_at: datetime | None = None
    truncated_percent: float = 0.0


Counts = Mapping[int, Mapping[str, int]]


def build_histogram(rows: FilteredChangeList) -> Histogram | None:
    """Return the histogram of a list, or None for a search by id, which has no time range."""
    since, until = rows.span.since, rows.span.until or now()
    if since is None or since >= until:
        return None
    width = _bar_seconds(until - since)
    summed = _summed(rows, width, since, until)
    counts, truncated_at = _counted(rows, width) if summed is None else (summed, None)
    first, last = (int(moment.timestamp()) // width for moment in (since, until))
    heights = [sum(counts.get(bar, {}).values()) for bar in range(first, last + 1)]
    highest, slot = max(heights), 100 / (last - first + 1)
    total = sum(heights)
    return Histogram(
        bars=[_bar(rows, counts.get(first + index, {}), first + index, index, slot, width, highest)
              for index in range(last - first + 1)],
        marks=list(_marks(first, last, width, slot)),
        highest=compact(highest) if highest else "",
        total=f"{total:,}" + ("+" if truncated_at else ""),
        interval=_interval_name(width),
        truncated_at=truncated_at,
        truncated_percent=(
            0.0 if truncated_at is None else round(slot * (int(truncated_at.timestamp()) / width - first), 3)
        ),
    )  # fmt: skip


def _bar_seconds(length: timedelta) -> int:
    shortest = length.total_seconds() / MAX_BARS
    return next((width for width in _BAR_SECONDS if width >= shortest), _BAR_SECONDS[-1])


def _summed(rows: FilteredChangeList, width: int, since: datetime, until: datetime) -> Counts | None:
    """Return complete counts from the hourly sums, or None if the sums lack a dimension of an active filter."""
    chosen = {type(spec): str(spec.value()) for spec in rows.active}
    # While the rollup task is behind, recent hours are missing from the sums.
    if width < _HOUR or not chosen.keys() <= _SUMMED or queries.is_behind(at=now()):
        return None
    team, model = chosen.get(filters.TeamFilter), chosen.get(filters.ModelFilter)
    visible = None if everywhere(rows.request) else teams_of(rows.request)
    teams = visible if team is None else [team] if visible is None or team in visible else []
    # Sums by team and model exist only at the finest level, which has about as many rows as there are responses.
    if model is not None and teams is not None:
        return None
    question = RollupQuery(
        source=RESPONSES,
        since=since.replace(minute=0, second=0, microsecond=0),
        until=until,
        measures=["responses"],
        by=["status"],
        bucket="hour",
        teams=teams,
        only={} if model is None else {"model": [model]},
    )
    counts: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for sums in queries.fetch_rows(question):
        if sums.bucket is not None:
            bar = int(sums.bucket.timestamp()) // width
            counts[bar][_KINDS.get(sums.key[0], "other")] += sums.values["responses"]
    return counts


def _counted(rows: FilteredChangeList, width: int) -> tuple[Counts, datetime | None]:
    """Count the rows by bar and kind; also return the time where the count stopped, or None if it is complete."""
    counts: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    found = rows.plan.rows(_COUNT, width, max_rows=SCAN_LIMIT)
    for bar, status, matching, _, _ in found:
        counts[bar][_KINDS.get(status, "other")] += matching
    scanned = sum(number for *_, number, _ in found)
    return counts, min(oldest for *_, oldest in found) if scanned >= SCAN_LIMIT else None


def _bar(
    rows: FilteredChangeList, stack: Mapping[str, int], number: int, index: int, slot: float, width: int, highest: int
) -> HistogramBar:
    begins = datetime.fromtimestamp(number * width, UTC)
    ends = begins + timedelta(seconds=width - 1)
    parts, top = [], 100.0
    for kind in _ORDER:
        height = 100 * stack.get(kind, 0) / highest if highest else 0
        top -= height
        if height:
            parts.append((kind, round(top, 2), round(height, 2)))
    counts_text = ", ".join(f"{stack[kind]:,} {kind}" for kind in _ORDER if stack.get(kind)) or "none"
    shape = "%d %b" if width >= _DAY else "%d %b %H:%M"
    return HistogramBar(
        x=round(index * slot + slot * 0.12, 3),
        width=round(slot * 0.76, 3),
        parts=parts,
        hint=f"{begins:{shape}} UTC: {counts_text}",
        url=rows.link(**bound_params("from", begins), **bound_params("to", ends)),
    )


def _marks(first: int, last: int, width: int, slot: float) -> Iterator[tuple[float, str]]:
    # About six labels fit below the plot on a narrow screen.
    step = max(1, (last - first + 1) // 6)
    for index in range(0, last - first + 1, step):
        begins = datetime.fromtimestamp((first + index) * width, UTC)
        yield round(index * slot, 3), f"{begins:%d %b}" if width * step >= _DAY else f"{begins:%H:%M}"


def _interval_name(width: int) -> str:
    for seconds, unit in ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute")):
        if width >= seconds:
            count = width // seconds
            return f"each {unit}" if count == 1 else f"every {count} {unit}s"
    return ""
