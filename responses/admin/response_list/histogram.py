"""The responses of a list by time and outcome, as bars above it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from console.widgets import compact
from kernel.clock import now
from responses.admin.response_list import filters
from responses.admin.response_list.changelist import MOST, AimedList, moments
from responses.models import Status
from responses.rollups import reading
from responses.rollups.reading import Question
from responses.rollups.sources import RESPONSES
from tenants.console.roles import everywhere, teams_of

MOST_BARS = 30
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_WIDTHS = (
    *(minutes * _MINUTE for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * _HOUR for hours in (1, 2, 3, 6, 12)),
    *(days * _DAY for days in (1, 2, 7, 30)),
)
_KINDS = {Status.COMPLETED.value: "completed", Status.FAILED.value: "failed"}
_ORDER = ("completed", "failed", "other")
_SUMMED = {filters.ByTeam, filters.ByModel}
_COUNT = """
SELECT floor(extract(epoch FROM created_at) / %s)::bigint AS bar, status,
       count(*) FILTER (WHERE matches), count(*), min(created_at)
FROM ({rows}) AS newest
GROUP BY 1, 2
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A stretch of time; heights and positions in percent of the plot."""

    x: float
    width: float
    parts: Sequence[tuple[str, float, float]]
    hint: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """All bars. `cut_at` is where the count ends for its bound, `cut` how much of the plot lies before that."""

    bars: Sequence[Bar]
    marks: Sequence[tuple[float, str]]
    highest: str
    total: str
    each: str
    cut_at: datetime | None = None
    cut: float = 0.0


Counts = Mapping[int, Mapping[str, int]]


def drawn(rows: AimedList) -> Histogram | None:
    """The histogram of a list; None for a search by id, which has no time."""
    since, until = rows.span.since, rows.span.until or now()
    if since is None or since >= until:
        return None
    width = _width(until - since)
    summed = _summed(rows, width, since, until)
    counts, cut_at = _counted(rows, width) if summed is None else (summed, None)
    first, last = (int(moment.timestamp()) // width for moment in (since, until))
    heights = [sum(counts.get(bar, {}).values()) for bar in range(first, last + 1)]
    highest, slot = max(heights), 100 / (last - first + 1)
    total = sum(heights)
    return Histogram(
        bars=[_bar(rows, counts.get(first + place, {}), first + place, place, slot, width, highest)
              for place in range(last - first + 1)],
        marks=list(_marks(first, last, width, slot)),
        highest=compact(highest) if highest else "",
        total=f"{total:,}" + ("+" if cut_at else ""),
        each=_spoken(width),
        cut_at=cut_at,
        cut=0.0 if cut_at is None else round(slot * (int(cut_at.timestamp()) / width - first), 3),
    )  # fmt: skip


def _width(length: timedelta) -> int:
    wanted = length.total_seconds() / MOST_BARS
    return next((width for width in _WIDTHS if width >= wanted), _WIDTHS[-1])


def _summed(rows: AimedList, width: int, since: datetime, until: datetime) -> Counts | None:
    """The same from the sums of hours, which leave nothing out; None where they do not tell apart what is wanted."""
    chosen = {type(spec): str(spec.value()) for spec in rows.active}
    if width < _HOUR or not chosen.keys() <= _SUMMED or reading.is_behind(at=now()):
        return None
    team, model = chosen.get(filters.ByTeam), chosen.get(filters.ByModel)
    seen = None if everywhere(rows.request) else teams_of(rows.request)
    teams = seen if team is None else [team] if seen is None or team in seen else []
    # Sums of a team's models are kept at the finest level only, where there are as many as responses.
    if model is not None and teams is not None:
        return None
    asked = Question(
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
    for sums in reading.ask(asked):
        if sums.bucket is not None:
            bar = int(sums.bucket.timestamp()) // width
            counts[bar][_KINDS.get(sums.key[0], "other")] += sums.values["responses"]
    return counts


def _counted(rows: AimedList, width: int) -> tuple[Counts, datetime | None]:
    """How many there are, by bar and kind; and where the count ended, if for its bound."""
    counts: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    found = rows.aimed.rows(_COUNT, width, most=MOST)
    for bar, status, wanted, _, _ in found:
        counts[bar][_KINDS.get(status, "other")] += wanted
    looked = sum(each for *_, each, _ in found)
    return counts, min(oldest for *_, oldest in found) if looked >= MOST else None


def _bar(
    rows: AimedList, stack: Mapping[str, int], number: int, place: int, slot: float, width: int, highest: int
) -> Bar:
    begins = datetime.fromtimestamp(number * width, UTC)
    ends = begins + timedelta(seconds=width - 1)
    parts, top = [], 100.0
    for kind in _ORDER:
        height = 100 * stack.get(kind, 0) / highest if highest else 0
        top -= height
        if height:
            parts.append((kind, round(top, 2), round(height, 2)))
    told = ", ".join(f"{stack[kind]:,} {kind}" for kind in _ORDER if stack.get(kind)) or "nothing"
    shape = "%d %b" if width >= _DAY else "%d %b %H:%M"
    return Bar(
        x=round(place * slot + slot * 0.12, 3),
        width=round(slot * 0.76, 3),
        parts=parts,
        hint=f"{begins:{shape}} UTC: {told}",
        url=rows.link(**moments("from", begins), **moments("to", ends)),
    )


def _marks(first: int, last: int, width: int, slot: float) -> Iterator[tuple[float, str]]:
    """About six times below the plot."""
    step = max(1, (last - first + 1) // 6)
    for place in range(0, last - first + 1, step):
        begins = datetime.fromtimestamp((first + place) * width, UTC)
        yield round(place * slot, 3), f"{begins:%d %b}" if width * step >= _DAY else f"{begins:%H:%M}"


def _spoken(width: int) -> str:
    for seconds, unit in ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute")):
        if width >= seconds:
            count = width // seconds
            return f"each {unit}" if count == 1 else f"every {count} {unit}s"
    return ""
