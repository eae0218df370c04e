"""Charts: stacked bars, lines and sparklines. Geometry is computed here, templates render it as SVG.

Positions are percentages of the plot, so charts adapt to the width of the page. For accessibility each chart has a
title, a description, a table with the same values, and bars that are focusable by keyboard and announce their values.
Callers provide values, names, URLs and colours (`tone`, a class of charts.css).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor, log10

from django.template.loader import render_to_string
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from console.widgets import compact, duration

Value = float | None
Format = Callable[[float], str]
# More labels than this would overlap on a narrow screen.
_MAX_LABELS = 7
_BAR_SHARE = 0.76


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One of the quantities of a chart. `url` leads to a list of the counted objects."""

    name: str
    tone: str
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPoint:
    """Values of all series at one time. `label` is a short name for the axis, `url` leads to a list of objects."""

    name: str
    label: str
    values: Sequence[Value]
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartMark:
    """Segment of a bar, or dot of a line; positions in percent of the plot, from the top."""

    tone: str
    y: float
    height: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartBar:
    """Column of the plot with its marks; `hint` is the text for tooltips and screen readers."""

    x: float
    width: float
    middle: float
    label: str
    hint: str
    url: str
    parts: Sequence[ChartMark]

    @property
    def rectangles(self) -> SafeString:
        """The segments as SVG. For hundreds of bars, a template would spend most of the page's time on them."""
        drawn = '<rect class="c-tone-{}" x="{}%" y="{}%" width="{}%" height="{}%" rx="1.5"></rect>'
        return format_html_join(
            "", drawn, ((part.tone, self.x, part.y, self.width, part.height) for part in self.parts)
        )

    @property
    def dots(self) -> SafeString:
        """The values of lines as SVG."""
        drawn = '<circle class="c-dot c-tone-{}" cx="{}%" cy="{}%" r="3"></circle>'
        return format_html_join("", drawn, ((part.tone, self.middle, part.y) for part in self.parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLine:
    """Polylines of one series, interrupted where values are missing."""

    tone: str
    paths: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Chart that is ready to be rendered by its template."""

    template: str
    title: str
    description: str
    series: Sequence[Series]
    bars: Sequence[ChartBar]
    scale: Sequence[tuple[float, str]]
    table: Sequence[tuple[str, Sequence[str]]]
    lines: Sequence[ChartLine] = ()
    zone: str = "UTC"

    @property
    def html(self) -> SafeString:
        """The chart as an HTML figure."""
        return render_to_string(self.template, {"chart": self})

    @property
    def table_rows(self) -> SafeString:
        """The rows of the table as HTML, written like the marks of bars."""
        cell = '<td class="c-num">{}</td>'
        return format_html_join(
            "",
            '<tr><th scope="row">{}</th>{}</tr>',
            ((name, format_html_join("", cell, ((value,) for value in values))) for name, values in self.table),
        )

    @property
    def is_empty(self) -> bool:
        """True if no value is above zero."""
        return not self.scale


def number(value: float) -> str:
    """Format a count."""
    return compact(round(value)) if value >= 10 or value == round(value) else f"{value:.2f}"


def milliseconds(value: float) -> str:
    """Format a duration in milliseconds."""
    return duration(round(value))


def percent(value: float) -> str:
    """Format a percentage."""
    return f"{value:.1f} %"


def stacked(
    points: Sequence[ChartPoint],
    series: Sequence[Series],
    *,
    title: str,
    format_value: Format = number,
    zone: str = "UTC",
    has_round_top: bool = True,
) -> Chart:
    """Return a chart of stacked bars, with the first series at the bottom.

    With `has_round_top` the axis ends at a round number above the highest bar, otherwise at the top of this bar.
    """
    highest = max((sum(value or 0 for value in point.values) for point in points), default=0)
    top = ceiling(highest, is_count=format_value is number) if has_round_top else highest
    marks = []
    for point in points:
        parts, y = [], 100.0
        for quantity, value in zip(series, point.values, strict=True):
            if value:
                height = 100 * value / top
                y -= height
                parts.append(ChartMark(tone=quantity.tone, y=round(y, 2), height=round(height, 2)))
        marks.append(parts)
    template = "console/charts/stacked.html"
    return _chart(template, points, series, marks, top, title=title, format_value=format_value, zone=zone)


def lines(
    points: Sequence[ChartPoint],
    series: Sequence[Series],
    *,
    title: str,
    format_value: Format = number,
    zone: str = "UTC",
) -> Chart:
    """Return a chart with a line for each series; None is a gap."""
    highest = max((value or 0 for point in points for value in point.values), default=0)
    top = ceiling(highest, is_count=format_value is number)
    marks = [
        [
            ChartMark(tone=quantity.tone, y=round(100 - 100 * value / top, 2))
            for quantity, value in zip(series, point.values, strict=True)
            if value is not None and top
        ]
        for point in points
    ]
    drawn = [
        ChartLine(tone=quantity.tone, paths=_paths([point.values[index] for point in points], top))
        for index, quantity in enumerate(series)
    ]
    template = "console/charts/lines.html"
    return _chart(template, points, series, marks, top, title=title, format_value=format_value, zone=zone, drawn=drawn)


def sparkline(values: Sequence[Value]) -> SafeString:
    """Return a small line without labels, for display next to a number."""
    top = max((value or 0 for value in values), default=0)
    paths = _paths(values, top) if top else ()
    return render_to_string("console/charts/spark.html", {"paths": paths})


def ceiling(highest: float, *, is_count: bool = False) -> float:
    """Return a round number at or above the highest value, the top of the axis; 0 if there are no values.

    The axis is also labelled at its middle, so for a count the number is even.
    """
    if highest <= 0:
        return 0
    # The tolerance keeps sums of floats such as 0.30000000000000004 from raising the axis to the next step.
    unit: float = 10 ** floor(log10(highest))
    tops = [step * unit for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * unit >= highest * 0.9999]
    return next((top for top in tops if top % 2 == 0), tops[0]) if is_count and highest >= 1 else tops[0]


def _paths(values: Sequence[Value], top: float) -> list[str]:
    """Return the points of each polyline, in a box of 100 by 100."""
    slot, paths, open_path = 100 / max(len(values), 1), [], list[str]()
    # The None at the end closes the last path.
    for place, value in enumerate([*values, None]):
        if value is not None:
            open_path.append(f"{(place + 0.5) * slot:.2f},{100 - 100 * value / (top or 1):.2f}")
        elif open_path:
            # A single point has no length and would be invisible, so it becomes a short dash.
            x, _, y = open_path[0].partition(",")
            dash = [f"{float(x) + slot / 4:.2f},{y}"] if len(open_path) == 1 else []
            paths.append(" ".join([*open_path, *dash]))
            open_path = []
    return paths


def _chart(
    template: str,
    points: Sequence[ChartPoint],
    series: Sequence[Series],
    marks: Sequence[Sequence[ChartMark]],
    top: float,
    *,
    title: str,
    format_value: Format,
    zone: str,
    drawn: Sequence[ChartLine] = (),
) -> Chart:
    slot, bars = 100 / max(len(points), 1), []
    for place, (point, parts) in enumerate(zip(points, marks, strict=True)):
        texts = [
            f"{format_value(value)} {quantity.name}".strip()
            for quantity, value in zip(series, point.values, strict=True)
            if value is not None and value != 0
        ]
        bars.append(
            ChartBar(
                x=round(place * slot + slot * (1 - _BAR_SHARE) / 2, 3),
                width=round(slot * _BAR_SHARE, 3),
                middle=round((place + 0.5) * slot, 3),
                label=point.label if place % max(1, -(-len(points) // _MAX_LABELS)) == 0 else "",
                hint=f"{point.name}: {', '.join(texts) or 'none'}",
                url=point.url,
                parts=parts,
            )
        )
    span = f"{points[0].name} to {points[-1].name}, {zone}" if points else "no data"
    return Chart(
        template=template,
        title=title,
        description=f"{span}; maximum {format_value(top)}. The table below contains the same data.",
        series=series,
        bars=bars,
        scale=[(share, format_value(top * share / 100)) for share in (100, 50)] if top else [],
        table=[
            (point.name, ["–" if value is None else format_value(value) for value in point.values])
            for point in points
            # The table leaves out rows with only zeros and gaps: they would make the others hard to find.
            if any(point.values)
        ],
        lines=drawn,
        zone=zone,
    )
