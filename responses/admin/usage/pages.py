"""The page of usage: a chart, totals, and the same as CSV; everything that it shows stands in its address."""

import csv
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from console import charts
from console.charts import Point, Series
from kernel.clock import now
from responses.admin.usage import links
from responses.admin.usage.aggregate import Answer, Group, answer
from responses.admin.usage.metrics import GROUPS, METRICS, STATUS_TONES, Kind
from responses.admin.usage.query import BUCKETS, RANGES, VIEWS, ZONE_COOKIE, Asked, asked, zones
from responses.rollups import queries
from tenants.console.roles import EVERY_ROLE, everywhere, teams_for, teams_of
from tenants.console.site import page, render
from tenants.models import ApiKey, Model

_MOST_CHOICES = 200
_MOST_GROUPS = 1000
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@page("usage/", name="usage", viewers=EVERY_ROLE)
def usage(request: HttpRequest) -> HttpResponseBase:
    """How much was used, when, and by whom."""
    question = asked(request.GET, present=now(), zone=unquote(request.COOKIES.get(ZONE_COOKIE, "")))
    teams = _teams(request, question)
    if request.GET.get("format") == "csv":
        return _csv(question, answer(question, teams=teams, top=_MOST_GROUPS))
    found = answer(question, teams=teams)
    series = _series(question, found)
    return render(
        request,
        "console/usage.html",
        title="Usage",
        asked=question,
        choices=_choices(request, question),
        chart=_chart(question, found, series),
        rows=_rows(question, found, series),
        total="–" if found.total is None else question.metric.spoken(found.total),
        total_url=_drill(question, (), question.since, question.until),
        rest=found.rest,
        ranges=[(question.url(range=name), title, name == question.range) for name, title in RANGES.items()],
        views=[(question.url(view=name), title, name == question.view) for name, title in VIEWS.items()],
        csv_url=question.url(format="csv"),
        is_behind=queries.is_behind(at=now()),
    )


def _teams(request: HttpRequest, question: Asked) -> list[str] | None:
    """Whose numbers are asked for; a team of others is like one that there is not."""
    if everywhere(request):
        return None
    return [team for team in teams_of(request) if team == question.chosen.get("team", team)]


def _choices(request: HttpRequest, question: Asked) -> dict[str, Any]:
    teams = list(teams_for(request).values_list("pk", "name")[:_MOST_CHOICES])
    keys = ApiKey.objects.filter(team_id__in=[pk for pk, _ in teams]).order_by("name", "created_at")
    if "team" in question.chosen:
        keys = keys.filter(team_id=question.chosen["team"])
    models = Model.objects.exclude(name="*").order_by("name").values_list("name", flat=True).distinct()
    key_names = [(key.pk, f"{key.name} ({key.prefix}…{key.last_four})") for key in keys[:_MOST_CHOICES]]
    return {
        "metrics": [(metric.name, metric.title) for metric in METRICS.values()],
        "groups": [(group.name, group.title) for group in GROUPS.values()],
        "buckets": BUCKETS.items(),
        "teams": _with_chosen(teams, question.chosen.get("team", "")),
        "keys": _with_chosen(key_names, question.chosen.get("key", "")),
        "models": models[:_MOST_CHOICES],
        "zones": zones(),
    }


def _with_chosen(choices: list[tuple[str, str]], chosen: str) -> list[tuple[str, str]]:
    """The choices with what is chosen among them: a filter that is on is never invisible."""
    return choices if not chosen or chosen in dict(choices) else [*choices, (chosen, chosen)]


def _series(question: Asked, found: Answer) -> list[Series]:
    return [
        Series(name=group.name, tone=_tone(question, group, place), url=_group_url(question, group))
        for place, group in enumerate(found.groups)
    ]


def _tone(question: Asked, group: Group, place: int) -> str:
    if group.key is None:
        return "other"
    if question.group.name == "status":
        return STATUS_TONES.get(group.key[0], f"s{place}")
    return f"s{place}"


def _chart(question: Asked, found: Answer, series: Sequence[Series]) -> charts.Chart:
    points = [
        Point(
            name=_name(start, question),
            label=_label(start, question),
            values=[group.values[place] for group in found.groups],
            url=_drill(question, (), start, found.edges[place + 1]),
        )
        for place, start in enumerate(found.edges[:-1])
    ]
    adds_up = question.metric.kind is Kind.SUM and question.view != "lines"
    draw = charts.stacked if adds_up else charts.lines
    title = f"{question.metric.title} by {question.bucket}"
    return draw(points, series, title=title, spoken=question.metric.spoken, zone=question.zone.key)


def _rows(question: Asked, found: Answer, series: Sequence[Series]) -> list[dict[str, Any]]:
    whole = found.total if question.metric.kind is Kind.SUM else None
    return [
        {
            "name": group.name,
            "tone": each.tone,
            "url": each.url,
            "total": "–" if group.total is None else question.metric.spoken(group.total),
            "share": f"{100 * group.total / whole:.1f} %" if whole and group.total is not None else "",
            "spark": charts.sparkline(group.values),
        }
        for group, each in zip(found.groups, series, strict=True)
    ]


def _group_url(question: Asked, group: Group) -> str:
    return "" if group.key is None else _drill(question, group.key, question.since, question.until)


def _drill(question: Asked, key: Sequence[str], since: datetime, until: datetime) -> str:
    """The list of what is counted."""
    chosen = {name: values[0] for name, values in question.only.items()}
    told = dict(zip(question.dimensions, key, strict=False))
    return links.rows_of(question.source.name, since=since, until=until, **{**chosen, **told})


def _name(moment: datetime, question: Asked) -> str:
    local = moment.astimezone(question.zone)
    if question.bucket == "hour":
        return f"{local:%d %b %H:%M}"
    return f"{local:%d %b %Y}" if question.bucket == "day" else f"Week of {local:%d %b %Y}"


def _label(moment: datetime, question: Asked) -> str:
    local = moment.astimezone(question.zone)
    is_short = question.bucket == "hour" and (question.until - question.since).days <= 1
    return f"{local:%H:%M}" if is_short else f"{local:%d %b}"


def _csv(question: Asked, found: Answer) -> HttpResponse:
    """One line for each bucket and group. Names that a spreadsheet would take for formulas are quoted."""
    file = HttpResponse(content_type="text/csv; charset=utf-8")
    name = f"usage-{question.metric.name}-{question.since:%Y%m%d}-{question.until:%Y%m%d}.csv"
    file["Content-Disposition"] = f'attachment; filename="{name}"'
    writer = csv.writer(file)
    writer.writerow(["from", "to", "time zone", "group", "id", question.metric.name])
    for place, start in enumerate(found.edges[:-1]):
        for group in found.groups:
            value = group.values[place]
            if value:
                until = found.edges[place + 1]
                span = [edge.astimezone(question.zone).isoformat() for edge in (start, until)]
                key = " ".join(group.key or ())
                writer.writerow([*span, question.zone.key, _plain(group.name), _plain(key), f"{value:.10g}"])
    return file


def _plain(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
