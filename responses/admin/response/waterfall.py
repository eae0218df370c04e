"""Layout of the waterfall: place the spans of a run on a time scale, assign lanes and find the critical path.

Pure functions without database access or HTML. Offsets are milliseconds since the run began.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from math import floor, log10

# Timestamps come from several processes, so a shorter gap is caused by differing clocks and is not overhead.
MIN_GAP_MS = 1.0
_MAX_TICKS = 8
# A client may answer days after the run. Waits extend the scale by at most half the duration of the run, because
# otherwise the run itself would shrink to a line.
_MAX_EXTENSION = 0.5
# Above ten seconds, steps of 1, 2 and 5 are no longer round numbers of minutes or hours, so these steps are used.
_CLOCK_STEPS = tuple(
    1000.0 * seconds
    for seconds in (10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400, 172_800, 604_800)
)


class SpanKind(StrEnum):
    """Kinds of spans, in the order in which spans that begin together are listed."""

    QUEUE = "queue"
    RUN = "run"
    PREPARE = "prepare"
    CONNECT = "connect"
    LIST = "list"
    GUARDRAIL = "guardrail"
    MODEL = "model"
    ATTEMPT = "attempt"
    TOOL = "tool"
    STORAGE = "storage"
    APPROVAL = "approval"
    CLIENT = "client"
    LOST = "lost"


_WAITS = frozenset({SpanKind.APPROVAL, SpanKind.CLIENT})
"""Kinds of waits for people and clients. They may continue after the run, as a client answers with another request."""
WORK = frozenset(SpanKind) - {SpanKind.RUN, SpanKind.ATTEMPT} - _WAITS
"""Kinds of spans on which the platform works. Time without work and without a wait is overhead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSpan:
    """A timed step of a run: a model call, a tool call, a wait.

    `ended` is None while the step continues. `mark` is a moment within the span, for example the first token.
    """

    key: str
    kind: SpanKind
    name: str
    began: datetime
    ended: datetime | None
    state: str = ""
    note: str = ""
    mark: datetime | None = None
    level: int = 1
    # Id of the response whose request ended the wait.
    ended_by: str = ""


