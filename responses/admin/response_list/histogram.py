"""Histogram above the response list: responses by time and outcome."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from console import charts
from console.charts import ChartPoint, Series
from console.widgets import compact
from core.clock import now
from responses.admin.response_list.changelist import SCAN_LIMIT, IndexHint, ResponseChangeList
from responses.models import Status
from responses.rollups import queries
from responses.rollups.queries import RollupQuery
from responses.rollups.sources import RESPONSES
from tenants.console.viewer import viewer_of

MAX_BARS = 30
# Labels begin at their bar. One that begins later would not fit on the plot of a narrow screen.
_LAST_MARK = 84
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_BAR_SECONDS = (
    *(minutes * _MINUTE for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * _HOUR for hours in (1, 2, 3, 6, 12)),
    *(days * _DAY for days in (1, 2, 7, 30)),
)
_KINDS = {Status.COMPLETED.value: "completed", Status.FAILED.value: "failed"}
_COUNT = """
SELECT floor(extract(epoch FROM created_at) / %s)::bigint AS bar, status,
       count(*) FILTER (WHERE matches), count(*), min(created_at)
FROM ({rows}) AS newest
GROUP BY 1, 2
"""

# Tones are classes of list.css.
_SERIES = [Series(name=kind, tone=kind) for kind in ("completed", "failed", "other")]

# Numbers of responses by bar (its start divided by the length of a bar) and kind.
Counts = Mapping[int, Counter[str]]


def histogram(rows: ResponseChangeList) -> dict[str, Any] | None:
    """Return the context of `histogram.html`, or None for a search by id, which has no time range.

    Positions and heights of the bars are percentages of the plot. If the count reached the scan limit, `truncated_at`
    is the time of the oldest counted response and `truncated_percent` the share of the plot before that time.
    """
    since, until = rows.span.since, rows.span.until or now()
    if since is None or since >= until:
        return None
    # In whole seconds: the range was read a moment before, so that a day would be a little longer than 24 hours.
    shortest = int((until - since).total_seconds()) / MAX_BARS
    width = next((width for width in _BAR_SECONDS if width >= shortest), _BAR_SECONDS[-1])
    truncated_at, counts = None, _summed(rows, width, since, until)
    if counts is None:
        counts, truncated_at = _counted(rows, width)
    first, last = (int(moment.timestamp()) // width for moment in (since, until))
    numbers = range(first, last + 1)
    total, slot = sum(counts[number].total() for number in numbers), 100 / len(numbers)
    starts = [datetime.fromtimestamp(number * width, UTC) for number in numbers]
    day_format = "%d %b" if width >= _DAY else "%d %b %H:%M"
    points = [
        ChartPoint(
            name=f"{begins:{day_format}} UTC",
            label="",
            values=[counts[number][series.tone] for series in _SERIES],
            url=rows.link(begins, begins + timedelta(seconds=width - 1)),
        )
        for number, begins in zip(numbers, starts, strict=True)
    ]
    chart = charts.stacked(
        points, _SERIES, title="Responses", format_value=lambda value: f"{value:,}", has_round_top=False
    )
    highest = max(counts[number].total() for number in numbers)
    # About six labels fit below the plot on a narrow screen.
    step = max(1, len(numbers) // 6)
    label_format = "%d %b" if width * step >= _DAY else "%H:%M"
    seconds, unit = next(entry for entry in ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute")) if width >= entry[0])
    return {
        "bars": chart.bars,
        "marks": [
            (round(i * slot, 3), f"{starts[i]:{label_format}}")
            for i in range(0, len(starts), step)
            if i * slot < _LAST_MARK
        ],
        "highest": compact(highest) if highest else "",
        "total": f"{total:,}" + ("+" if truncated_at else ""),
        "interval": f"each {unit}" if width == seconds else f"every {width // seconds} {unit}s",
        "truncated_at": truncated_at,
        "truncated_percent": (
            0.0 if truncated_at is None else round(slot * (int(truncated_at.timestamp()) / width - first), 3)
        ),
    }


def _summed(rows: ResponseChangeList, width: int, since: datetime, until: datetime) -> Counts | None:
    """Return complete counts from the hourly sums, or None if the sums lack a dimension of an active filter."""
    # While the rollup task is behind, recent hours are missing from the sums.
    if width < _HOUR or not rows.active.keys() <= {IndexHint.TEAM, IndexHint.MODEL} or queries.is_behind(at=now()):
        return None
    team, model = rows.active.get(IndexHint.TEAM), rows.active.get(IndexHint.MODEL)
    visible = viewer_of(rows.request).team_ids()
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
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for sums in queries.fetch_rows(question):
        if sums.bucket is not None:
            bar = int(sums.bucket.timestamp()) // width
            counts[bar][_KINDS.get(sums.key[0], "other")] += sums.values["responses"]
    return counts


def _counted(rows: ResponseChangeList, width: int) -> tuple[Counts, datetime | None]:
    """Count the rows by bar and kind; also return the time where the count stopped, or None if it is complete."""
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    found = rows.plan.rows(_COUNT, width, max_rows=SCAN_LIMIT)
    for bar, status, matching, _, _ in found:
        counts[bar][_KINDS.get(status, "other")] += matching
    scanned = sum(number for *_, number, _ in found)
    return counts, min(oldest for *_, oldest in found) if scanned >= SCAN_LIMIT else None
