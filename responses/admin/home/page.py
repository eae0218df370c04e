"""The home page: how it goes, against the span before, as tiles, charts and panels. Every number links to its list.

What has happened comes from the hourly sums, what is happening from partial indexes: the page costs the same, however
many responses there are. It shows no content.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, QueryDict
from django.urls import reverse
from django.utils.safestring import SafeString

from console import charts
from console.charts import Chart, Point, Series
from console.widgets import compact, duration
from kernel.clock import now
from responses.admin import cells
from responses.admin.home import panels as home_panels
from responses.admin.home.panels import Running
from responses.admin.usage import links
from responses.admin.usage.aggregate import Answer, answer, buckets
from responses.admin.usage.metrics import STATUS_TONES, Kind
from responses.admin.usage.query import Asked, asked
from responses.models import RUNNING, Response, Status
from responses.rollups import queries
from responses.rollups.histograms import quantile
from responses.rollups.queries import RollupQuery, RollupRow
from responses.rollups.sources import RESPONSES
from tenants.console.roles import everywhere, teams_of

_LATEST = 10
_NOTABLE = 0.05
_SPANS = {"today": "Today", "7d": "7 days", "30d": "30 days"}
_MEASURES = (
    "responses", "failed", "input_tokens", "cached_tokens", "output_tokens", "duration", "first_token",
)  # fmt: skip
_BEFORE = {"today": "yesterday", "7d": "the 7 days before", "30d": "the 30 days before"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A number with its name, a line about it, its course, and the list that it counts. `tone` is good or bad where a
    change is one."""

    title: str
    value: str
    icon: str
    url: str
    detail: str = ""
    change: str = ""
    change_tone: str = ""
    tone: str = ""
    spark: SafeString | str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """What is read once for all tiles: the sums of the span by buckets, and of the one before it as a whole."""

    asked: Asked
    courses: Sequence[dict[str, Any]]
    whole: dict[str, Any]
    before: dict[str, Any]


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Unfold's DASHBOARD_CALLBACK."""
    present = now()
    name = request.GET.get("span", "")
    span = name if name in _SPANS else "today"
    teams = None if everywhere(request) else teams_of(request)
    rows = admin.site.get_model_admin(Response).get_queryset(request)
    latest = list(rows.order_by("-created_at", "-id")[:_LATEST])
    page = {
        **context,
        "title": "Home",
        "is_fullwidth": "1",
        "spans": [(f"?span={key}", title, key == span) for key, title in _SPANS.items()],
    }
    if not latest:
        return {**page, "first_steps": home_panels.first_steps(request)}
    read = _read(span, present, teams)
    return {
        **page,
        "tiles": _tiles(read),
        "now_tiles": _now_tiles(home_panels.running(), present),
        "charts": _charts(read, teams),
        "panels": home_panels.panels(request, present, teams),
        "latest": _listed(latest),
    }


def _ask(span: str, present: datetime, **query: str) -> Asked:
    """A question as the usage page has it: its chart here links to itself there."""
    address = QueryDict(mutable=True)
    address.update({"range": span, **query})
    return asked(address, present=present)


def _read(span: str, present: datetime, teams: Sequence[str] | None) -> Spans:
    question = _ask(span, present, metric="requests", group="none")
    courses = {
        row.bucket: row.values for row in _sums(question, teams, question.since, question.until, question.bucket)
    }
    # As long as the span is by now: today until this hour is held against yesterday until the same hour.
    whole_days = {"today": 1, "7d": 7, "30d": 30}[span]
    earlier = timedelta(days=whole_days)
    before = _sums(question, teams, question.since - earlier, question.until - earlier, "")
    nothing = _nothing()
    parts = [courses.get(start, nothing) for start in buckets(question)[:-1]]
    return Spans(asked=question, courses=parts, whole=_added(parts), before=before[0].values if before else nothing)


def _sums(asked: Asked, teams: Sequence[str] | None, since: datetime, until: datetime, bucket: str) -> list[RollupRow]:
    return queries.fetch_rows(
        RollupQuery(source=RESPONSES, since=since, until=until, measures=_MEASURES, bucket=bucket, teams=teams)
    )


