"""Usage page: chart, totals and CSV download. The URL holds the complete query."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import urlencode

from billing.admin.usage import links
from billing.admin.usage.aggregate import UsageReport, build_report
from billing.admin.usage.comparison import Contributor, compare, period_before
from billing.admin.usage.pivot import (
    AXES,
    MAX_ROWS,
    PIVOT_METRICS,
    PRESETS,
    Pivot,
    PivotQuery,
    build_pivot,
    is_other,
    parse_pivot,
)
from billing.admin.usage.query import (
    BUCKETS,
    FILTERS,
    GROUPS,
    METRICS,
    RANGES,
    STATUS_TONES,
    VIEWS,
    ZONE_COOKIE,
    Metric,
    MetricKind,
    ReportQuery,
    UsageQuery,
    parse_query,
    zones,
)
from console import charts
from console.charts import ChartPoint, Series
from console.widgets import csv_file
from core.clock import now
from responses.rollups import queries
from tenants.console.roles import EVERY_ROLE
from tenants.console.site import page, render
from tenants.console.viewer import Viewer
from tenants.models import ApiKey, Model
from tenants.prices import NO_PRICE

_MAX_CHOICES = 200
_MAX_GROUPS = 1000
_MOST_CHANGE = 100
_CUT = f"Only the newest {MAX_ROWS:,} responses were counted."


def default_zone(request: HttpRequest, viewer: Viewer) -> str:
    """Return the time zone of the team if the page shows a single team that has one, otherwise the browser's."""
    named = request.GET.get("team", "").replace("\0", "").strip()
    teams = viewer.teams().filter(pk=named) if named else viewer.teams()
    zones_of_teams = list(teams.values_list("time_zone", flat=True)[:2])
    if len(zones_of_teams) == 1 and zones_of_teams[0] != "UTC":
        return zones_of_teams[0]
    return unquote(request.COOKIES.get(ZONE_COOKIE, ""))


@page("usage/", name="usage", viewers=EVERY_ROLE)
def usage(request: HttpRequest, viewer: Viewer) -> HttpResponseBase:
    """Render the usage page, or the CSV file with `format=csv`."""
    query = parse_query(request.GET, current_time=now(), zone=default_zone(request, viewer))
    teams = _teams(viewer, query.filters)
    if request.GET.get("format") == "csv":
        return _csv(query, build_report(query, teams=teams, top=_MAX_GROUPS))
    report = build_report(query, teams=teams)
    whole = report.total if query.metric.kind is MetricKind.SUM else None
    urls = ["" if group.key is None else _drill(query, query.since, query.until, group.key) for group in report.groups]
    rows = [
        {
            "name": group.name,
            "tone": _tone(query, report, index),
            "url": urls[index],
            "total": _shown(query, group.total, unpriced=group.total_unpriced),
            "share": f"{100 * group.total / whole:.1f} %" if whole and group.total is not None else "",
            "spark": charts.sparkline(group.values),
        }
        for index, group in enumerate(report.groups)
    ]
    return render(
        request,
        "console/usage.html",
        title="Usage",
        query=query,
        choices=_choices(viewer, query),
        chart=chart(query, report, title=f"{query.metric.title} by {query.bucket}", urls=urls),
        rows=rows,
        total=_shown(query, report.total, unpriced=report.unpriced),
        unpriced=report.unpriced if report.total is not None else 0,
        total_url=_drill(query, query.since, query.until),
        other_count=report.other_count,
        ranges=[(query.url(range=name), title, name == query.range) for name, title in RANGES.items()],
        views=[(query.url(view=name), title, name == query.view) for name, title in VIEWS.items()],
        csv_url=query.url(format="csv"),
        pivot_url=f"{reverse('console:usage_pivot')}?{urlencode({'range': query.range, **query.filters})}",
        changes_url=f"{reverse('console:usage_changes')}{query.url()}",
        is_behind=queries.is_behind(at=now()),
    )


@page("usage/changes/", name="usage_changes", viewers=EVERY_ROLE)
def changes(request: HttpRequest, viewer: Viewer) -> HttpResponseBase:
    """Render the comparison with the period before, which the usage page loads after its chart."""
    query = parse_query(request.GET, current_time=now(), zone=default_zone(request, viewer))
    found = compare(query, teams=_teams(viewer, query.filters))
    since, until = (f"{at.astimezone(query.zone):%d %b %Y %H:%M}" for at in period_before(query))
    context: dict[str, Any] = {"since": since, "until": until, "zone": query.zone.key}
    if found is not None:
        context["total"] = _compared(query.metric, found.total)
        context["tables"] = [
            {"title": table.title, "rows": [_compared(table.metric, row) for row in table.rows]}
            for table in found.tables
        ]
    return TemplateResponse(request, "console/usage_changes.html", context)


