"""Histograms over a range of time, each bar with a link to the rows that it counts."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from console import charts
from console.charts import ChartBar, ChartPoint, Series
from console.widgets import compact

MAX_BARS = 30
# In percent of the plot. A label starts at its bar, and does not fit on a narrow screen if it starts further right.
_LAST_MARK = 84
MINUTE, HOUR, DAY = 60, 3600, 86400
_BAR_SECONDS = (
    *(minutes * MINUTE for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * HOUR for hours in (1, 2, 3, 6, 12)),
    *(days * DAY for days in (1, 2, 7, 30)),
)

# Numbers of rows by bar (its start divided by the length of a bar, in seconds) and by the tone of a series.
Counts = Mapping[int, Counter[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Histogram that is ready to be rendered. Positions and heights are percentages of the plot.

    If the count stopped at a limit, `truncated_at` is the time of the oldest counted row and `truncated_percent` the
    share of the plot before that time.
    """

    bars: Sequence[ChartBar]
    marks: Sequence[tuple[float, str]]
    highest: str
    total: str
    interval: str
    truncated_at: datetime | None
    truncated_percent: float


def bar_seconds(since: datetime, until: datetime) -> int:
    """Return the length of a bar in seconds, so that the range has at most `MAX_BARS` bars."""
    # Without fractions of seconds, which would make a period of a day a little longer than 24 hours.
    shortest = int((until - since).total_seconds()) / MAX_BARS
    return next((seconds for seconds in _BAR_SECONDS if seconds >= shortest), _BAR_SECONDS[-1])


def histogram(
    counts: Counts,
    series: Sequence[Series],
    *,
    since: datetime,
    until: datetime,
    link: Callable[[datetime, datetime], str],
    truncated_at: datetime | None,
) -> Histogram:
    """Return the histogram of a range. `link` returns the URL of the rows between two times."""
    width = bar_seconds(since, until)
    first, last = (int(moment.timestamp()) // width for moment in (since, until))
    numbers = range(first, last + 1)
    total, slot = sum(counts[number].total() for number in numbers), 100 / len(numbers)
    starts = [datetime.fromtimestamp(number * width, UTC) for number in numbers]
    day_format = "%d %b" if width >= DAY else "%d %b %H:%M"
    points = [
        ChartPoint(
            name=f"{begins:{day_format}} UTC",
            label="",
            values=[counts[number][quantity.tone] for quantity in series],
            url=link(begins, begins + timedelta(seconds=width - 1)),
        )
        for number, begins in zip(numbers, starts, strict=True)
    ]
    chart = charts.stacked(points, series, title="", format_value=lambda value: f"{value:,}", has_round_top=False)
    highest = max(counts[number].total() for number in numbers)
    # About six labels fit below the plot on a narrow screen.
    step = max(1, len(numbers) // 6)
    label_format = "%d %b" if width * step >= DAY else "%H:%M"
    seconds, unit = next(entry for entry in ((DAY, "day"), (HOUR, "hour"), (MINUTE, "minute")) if width >= entry[0])
    return Histogram(
        bars=chart.bars,
        marks=[
            (round(i * slot, 3), f"{starts[i]:{label_format}}")
            for i in range(0, len(starts), step)
            if i * slot < _LAST_MARK
        ],
        highest=compact(highest) if highest else "",
        total=f"{total:,}" + ("+" if truncated_at else ""),
        interval=f"each {unit}" if width == seconds else f"every {width // seconds} {unit}s",
        truncated_at=truncated_at,
        truncated_percent=(
            0.0 if truncated_at is None else round(slot * (int(truncated_at.timestamp()) / width - first), 3)
        ),
    )