def _nothing() -> dict[str, Any]:
    return {name: [0] if name in RESPONSES.histograms else 0 for name in _MEASURES}


def _added(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    whole = _nothing()
    for part in parts:
        for name, value in part.items():
            if isinstance(value, list):
                longer, shorter = sorted((value, whole[name]), key=len, reverse=True)
                whole[name] = [
                    one + (shorter[place] if place < len(shorter) else 0) for place, one in enumerate(longer)
                ]
            else:
                whole[name] += value
    return whole


# -- tiles -------------------------------------------------------------------------------------------------------------


def _tiles(read: Spans) -> list[Tile]:
    """What has happened."""
    since, until = read.asked.since, read.asked.until
    return [
        _counted(read, "Requests", "responses", "forum", links.responses(since=since, until=until)),
        _errors(read),
        _quantile(read, "First token p50", "first_token", 0.5, "ttft50"),
        _quantile(read, "First token p95", "first_token", 0.95, "ttft95"),
        _quantile(read, "Total time p50", "duration", 0.5, "p50"),
        _quantile(read, "Total time p95", "duration", 0.95, "p95"),
        _counted(read, "Tokens in", "input_tokens", "login", _usage(read, "tokens_in"), cached=True),
        _counted(read, "Tokens out", "output_tokens", "logout", _usage(read, "tokens_out")),
    ]


def _counted(read: Spans, title: str, name: str, icon: str, url: str, *, cached: bool = False) -> Tile:
    value, before = read.whole[name], read.before[name]
    detail = f"{compact(read.whole['cached_tokens'])} cached" if cached else ""
    return Tile(
        title=title,
        value=compact(value),
        icon=icon,
        url=url,
        detail=detail,
        change=_change(value, before, read),
        spark=charts.sparkline([part[name] for part in read.courses]),
    )


def _errors(read: Spans) -> Tile:
    share, before = (_share(sums["failed"], sums["responses"]) for sums in (read.whole, read.before))
    return Tile(
        title="Errors",
        value="–" if share is None else f"{share:.1f} %",
        icon="error",
        url=links.responses(since=read.asked.since, until=read.asked.until, status=Status.FAILED.value),
        detail=f"{read.whole['failed']:,} failed",
        change="" if share is None or before is None else f"{share - before:+.1f} points",
        change_tone="" if share is None or before is None or share == before else "bad" if share > before else "good",
        tone="bad" if read.whole["failed"] else "",
        spark=charts.sparkline([part["failed"] for part in read.courses]),
    )


def _quantile(read: Spans, title: str, name: str, share: float, metric: str) -> Tile:
    value, before = quantile(read.whole[name], share), quantile(read.before[name], share)
    return Tile(
        title=title,
        value=duration(value),
        icon="speed" if name == "duration" else "bolt",
        url=_usage(read, metric),
        change=_change(value or 0, before or 0, read) if value is not None else "",
        change_tone=_judged(value, before),
        spark=charts.sparkline([quantile(part[name], share) for part in read.courses]),
    )


def _judged(value: float | None, before: float | None) -> str:
    """Whether a time got better or worse by what is more than chance."""
    if not value or not before or abs(value - before) < before * _NOTABLE:
        return ""
    return "bad" if value > before else "good"


def _change(value: float, before: float, read: Spans) -> str:
    if not before:
        return ""
    return f"{100 * (value - before) / before:+.0f} % against {_BEFORE[read.asked.range]}"


def _share(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None


def _usage(read: Spans, metric: str, group: str = "none") -> str:
    return f"{reverse('console:usage')}{read.asked.url(metric=metric, group=group)}"


def _now_tiles(found: Running, present: datetime) -> list[Tile]:
    """What is happening."""
    running = [status.value for status in RUNNING]
    listed = {status: links.changelist("responses_response", period="30d", status__exact=status) for status in running}
    live = reverse("console:live")
    oldest = "–" if found.oldest is None else duration(round((present - found.oldest).total_seconds() * 1000))
    backlog = home_panels.backlog()
    pending = links.changelist("responses_webhookdelivery", period="30d", state__exact="pending")
    return [
        Tile(title="Running", value=found.spoken(found.running), icon="play_circle", url=listed["in_progress"]),
        Tile(title="Queued", value=found.spoken(found.queued), icon="hourglass", url=listed["queued"]),
        Tile(title="Oldest in the queue", value=oldest, icon="schedule", url=live),
        Tile(
            title="Stuck", value=found.spoken(found.stuck), icon="warning", url=live, tone="bad" if found.stuck else "",
            detail="their process tells nothing any more",
        ),
        Tile(title="Webhooks to send", value=backlog, icon="webhook", url=pending),
    ]  # fmt: skip


# -- charts ------------------------------------------------------------------------------------------------------------


def _charts(read: Spans, teams: Sequence[str] | None) -> list[tuple[str, str, Chart]]:
    """Title, the same on the usage page, and the chart."""
    present, span = now(), read.asked.range
    by = "team" if teams is None or len(teams) > 1 else "model"
    wanted = [
        ("Requests by status", _ask(span, present, metric="requests", group="status")),
        (f"Requests by {by}", _ask(span, present, metric="requests", group=by)),
        ("First token p95 by model", _ask(span, present, metric="ttft95", group="model")),
    ]
    drawn = [
        (title, _usage_of(question), _drawn(title, question, answer(question, teams=teams)))
        for title, question in wanted
    ]
    return [drawn[0], drawn[1], ("Tokens", _usage(read, "tokens_in", "model"), _tokens(read)), drawn[2]]


def _usage_of(question: Asked) -> str:
    return f"{reverse('console:usage')}{question.url()}"


def _drawn(title: str, question: Asked, found: Answer) -> Chart:
    series = [
        Series(name=group.name, tone="other" if group.key is None else _tone(question, group.key[0], place))
        for place, group in enumerate(found.groups)
    ]
    points = [
        Point(
            name=_name(start, question),
            label=_label(start, question),
            values=[group.values[place] for group in found.groups],
            url=links.responses(since=start, until=found.edges[place + 1]),
        )
        for place, start in enumerate(found.edges[:-1])
    ]
    draw = charts.stacked if question.metric.kind is Kind.SUM else charts.lines
    return draw(points, series, title=title, spoken=question.metric.spoken)


def _tone(question: Asked, key: str, place: int) -> str:
    return STATUS_TONES.get(key, f"s{place}") if question.group.name == "status" else f"s{place}"


def _tokens(read: Spans) -> Chart:
    """What was read anew, what from a cache, and what was written."""
    edges = buckets(read.asked)
    series = [Series(name="in", tone="s0"), Series(name="cached", tone="s1"), Series(name="out", tone="s2")]
    points = [
        Point(
            name=_name(start, read.asked),
            label=_label(start, read.asked),
            values=[
                part["input_tokens"] - part["cached_tokens"],
                part["cached_tokens"],
                part["output_tokens"],
            ],
            url=links.responses(since=start, until=edges[place + 1]),
        )
        for place, (start, part) in enumerate(zip(edges[:-1], read.courses, strict=True))
    ]
    return charts.stacked(points, series, title="Tokens")


def _name(moment: datetime, question: Asked) -> str:
    return f"{moment:%d %b %H:%M} UTC" if question.bucket == "hour" else f"{moment:%d %b %Y}"


def _label(moment: datetime, question: Asked) -> str:
    return f"{moment:%H:%M}" if question.bucket == "hour" else f"{moment:%d %b}"


# -- the latest --------------------------------------------------------------------------------------------------------


def _listed(latest: Sequence[Response]) -> dict[str, Any]:
    """The newest responses as Unfold's table component wants them."""
    return {
        "headers": ["Time", "Status", "Response", "Team and key", "Model", "Tokens in / out", "Took"],
        "rows": [
            [
                cells.moment(row),
                cells.state(row),
                home_panels.response_link(row),
                cells.caller(row),
                cells.served(row),
                cells.tokens(row),
                cells.took(row),
            ]
            for row in latest
        ],
    }