def _compared(metric: Metric, row: Contributor) -> dict[str, str]:
    sign = "+" if row.change > 0 else "−" if row.change < 0 else ""
    return {
        "name": row.name,
        "url": row.url,
        "before": metric.format_value(row.before),
        "after": metric.format_value(row.after),
        "change": sign + metric.format_value(abs(row.change)),
        # A change from nearly zero has no percentage that means anything.
        "percent": f"{100 * row.change / row.before:+,.0f} %"
        if row.before and row.change / row.before < _MOST_CHANGE
        else "",
        "tone": "bad" if metric.name == "cost" and row.change > 0 else "",
    }


def _teams(viewer: Viewer, filters: Mapping[str, str]) -> list[str] | None:
    """Return the teams that are counted; None means all."""
    teams = viewer.team_ids()
    # A team of other users counts as unknown, so that its existence is not revealed.
    return None if teams is None else [team for team in teams if team == filters.get("team", team)]


@page("usage/pivot/", name="usage_pivot", viewers=EVERY_ROLE)
def pivot(request: HttpRequest, viewer: Viewer) -> HttpResponseBase:
    """Render the pivot of usage, or the CSV file with `format=csv`."""
    query = parse_pivot(request.GET, current_time=now(), zone=default_zone(request, viewer))
    teams = _teams(viewer, query.filters)
    if request.GET.get("format") == "csv":
        return _pivot_csv(query, build_pivot(query, teams=teams, top=(_MAX_GROUPS, _MAX_GROUPS)))
    found = build_pivot(query, teams=teams)
    # Cells are shaded relative to the largest value, because ratios have no total that they could be compared with.
    largest = max((value or 0 for row in found.rows for value in row.values), default=0) or 1
    rows = [
        {
            "name": row.name,
            "url": _rows_url(query, row=row.key),
            "cells": [
                (
                    "" if value is None else query.metric.format_value(value),
                    _rows_url(query, row=row.key, column=key),
                    round(4 * (value or 0) / largest),
                )
                for value, (key, _) in zip(row.values, found.columns, strict=True)
            ],
            "total": _shown(query, row.total),
        }
        for row in found.rows
    ]
    return render(
        request,
        "console/usage_pivot.html",
        title="Usage pivot",
        query=query,
        axes=[(axis.name, axis.title) for axis in AXES.values()],
        choices={**_choices(viewer, query), "metrics": [(name, METRICS[name].title) for name in PIVOT_METRICS]},
        columns=[(name, _rows_url(query, column=key)) for key, name in found.columns],
        rows=rows,
        totals=[_shown(query, value) for value in found.totals],
        total=_shown(query, found.total, unpriced=found.unpriced),
        unpriced=found.unpriced if found.total is not None else 0,
        notes=[*query.notes, *([_CUT] if found.is_cut else [])],
        presets=[(f"?{urlencode(preset)}", title) for title, preset in PRESETS.items()],
        ranges=[(query.url(range=name), title, name == query.range) for name, title in RANGES.items()],
        csv_url=query.url(format="csv"),
        is_behind=queries.is_behind(at=now()),
    )


def _rows_url(query: PivotQuery, *, row: str = "", column: str = "") -> str:
    """Return the URL of the list of the responses in a cell; empty if no filter of the list selects them."""
    filters = {links.LIST_FILTERS[FILTERS[name]]: value for name, value in query.filters.items()}
    for axis, key in ((query.rows, row), (query.columns, column)):
        if not key:
            continue
        if not axis.filter or is_other(key):
            return ""
        filters[axis.filter] = f"{query.tag}={key}" if axis.name == "tag" else key
    return links.responses_of(since=query.since, until=query.until, **filters)


def _pivot_csv(query: PivotQuery, found: Pivot) -> HttpResponse:
    def written(value: float | None) -> str:
        if value is None:
            return NO_PRICE if query.metric.name == "cost" else ""
        return f"{value:.10f}".rstrip("0").rstrip(".")

    names = [name for _, name in found.columns]
    ids = [key if not is_other(key) else "" for key, _ in found.columns]
    lines = [
        [
            f"{query.metric.title} by {query.rows.title.lower()} and {query.columns.title.lower()}",
            "id",
            *names,
            "Total",
        ],
        ["", "", *ids, ""],
    ]
    for row in found.rows:
        cells = ["" if value is None else written(value) for value in row.values]
        lines.append([row.name, "" if is_other(row.key) else row.key, *cells, written(row.total)])
    lines.append(["Total", "", *map(written, found.totals), written(found.total)])
    if found.is_cut:
        lines.append([_CUT])
    name = f"usage-{query.metric.name}-{query.rows.name}-{query.columns.name}-{query.since:%Y%m%d}.csv"
    return csv_file(name, lines)


