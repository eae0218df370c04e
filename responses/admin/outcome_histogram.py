"""Histogram above the list of responses: the number of responses by time and outcome."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime

from console.charts import Series
from console.histogram import HOUR, Counts, Histogram, bar_seconds, histogram
from console.scans import SCAN_LIMIT, ScannedChangeList
from core.clock import now
from responses.models import Status
from responses.rollups import queries
from responses.rollups.queries import RollupQuery
from responses.rollups.sources import RESPONSES
from tenants.console.viewer import viewer_of

# Tones are classes of list.css.
_SERIES = [Series(name=kind, tone=kind) for kind in ("completed", "failed", "other")]
_KINDS = {Status.COMPLETED.value: "completed", Status.FAILED.value: "failed"}
_COUNT = """
SELECT floor(extract(epoch FROM created_at) / %s)::bigint AS bar, status,
       count(*) FILTER (WHERE matches), count(*), min(created_at)
FROM ({rows}) AS newest
GROUP BY 1, 2
"""


def outcome_histogram(rows: ScannedChangeList) -> Histogram | None:
    """Return the histogram of the filtered responses, or None for a search by id, which has no time range."""
    since, until = rows.span.since, rows.span.until or now()
    if since is None or since >= until:
        return None
    width, truncated_at = bar_seconds(since, until), None
    counts = _summed(rows, width, since, until)
    if counts is None:
        counts, truncated_at = _counted(rows, width)
    return histogram(counts, _SERIES, since=since, until=until, link=rows.link, truncated_at=truncated_at)


def _summed(rows: ScannedChangeList, width: int, since: datetime, until: datetime) -> Counts | None:
    """Return complete counts from the hourly sums, or None if the sums lack a dimension of an active filter."""
    team, model = rows.active.get("team__id__exact"), rows.active.get("model")
    # While the rollup task is behind, recent hours are missing from the sums.
    if width < HOUR or not rows.active.keys() <= {"team__id__exact", "model"} or queries.is_behind(at=now()):
        return None
    visible = viewer_of(rows.request).team_ids()
    teams: Sequence[str] | None = visible
    if team is not None:
        teams = [team] if visible is None or team in visible else []
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


def _counted(rows: ScannedChangeList, width: int) -> tuple[Counts, datetime | None]:
    """Return the number of rows by bar and kind, and the time at which counting stopped, or None if it is complete."""
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    found = rows.plan.rows(_COUNT, width, columns=["status"])
    for bar, status, matching, _, _ in found:
        counts[bar][_KINDS.get(status, "other")] += matching
    scanned = sum(number for *_, number, _ in found)
    return counts, min(oldest for *_, oldest in found) if scanned >= SCAN_LIMIT else None
