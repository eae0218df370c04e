"""From stretches of time to the bars of a waterfall: where each begins, what ran at the same time, what it hung on.

Pure: knows no row and no page. Times are milliseconds since the run began.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from math import floor, log10

SMALLEST_GAP = 1.0
"""Milliseconds; what is shorter is how precise clocks are."""
_TICKS = 8
# How much longer the scale may become for waits that follow a run; the rest of them is cut off.
_AFTER = 0.5
# What is round from ten seconds on.
_CLOCK = tuple(
    1000.0 * seconds
    for seconds in (10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400, 172_800, 604_800)
)


class Kind(StrEnum):
    """What took the time."""

    QUEUE = "queue"
    RUN = "run"
    MODEL = "model"
    TOOL = "tool"
    APPROVAL = "approval"
    CLIENT = "client"
    LOST = "lost"


WORK = frozenset({Kind.QUEUE, Kind.MODEL, Kind.TOOL, Kind.LOST})
"""What a run does, or what it waits for before it begins. The rest of its time is overhead."""
_WAITS = frozenset({Kind.APPROVAL, Kind.CLIENT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Something that took time. `ended` None: it goes on. `mark` is a moment inside of it, as the first token."""

    key: str
    kind: Kind
    name: str
    began: datetime
    ended: datetime | None
    state: str = ""
    note: str = ""
    mark: datetime | None = None
    level: int = 1
    # What lies behind a wait: the response that ended it.
    leads_to: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A stretch on the scale. `lane`: bars of one lane do not overlap. `is_cut`: it ends beyond the scale."""

    stretch: Stretch
    start: float
    end: float
    mark: float | None
    lane: int
    is_critical: bool
    is_open: bool
    is_cut: bool

    @property
    def length(self) -> float:
        """How long it took."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Time of the run in which nothing is known to have run: overhead."""

    start: float
    end: float

    @property
    def length(self) -> float:
        """How long it is."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """`scale` is what the axis spans, `run` how long the run itself took (so far)."""

    bars: Sequence[Bar]
    gaps: Sequence[Gap]
    ticks: Sequence[float]
    run: float
    scale: float
    lanes: int

    @property
    def overhead(self) -> float:
        """The time of all gaps."""
        return sum(gap.length for gap in self.gaps)


@dataclass(frozen=True, slots=True)
class Span:
    """From where to where something is on the scale."""

    start: float
    end: float


def waterfall(stretches: Iterable[Stretch], *, began: datetime, ended: datetime | None, present: datetime) -> Waterfall:
    """The bars of a run that began and ended then (None: it goes on), in the order in which they began."""

    def offset(moment: datetime) -> float:
        return max(0.0, (moment - began).total_seconds() * 1000)

    run = offset(ended or present)
    rows = sorted(stretches, key=lambda one: (offset(one.began), _RANK[one.kind]))
    spans = [_placed(row, run=run, offset=offset, present=present) for row in rows]
    scale = _scale(run, [span.end for row, span in zip(rows, spans, strict=True) if row.kind in _WAITS])
    work = [index for index, row in enumerate(rows) if row.kind in WORK]
    critical = {work[index] for index in critical_path([spans[index] for index in work], end=run)}
    # Attempts hold the others.
    leaves = [index for index, row in enumerate(rows) if row.kind is not Kind.RUN]
    lanes = dict(zip(leaves, pack([spans[index] for index in leaves]), strict=True))
    bars = [
        Bar(
            stretch=row,
            start=span.start,
            end=span.end,
            mark=None if row.mark is None else offset(row.mark),
            lane=lanes.get(index, 0),
            is_critical=index in critical,
            is_open=row.ended is None and (ended is None or row.kind in _WAITS),
            is_cut=span.end > scale,
        )
        for index, (row, span) in enumerate(zip(rows, spans, strict=True))
    ]
    return Waterfall(
        bars=bars,
        gaps=gaps([spans[index] for index in work], end=run),
        ticks=ticks(scale),
        run=run,
        scale=scale,
        lanes=max(lanes.values(), default=-1) + 1,
    )


_RANK = {kind: rank for rank, kind in enumerate(Kind)}


def _placed(row: Stretch, *, run: float, offset: Callable[[datetime], float], present: datetime) -> Span:
    """What is open goes on until now; if the run has ended, what ran in it ended with it."""
    start = offset(row.began)
    if row.ended is not None:
        return Span(start, max(start, offset(row.ended)))
    return Span(start, max(start, offset(present) if row.kind in _WAITS else run))


def _scale(run: float, waits: Sequence[float]) -> float:
    longest = max(waits, default=0.0)
    return max(1.0, min(max(run, longest), run * (1 + _AFTER)))


def critical_path(spans: Sequence[Span], *, end: float) -> list[int]:
    """The spans on which the end hung, latest first: before each stands the one that ended last before it began.

    Of several that ran until then it is the longest.
    """
    latest = sorted(range(len(spans)), key=lambda index: (-spans[index].end, spans[index].start))
    path: list[int] = []
    moment, place = end, 0
    while place < len(latest):
        running = []
        while place < len(latest) and spans[latest[place]].end >= moment:
            running.append(latest[place])
            place += 1
        started = [index for index in running if spans[index].start < moment]
        if started:
            chosen = min(started, key=lambda index: spans[index].start)
            path.append(chosen)
            moment = spans[chosen].start
        elif place < len(latest):
            # Nothing ran at that moment: go back to where something did.
            moment = spans[latest[place]].end
    return path


def gaps(spans: Sequence[Span], *, end: float) -> list[Gap]:
    """Where between the beginning and the end of a run none of these ran."""
    found, reached = [], 0.0
    for span in sorted(spans, key=lambda one: one.start):
        if span.start - reached >= SMALLEST_GAP:
            found.append(Gap(start=reached, end=min(span.start, end)))
        reached = max(reached, span.end)
        if reached >= end:
            break
    if end - reached >= SMALLEST_GAP:
        found.append(Gap(start=reached, end=end))
    return found


def pack(spans: Sequence[Span]) -> list[int]:
    """A lane for each of these spans, which are in the order of their beginnings: the first that is free by then."""
    free: list[float] = []
    lanes = []
    for span in spans:
        lane = next((lane for lane, until in enumerate(free) if until <= span.start), len(free))
        if lane == len(free):
            free.append(span.end)
        else:
            free[lane] = span.end
        lanes.append(lane)
    return lanes


def ticks(scale: float) -> list[float]:
    """Round moments on the scale, eight at most beside its beginning."""
    rough = max(scale, 1.0) / _TICKS
    magnitude = 10.0 ** floor(log10(rough))
    steps = [magnitude * factor for factor in (1, 2, 5, 10)] if rough < _CLOCK[0] else [*_CLOCK, rough]
    step = steps[bisect_left(steps, rough)]
    return [step * number for number in range(int(scale / step + 1e-9) + 1)]