@dataclass(frozen=True, slots=True)
class Interval:
    """Start and end on the scale."""

    start: float
    end: float

    @property
    def length(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class WaterfallBar(Interval):
    """A span on the scale. Bars of one `lane` do not overlap. `is_clipped`: the span ends beyond the scale."""

    span: TraceSpan
    mark: float | None
    lane: int
    is_critical: bool
    is_open: bool
    is_clipped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """All bars of a run. `scale` is the length of the axis and `run` the duration of the run so far, both in ms.

    `gaps` are the parts of the run without a span of work: overhead.
    """

    bars: Sequence[WaterfallBar]
    gaps: Sequence[Interval]
    ticks: Sequence[float]
    run: float
    scale: float
    lanes: int

    @property
    def overhead(self) -> float:
        """Total length of the gaps."""
        return sum(gap.length for gap in self.gaps)


def waterfall(spans: Iterable[TraceSpan], *, began: datetime, ended: datetime | None, present: datetime) -> Waterfall:
    """Lay out the spans of a run, in the order in which they began. `ended` is None while the run continues."""

    def offset(moment: datetime) -> float:
        # Clocks of different hosts may disagree slightly: nothing is drawn before the run.
        return max(0.0, (moment - began).total_seconds() * 1000)

    run = offset(ended or present)
    order = list(SpanKind)
    rows = sorted(spans, key=lambda span: (offset(span.began), order.index(span.kind)))
    intervals = []
    for row in rows:
        # An open wait lasts until now. Other open spans end with the run at the latest, because a worker that died
        # leaves rows without an end.
        is_wait = row.kind in _WAITS
        end = offset(row.ended) if row.ended is not None else offset(present) if is_wait else run
        intervals.append(Interval(offset(row.began), max(offset(row.began), end)))
    longest = max(
        (interval.end for row, interval in zip(rows, intervals, strict=True) if row.kind in _WAITS), default=0.0
    )
    scale = max(1.0, min(max(run, longest), run * (1 + _MAX_EXTENSION)))
    work = [index for index, row in enumerate(rows) if row.kind in WORK]
    critical = {work[index] for index in critical_path([intervals[index] for index in work], end=run)}
    # Attempts are left out, as an attempt encloses the other spans and would occupy a lane for the whole run.
    leaves = [index for index, row in enumerate(rows) if row.kind is not SpanKind.RUN]
    lanes = dict(zip(leaves, assign_lanes([intervals[index] for index in leaves]), strict=True))
    bars = [
        WaterfallBar(
            span=row,
            start=interval.start,
            end=interval.end,
            mark=None if row.mark is None else offset(row.mark),
            lane=lanes.get(index, 0),
            is_critical=index in critical,
            is_open=row.ended is None and (ended is None or row.kind in _WAITS),
            is_clipped=interval.end > scale,
        )
        for index, (row, interval) in enumerate(zip(rows, intervals, strict=True))
    ]
    return Waterfall(
        bars=bars,
        gaps=gaps([intervals[index] for index, row in enumerate(rows) if row.kind in WORK | _WAITS], end=run),
        ticks=ticks(scale),
        run=run,
        scale=scale,
        lanes=max(lanes.values(), default=-1) + 1,
    )


def critical_path(intervals: Sequence[Interval], *, end: float) -> list[int]:
    """Return the indexes of the intervals that determined when the run ended, latest first.

    Each interval is followed by the interval that ended last before it began. If several intervals ran at that moment,
    the one that began first is chosen.
    """
    latest = sorted(range(len(intervals)), key=lambda index: (-intervals[index].end, intervals[index].start))
    path: list[int] = []
    moment, place = end, 0
    while place < len(latest):
        running = []
        while place < len(latest) and intervals[latest[place]].end >= moment:
            running.append(latest[place])
            place += 1
        # An interval that does not begin before `moment`, for example one of zero length, cannot have caused a delay.
        started = [index for index in running if intervals[index].start < moment]
        if started:
            chosen = min(started, key=lambda index: intervals[index].start)
            path.append(chosen)
            moment = intervals[chosen].start
        elif place < len(latest):
            # Nothing ran at that moment: continue at the end of the interval before the gap.
            moment = intervals[latest[place]].end
    return path


def gaps(intervals: Sequence[Interval], *, end: float) -> list[Interval]:
    """Return the parts of a run that none of these intervals covers."""
    found, reached = [], 0.0
    for interval in sorted(intervals, key=lambda interval: interval.start):
        if interval.start - reached >= MIN_GAP_MS:
            found.append(Interval(reached, min(interval.start, end)))
        reached = max(reached, interval.end)
        if reached >= end:
            break
    if end - reached >= MIN_GAP_MS:
        found.append(Interval(reached, end))
    return found


def assign_lanes(intervals: Sequence[Interval]) -> list[int]:
    """Return the lane of each interval: the first lane that is free. `intervals` are sorted by their start."""
    free_from: list[float] = []
    lanes = []
    for interval in intervals:
        lane = next((lane for lane, end in enumerate(free_from) if end <= interval.start), len(free_from))
        if lane == len(free_from):
            free_from.append(interval.end)
        else:
            free_from[lane] = interval.end
        lanes.append(lane)
    return lanes


def ticks(scale: float) -> list[float]:
    """Return round offsets for the ticks of the axis: zero and at most eight others."""
    rough = max(scale, 1.0) / _MAX_TICKS
    magnitude = 10.0 ** floor(log10(rough))
    steps = [magnitude * factor for factor in (1, 2, 5, 10)] if rough < _CLOCK_STEPS[0] else [*_CLOCK_STEPS, rough]
    step = steps[bisect_left(steps, rough)]
    # The small term keeps a last tick that is beyond the scale only because of floating-point errors.
    return [step * number for number in range(int(scale / step + 1e-9) + 1)]