def _choices(viewer: Viewer, query: ReportQuery) -> dict[str, Any]:
    def with_chosen(choices: list[tuple[str, str]], chosen: str) -> list[tuple[str, str]]:
        # An active filter must stay visible even if its value is beyond the limit or was deleted.
        return choices if not chosen or chosen in dict(choices) else [*choices, (chosen, chosen)]

    teams = list(viewer.teams().values_list("pk", "name")[:_MAX_CHOICES])
    keys = ApiKey.objects.filter(team_id__in=[pk for pk, _ in teams]).order_by("name", "created_at")
    if "team" in query.filters:
        keys = keys.filter(team_id=query.filters["team"])
    # `*` routes every model name; it is not a name that appears in the sums.
    models = Model.objects.exclude(name="*").order_by("name").values_list("name", flat=True).distinct()
    key_names = [(key.pk, f"{key.name} ({key.prefix}…{key.last_four})") for key in keys[:_MAX_CHOICES]]
    return {
        "metrics": [(metric.name, metric.title) for metric in METRICS.values()],
        "groups": [(group.name, group.title) for group in GROUPS.values()],
        "buckets": BUCKETS.items(),
        "teams": with_chosen(teams, query.filters.get("team", "")),
        "keys": with_chosen(key_names, query.filters.get("key", "")),
        "models": models[:_MAX_CHOICES],
        "zones": zones(),
    }


# -- charts ------------------------------------------------------------------------------------------------------------


def chart(
    query: UsageQuery, report: UsageReport, *, title: str, urls: Sequence[str] = (), suffix: str = ""
) -> charts.Chart:
    """Return the chart of a report. `urls` are links of the groups; `suffix` is added to the names of hours."""
    series = [
        Series(name=group.name, tone=_tone(query, report, index), url=urls[index] if urls else "")
        for index, group in enumerate(report.groups)
    ]
    values = [[group.values[index] for group in report.groups] for index in range(len(report.edges) - 1)]
    # Only sums may be stacked: percentiles and ratios of groups do not add up.
    is_additive = query.metric.kind is MetricKind.SUM and query.view != "lines"
    draw = charts.stacked if is_additive else charts.lines
    points = chart_points(query, report.edges, values, suffix=suffix)
    return draw(points, series, title=title, format_value=query.metric.format_value, zone=query.zone.key)


def chart_points(
    query: UsageQuery, edges: Sequence[datetime], values: Sequence[Sequence[float | None]], *, suffix: str = ""
) -> list[ChartPoint]:
    """Return a point for each bucket, with a link to the rows that it counts."""
    points = []
    # Within a day the hour is enough; the date would not fit below the bars.
    is_short = query.bucket == "hour" and (query.until - query.since).days <= 1
    for start, until, row in zip(edges, edges[1:], values, strict=False):
        local = start.astimezone(query.zone)
        if query.bucket == "hour":
            name = f"{local:%d %b %H:%M}{suffix}"
        else:
            name = {"day": f"{local:%d %b %Y}", "week": f"Week of {local:%d %b %Y}"}.get(query.bucket, f"{local:%B %Y}")
        label = f"{local:%H:%M}" if is_short else f"{local:%d %b}"
        points.append(ChartPoint(name=name, label=label, values=row, url=_drill(query, start, until)))
    return points


def _tone(query: UsageQuery, report: UsageReport, index: int) -> str:
    key = report.groups[index].key
    # "Other" always has the same neutral colour.
    if key is None:
        return "other"
    return STATUS_TONES.get(key[0], f"s{index}") if query.group.name == "status" else f"s{index}"


def _drill(query: UsageQuery, since: datetime, until: datetime, key: Sequence[str] = ()) -> str:
    filters = {name: values[0] for name, values in query.only.items()}
    filters |= dict(zip(query.dimensions, key, strict=False))
    return links.rows_of(query.source.name, since=since, until=until, **filters)


def _csv(query: UsageQuery, report: UsageReport) -> HttpResponse:
    is_cost = query.metric.name == "cost"
    names = ["from", "to", "time zone", "group", "id", query.metric.name]
    lines = [[*names, *(["calls without a price"] if is_cost else [])]]
    for index, edges in enumerate(zip(report.edges, report.edges[1:], strict=False)):
        span = [edge.astimezone(query.zone).isoformat() for edge in edges]
        lines += [
            [
                *span,
                query.zone.key,
                group.name,
                " ".join(group.key or ()),
                f"{group.values[index]:.10g}" if group.values[index] else NO_PRICE,
                *([f"{group.unpriced[index]}"] if is_cost else []),
            ]
            for group in report.groups
            # Empty buckets are left out: a year by the hour has thousands for each group.
            if group.values[index] or group.unpriced[index]
        ]
    name = f"usage-{query.metric.name}-{query.since:%Y%m%d}-{query.until:%Y%m%d}.csv"
    return csv_file(name, lines)


def _shown(query: ReportQuery, value: float | None, *, unpriced: int = 0) -> str:
    if value is None:
        return NO_PRICE if query.metric.name == "cost" else "–"
    shown = query.metric.format_value(value)
    # Calls without a price are not free.
    return f"at least {shown}" if unpriced else shown
