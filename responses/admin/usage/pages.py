"""Usage page: chart, totals and CSV download. The URL holds the complete query."""

import csv
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from console import charts
from console.charts import ChartPoint, Series
from kernel.clock import now
from responses.admin.usage import links
from responses.admin.usage.aggregate import UsageGroup, UsageReport, build_report
from responses.admin.usage.metrics import GROUPS, METRICS, STATUS_TONES, MetricKind
from responses.admin.usage.query import BUCKETS, RANGES, VIEWS, ZONE_COOKIE, UsageQuery, parse_query, zones
from responses.rollups import queries
from tenants.console.roles import EVERY_ROLE, everywhere, teams_for, teams_of
from tenants.console.site import page, render
from tenants.models import ApiKey, Model

_MAX_CHOICES = 200
_MAX_GROUPS = 1000
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@page("usage/", name="usage", viewers=EVERY_ROLE)
def usage(request: HttpRequest) -> HttpResponseBase:
    """Render the usage page, or the CSV file with `format=csv`."""
    query = parse_query(request.GET, current_time=now(), zone=unquote(request.COOKIES.get(ZONE_COOKIE, "")))
    teams = _teams(request, query)
    if request.GET.get("format") == "csv":
        return _csv(query, build_report(query, teams=teams, top=_MAX_GROUPS))
    report = build_report(query, teams=teams)
    series = _series(query, report)
    return render(
        request,
        "console/usage.html",
        title="Usage",
        query=query,
        choices=_choices(request, query),
        chart=_chart(query, report, series),
        rows=_rows(query, report, series),
        total="–" if report.total is None else query.metric.format_value(report.total),
        total_url=_drill(query, (), query.since, query.until),
        other_count=report.other_count,
        ranges=[(query.url(range=name), title, name == query.range) for name, title in RANGES.items()],
        views=[(query.url(view=name), title, name == query.view) for name, title in VIEWS.items()],
        csv_url=query.url(format="csv"),
        is_behind=queries.is_behind(at=now()),
    )


def _teams(request: HttpRequest, query: UsageQuery) -> list[str] | None:
    # None: all teams. A team of other users counts as unknown, so that its existence is not revealed.
    if everywhere(request):
        return None
    return [team for team in teams_of(request) if team == query.filters.get("team", team)]


def _choices(request: HttpRequest, query: UsageQuery) -> dict[str, Any]:
    teams = list(teams_for(request).values_list("pk", "name")[:_MAX_CHOICES])
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
        "teams": _with_chosen(teams, query.filters.get("team", "")),
        "keys": _with_chosen(key_names, query.filters.get("key", "")),
        "models": models[:_MAX_CHOICES],
        "zones": zones(),
    }


def _with_chosen(choices: list[tuple[str, str]], filters: str) -> list[tuple[str, str]]:
    # An active filter must stay visible even if its value is beyond the limit or was deleted.
    return choices if not filters or filters in dict(choices) else [*choices, (filters, filters)]


def _series(query: UsageQuery, report: UsageReport) -> list[Series]:
    return [
        Series(name=group.name, tone=_tone(query, group, index), url=_group_url(query, group))
        for index, group in enumerate(report.groups)
    ]


def _tone(query: UsageQuery, group: UsageGroup, index: int) -> str:
    # "Other" always has the same neutral colour.
    if group.key is None:
        return "other"
    if query.group.name == "status":
        return STATUS_TONES.get(group.key[0], f"s{index}")
    return f"s{index}"


def _chart(query: UsageQuery, report: UsageReport, series: Sequence[Series]) -> charts.Chart:
    points = [
        ChartPoint(
            name=_name(start, query),
            label=_label(start, query),
            values=[group.values[index] for group in report.groups],
            url=_drill(query, (), start, report.edges[index + 1]),
        )
        for index, start in enumerate(report.edges[:-1])
    ]
    # Only sums may be stacked: percentiles and ratios of groups do not add up.
    is_additive = query.metric.kind is MetricKind.SUM and query.view != "lines"
    draw = charts.stacked if is_additive else charts.lines
    title = f"{query.metric.title} by {query.bucket}"
    return draw(points, series, title=title, format_value=query.metric.format_value, zone=query.zone.key)


def _rows(query: UsageQuery, report: UsageReport, series: Sequence[Series]) -> list[dict[str, Any]]:
    whole = report.total if query.metric.kind is MetricKind.SUM else None
    return [
        {
            "name": group.name,
            "tone": each.tone,
            "url": each.url,
            "total": "–" if group.total is None else query.metric.format_value(group.total),
            "share": f"{100 * group.total / whole:.1f} %" if whole and group.total is not None else "",
            "spark": charts.sparkline(group.values),
        }
        for group, each in zip(report.groups, series, strict=True)
    ]


def _group_url(query: UsageQuery, group: UsageGroup) -> str:
    return "" if group.key is None else _drill(query, group.key, query.since, query.until)


def _drill(query: UsageQuery, key: Sequence[str], since: datetime, until: datetime) -> str:
    filters = {name: values[0] for name, values in query.only.items()}
    dimension_filters = dict(zip(query.dimensions, key, strict=False))
    return links.rows_of(query.source.name, since=since, until=until, **{**filters, **dimension_filters})


def _name(moment: datetime, query: UsageQuery) -> str:
    local = moment.astimezone(query.zone)
    if query.bucket == "hour":
        return f"{local:%d %b %H:%M}"
    return f"{local:%d %b %Y}" if query.bucket == "day" else f"Week of {local:%d %b %Y}"


def _label(moment: datetime, query: UsageQuery) -> str:
    # Within a day the hour is enough; the date would not fit below the bars.
    local = moment.astimezone(query.zone)
    is_short = query.bucket == "hour" and (query.until - query.since).days <= 1
    return f"{local:%H:%M}" if is_short else f"{local:%d %b}"


def _csv(query: UsageQuery, report: UsageReport) -> HttpResponse:
    file = HttpResponse(content_type="text/csv; charset=utf-8")
    name = f"usage-{query.metric.name}-{query.since:%Y%m%d}-{query.until:%Y%m%d}.csv"
    file["Content-Disposition"] = f'attachment; filename="{name}"'
    writer = csv.writer(file)
    writer.writerow(["from", "to", "time zone", "group", "id", query.metric.name])
    for index, start in enumerate(report.edges[:-1]):
        for group in report.groups:
            value = group.values[index]
            # Empty buckets are left out: a year by the hour has thousands for each group.
            if value:
                until = report.edges[index + 1]
                span = [edge.astimezone(query.zone).isoformat() for edge in (start, until)]
                key = " ".join(group.key or ())
                writer.writerow([*span, query.zone.key, _plain(group.name), _plain(key), f"{value:.10g}"])
    return file


def _plain(text: str) -> str:
    # A leading apostrophe keeps spreadsheets from evaluating a name as a formula.
    return f"'{text}" if text.startswith(_FORMULA) else text
