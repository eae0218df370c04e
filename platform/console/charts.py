"""Charts of our own: stacked bars, lines and sparklines, as SVG that a template draws from what is counted out here.

Positions are percents of the plot, so that a chart is as wide as its place. Each has a title, a description, a table
with the same numbers, and bars or points that can be reached by keyboard and say their values. Knows nothing of what
is drawn: names, colours (`tone`, a class of charts.css) and addresses come with the numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor, log10

from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from console.widgets import compact, duration

Value = float | None
Format = Callable[[float], str]
_LABELS = 7
_WIDTH_SHARE = 0.76


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A kind of thing that is drawn at each point: its name, colour, and the list of what it counts."""

    name: str
    tone: str
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A place on the axis of time: its name, a shorter one for the axis, a value for each series, and its list."""

    name: str
    label: str
    values: Sequence[Value]
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of a bar, or a dot of a line; in percent of the plot, from the top."""

    tone: str
    y: float
    height: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A point as it is drawn: where, of what parts, and the words for who cannot see it."""

    x: float
    width: float
    middle: float
    label: str
    hint: str
    url: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The pieces of a line: a gap in the values is a gap in the line."""

    tone: str
    paths: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart that is ready to be drawn by its template."""

    template: str
    title: str
    description: str
    series: Sequence[Series]
    bars: Sequence[Bar]
    scale: Sequence[tuple[float, str]]
    table: Sequence[tuple[str, Sequence[str]]]
    lines: Sequence[Line] = ()
    zone: str = "UTC"

    @property
    def html(self) -> SafeString:
        """The figure."""
        return render_to_string(self.template, {"chart": self})

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not self.scale


def number(value: float) -> str:
    """A count on a chart."""
    return compact(round(value)) if value >= 10 or value == round(value) else f"{value:.2f}"


def milliseconds(value: float) -> str:
    """A time on a chart."""
    return duration(round(value))


def percent(value: float) -> str:
    """A share on a chart."""
    return f"{value:.1f} %"


def stacked(
    points: Sequence[Point], series: Sequence[Series], *, title: str, spoken: Format = number, zone: str = "UTC"
) -> Chart:
    """Bars of parts that add up, the first series at the bottom."""
    top = ceiling(max((sum(value or 0 for value in point.values) for point in points), default=0))
    bars = []
    for place, point in enumerate(points):
        parts, y = [], 100.0
        for each, value in zip(series, point.values, strict=True):
            if value:
                height = 100 * value / top
                y -= height
                parts.append(Part(tone=each.tone, y=round(y, 2), height=round(height, 2)))
        bars.append(_bar(place, len(points), point, series, parts, spoken))
    return _chart("console/charts/stacked.html", points, series, bars, top, title=title, spoken=spoken, zone=zone)


def lines(
    points: Sequence[Point], series: Sequence[Series], *, title: str, spoken: Format = number, zone: str = "UTC"
) -> Chart:
    """A line for each series; where a value is None, its line has a gap."""
    top = ceiling(max((value or 0 for point in points for value in point.values), default=0))
    bars = []
    for place, point in enumerate(points):
        dots = [
            Part(tone=each.tone, y=round(100 - 100 * value / top, 2))
            for each, value in zip(series, point.values, strict=True)
            if value is not None and top
        ]
        bars.append(_bar(place, len(points), point, series, dots, spoken))
    drawn = [
        Line(tone=each.tone, paths=_paths([point.values[index] for point in points], top))
        for index, each in enumerate(series)
    ]
    return _chart(
        "console/charts/lines.html", points, series, bars, top, title=title, spoken=spoken, zone=zone, drawn=drawn
    )


def sparkline(values: Sequence[Value]) -> SafeString:
    """A small line without words beside a number that says what matters."""
    top = max((value or 0 for value in values), default=0)
    paths = _paths(values, top) if top else ()
    return render_to_string("console/charts/spark.html", {"paths": paths})


def ceiling(highest: float) -> float:
    """A round number at or above the highest value; 0 where there is nothing."""
    if highest <= 0:
        return 0
    unit: float = 10 ** floor(log10(highest))
    return next(step * unit for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * unit >= highest * 0.9999)


def _paths(values: Sequence[Value], top: float) -> list[str]:
    """What a polyline goes through, in a box of 100 by 100; a value between two gaps gets a short dash."""
    slot, paths, open_path = 100 / max(len(values), 1), [], list[str]()
    for place, value in enumerate([*values, None]):
        if value is not None:
            open_path.append(f"{(place + 0.5) * slot:.2f},{100 - 100 * value / (top or 1):.2f}")
        elif open_path:
            x, _, y = open_path[0].partition(",")
            dash = [f"{float(x) + slot / 4:.2f},{y}"] if len(open_path) == 1 else []
            paths.append(" ".join([*open_path, *dash]))
            open_path = []
    return paths


def _bar(place: int, count: int, point: Point, series: Sequence[Series], parts: Sequence[Part], spoken: Format) -> Bar:
    slot = 100 / count
    told = [
        f"{spoken(value)} {each.name}".strip()
        for each, value in zip(series, point.values, strict=True)
        if value is not None and value != 0
    ]
    return Bar(
        x=round(place * slot + slot * (1 - _WIDTH_SHARE) / 2, 3),
        width=round(slot * _WIDTH_SHARE, 3),
        middle=round((place + 0.5) * slot, 3),
        label=point.label if place % max(1, -(-count // _LABELS)) == 0 else "",
        hint=f"{point.name}: {', '.join(told) or 'nothing'}",
        url=point.url,
        parts=parts,
    )


def _chart(
    template: str,
    points: Sequence[Point],
    series: Sequence[Series],
    bars: Sequence[Bar],
    top: float,
    *,
    title: str,
    spoken: Format,
    zone: str,
    drawn: Sequence[Line] = (),
) -> Chart:
    span = f"{points[0].name} to {points[-1].name}, {zone}" if points else "nothing"
    table = [
        (point.name, ["–" if value is None else spoken(value) for value in point.values])
        for point in points
        if any(point.values)
    ]
    return Chart(
        template=template,
        title=title,
        description=f"{span}; highest {spoken(top)}. The same numbers stand in the table below.",
        series=series,
        bars=bars,
        scale=[(share, spoken(top * share / 100)) for share in (100, 50)] if top else [],
        table=table,
        lines=drawn,
        zone=zone,
    )
