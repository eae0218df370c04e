"""Rejected requests in the console: their number by limit and subject."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db.models import Sum
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse

from billing.admin.usage.pages import chart_points, default_zone
from billing.admin.usage.query import FILTERS, RANGES, UsageQuery, parse_query
from console import charts
from console.widgets import csv_file
from core.clock import now
from organization.admin.limit_forms import limit_label
from organization.admin.limits import limits_url
from tenants.console.roles import EVERY_ROLE
from tenants.console.site import page, render
from tenants.console.viewer import Viewer
from tenants.models import ApiKey, RejectedRequest, Team

MAX_ROWS = 500
_SUBJECTS = {"team": "team", "key": "API key", "end_user": "end user"}
_MAX_CHOICES = 200
_TOP = 8


@page("rejections/", name="rejections", viewers=EVERY_ROLE)
def rejections(request: HttpRequest, viewer: Viewer) -> HttpResponseBase:
    """Render the requests that limits have rejected, or the CSV file with `format=csv`."""
    # The range and the filters are the same as on the usage page.
    query = parse_query(request.GET, current_time=now(), zone=default_zone(request, viewer))
    teams = viewer.team_ids()
    is_file = request.GET.get("format") == "csv"
    rows = _rows(query, teams, most=None if is_file else MAX_ROWS)
    if is_file:
        return _csv(rows)
    chosen = {name: value for name, value in query.filters.items() if name in {"team", "key"}}
    shown = {"range": query.range, "tz": query.zone.key, **chosen}

    def url(**changes: str) -> str:
        return query.url(**{**dict.fromkeys(query.parameters, ""), **shown, **changes})

    return render(
        request,
        "console/rejections.html",
        title="Rejected requests",
        query=query,
        rows=rows,
        total=sum(row["count"] for row in rows),
        is_cut=len(rows) == MAX_ROWS,
        most=MAX_ROWS,
        teams=list(viewer.teams().values_list("pk", "name")[:_MAX_CHOICES]),
        ranges=[(url(range=name), title, name == query.range) for name, title in RANGES.items() if name != "custom"],
        csv_url=url(format="csv"),
    )


def _rows(query: UsageQuery, teams: Sequence[str] | None, *, most: int | None) -> list[dict[str, Any]]:
    found = RejectedRequest.objects.filter(hour__gte=query.since, hour__lt=query.until)
    if teams is not None:
        found = found.filter(team__in=teams)
    for name, value in query.filters.items():
        if name in {"team", "key"}:
            found = found.filter(**{FILTERS[name]: value})
    groups = found.values("team_id", "api_key_id", "end_user", "limit", "subject", "endpoint")
    sums = list(groups.annotate(number=Sum("count")).order_by("-number", "team_id", "limit")[:most])
    names = dict(Team.objects.filter(pk__in={row["team_id"] for row in sums}).values_list("pk", "name"))
    keys = ApiKey.objects.filter(pk__in={row["api_key_id"] for row in sums}).in_bulk()
    rows = []
    for row in sums:
        key = keys.get(row["api_key_id"])
        subject = {"key": row["api_key_id"]} if row["subject"] == "key" else {}
        if row["subject"] == "end_user":
            subject = {"end_user": row["end_user"]}
        rows.append(
            {
                "team": names.get(row["team_id"], row["team_id"]),
                "team_id": row["team_id"],
                "key": f"{key.name} ({key.prefix}…{key.last_four})" if key else row["api_key_id"],
                "end_user": row["end_user"],
                "limit": limit_label(row["limit"]),
                "subject": _SUBJECTS.get(row["subject"], row["subject"]),
                "limit_url": limits_url(row["team_id"], **subject),
                "endpoint": row["endpoint"],
                "count": row["number"],
            }
        )
    return rows


def _csv(rows: Sequence[dict[str, Any]]) -> HttpResponse:
    names = ("team", "team_id", "key", "end_user", "limit", "subject", "endpoint", "count")
    lines = [[name.replace("_", " ") for name in names], *([str(row[name]) for name in names] for row in rows)]
    return csv_file("rejected-requests.csv", lines)


def rejected(*, teams: Sequence[str] | None, since: datetime, until: datetime) -> int:
    """Return the number of requests that limits have rejected between two times."""
    found = RejectedRequest.objects.filter(hour__gte=since, hour__lt=until)
    if teams is not None:
        found = found.filter(team__in=teams)
    return int(found.aggregate(number=Sum("count"))["number"] or 0)


def rejections_by_limit(teams: Sequence[str] | None, *, edges: Sequence[datetime]) -> dict[str, list[int]]:
    """Return the number of rejected requests of each bucket between these times, by limit."""
    found = RejectedRequest.objects.filter(hour__gte=edges[0], hour__lt=edges[-1])
    if teams is not None:
        found = found.filter(team__in=teams)
    counts: dict[str, list[int]] = {}
    for hour, limit, number in found.values_list("hour", "limit").annotate(Sum("count")):
        values = counts.setdefault(limit, [0] * (len(edges) - 1))
        values[bisect_right(edges, hour) - 1] += number
    return counts


def rejections_chart(
    query: UsageQuery, counts: Mapping[str, Sequence[int]], *, edges: Sequence[datetime]
) -> charts.Chart:
    """Return the chart of the result of `rejections_by_limit`, with the largest `_TOP` limits."""
    # The series have the names of limits, of which there are few; more series could not be distinguished by colour.
    names = sorted(counts, key=lambda limit: -sum(counts[limit]))[:_TOP]
    series = [charts.Series(name=limit_label(name), tone=f"s{index}") for index, name in enumerate(names)]
    rows = list(zip(*(counts[name] for name in names), strict=True)) or [()] * (len(edges) - 1)
    points = chart_points(query, edges, rows, suffix=" UTC")
    url = f"{reverse('console:rejections')}?range={query.range}"
    return charts.stacked([replace(point, url=url) for point in points], series, title="Rejected requests by limit")
