"""The home page: what happened today, hour by hour, and the latest responses. Every number links to its list."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.http import urlencode

from kernel.clock import now
from kernel.console import compact
from responses import selectors
from responses.admin import cells
from responses.models import RUNNING, Response, Status
from responses.selectors import HourlyCount
from tenants.admin.content import may_read
from tenants.admin.roles import everywhere, teams_of
from tenants.models import ApiKey, Team

# No number costs more than reading this many rows; a number that reaches it says so.
MOST = 100_000
_MOST_RUNNING = 1000
_HOURS = 24
_LATEST = 10
_GOOD, _BAD = {Status.COMPLETED.value}, {Status.FAILED.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A number with its name, a line about it, and the list that it counts."""

    title: str
    value: str
    detail: str
    icon: str
    url: str
    tone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """An hour of the chart; heights and positions in percent of the plot."""

    x: float
    width: float
    parts: Sequence[tuple[str, float, float]]
    hint: str
    url: str
    label: str


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Unfold's DASHBOARD_CALLBACK."""
    present = now()
    teams = None if everywhere(request) else teams_of(request)
    hour = present.replace(minute=0, second=0, microsecond=0)
    counts = selectors.count_by_hour(since=hour - timedelta(hours=_HOURS - 1), teams=teams, most=MOST)
    rows = _rows(request)
    bars, highest = _chart(counts, hour)
    return {
        **context,
        "title": "Home",
        "tiles": _tiles(request, counts, rows, present),
        "bars": bars,
        "scale": [(percent, compact(round(highest * percent / 100))) for percent in (100, 50)] if highest else [],
        "latest": _latest(request, rows),
    }


def _latest(request: HttpRequest, rows: QuerySet[Response]) -> dict[str, Any]:
    """The newest responses as Unfold's table component wants them."""
    newest = rows.order_by("-created_at", "-id")[:_LATEST]
    return {
        "headers": ["Time", "Status", "Response", "Team and key", "Model", "Tokens in / out", "Took"],
        "rows": [
            [
                cells.moment(row),
                cells.state(row),
                cells.previews(row, readable=may_read(request, row.team_id)),
                cells.caller(row),
                cells.served(row),
                cells.tokens(row),
                cells.took(row),
            ]
            for row in newest
        ],
    }


def _rows(request: HttpRequest) -> QuerySet[Response]:
    return admin.site.get_model_admin(Response).get_queryset(request)


def _tiles(
    request: HttpRequest, counts: Sequence[HourlyCount], rows: QuerySet[Response], present: datetime
) -> list[Tile]:
    midnight = present.replace(hour=0, minute=0, second=0, microsecond=0)
    today = [count for count in counts if count.hour >= midnight]
    is_cut = sum(count.responses for count in counts) >= MOST
    failed = sum(count.responses for count in today if count.status in _BAD)
    return [
        Tile(
            title="Responses today",
            value=_number(sum(count.responses for count in today), is_cut=is_cut),
            detail="since midnight, UTC",
            icon="forum",
            url=_list(period="today"),
        ),
        Tile(
            title="Responses, 7 days",
            value=_number(_since(rows, present - timedelta(days=7), MOST), is_cut=False, most=MOST),
            detail="the last 168 hours",
            icon="calendar_month",
            url=_list(period="7d"),
        ),
        _running(rows),
        Tile(
            title="Failed today",
            value=_number(failed, is_cut=is_cut),
            detail=_share(failed, sum(count.responses for count in today)),
            icon="error",
            url=_list(period="today", status__exact=Status.FAILED.value),
            tone="bad" if failed else "",
        ),
        *_tokens(today, is_cut=is_cut),
        *_inventory(request, present),
    ]


def _running(rows: QuerySet[Response]) -> Tile:
    running = rows.filter(status__in=RUNNING)[:_MOST_RUNNING].count()
    return Tile(
        title="Running now",
        value=_number(running, is_cut=False, most=_MOST_RUNNING),
        detail="queued or in progress",
        icon="play_circle",
        url=_list(period="30d", status__exact=[status.value for status in RUNNING]),
        tone="busy" if running else "",
    )


def _tokens(today: Sequence[HourlyCount], *, is_cut: bool) -> list[Tile]:
    taken, cached, given = (
        sum(getattr(count, name) for count in today) for name in ("input_tokens", "cached_tokens", "output_tokens")
    )
    more, url = "+" if is_cut else "", _page("tenants_usagerecord", period="today")
    return [
        Tile(
            title="Tokens in today",
            value=compact(taken) + more,
            detail=f"{compact(cached)} cached",
            icon="login",
            url=url,
        ),
        Tile(title="Tokens out today", value=compact(given) + more, detail="with reasoning", icon="logout", url=url),
    ]


def _inventory(request: HttpRequest, present: datetime) -> list[Tile]:
    working = Q(revoked_at=None) & ~Q(expires_at__lte=present)
    keys = admin.site.get_model_admin(ApiKey).get_queryset(request).filter(working).count()
    teams = admin.site.get_model_admin(Team).get_queryset(request).count()
    key_url, team_url = _page("tenants_apikey", status="active"), _page("tenants_team")
    return [
        Tile(title="Active keys", value=f"{keys:,}", detail="neither revoked nor expired", icon="key", url=key_url),
        Tile(title="Teams", value=f"{teams:,}", detail="that you can see", icon="groups", url=team_url),
    ]


def _since(rows: QuerySet[Response], since: datetime, most: int) -> int:
    return rows.filter(created_at__gte=since).order_by("-created_at")[:most].count()


def _number(count: int, *, is_cut: bool, most: int | None = None) -> str:
    return f"{count:,}" + ("+" if is_cut or (most is not None and count >= most) else "")


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} % of today's" if whole else "nothing ran today"


# -- the chart ---------------------------------------------------------------------------------------------------------


def _chart(counts: Sequence[HourlyCount], last: datetime) -> tuple[list[Bar], int]:
    """A bar for each of the last hours, and the highest bar's count."""
    hours = [last - timedelta(hours=back) for back in range(_HOURS - 1, -1, -1)]
    stacks = [_stack(counts, hour) for hour in hours]
    highest = max((sum(stack.values()) for stack in stacks), default=0)
    return [_bar(place, hours[place], stacks[place], highest) for place in range(_HOURS)], highest


def _stack(counts: Sequence[HourlyCount], hour: datetime) -> dict[str, int]:
    stack = {"completed": 0, "failed": 0, "other": 0}
    for count in counts:
        if count.hour == hour:
            kind = "completed" if count.status in _GOOD else "failed" if count.status in _BAD else "other"
            stack[kind] += count.responses
    return stack


def _bar(place: int, hour: datetime, stack: dict[str, int], highest: int) -> Bar:
    slot = 100 / _HOURS
    parts, top = [], 100.0
    for kind, count in stack.items():
        height = 100 * count / highest if highest else 0
        top -= height
        if count:
            parts.append((kind, round(top, 2), round(height, 2)))
    told = ", ".join(f"{count:,} {kind}" for kind, count in stack.items() if count) or "nothing"
    return Bar(
        x=round(place * slot + slot * 0.14, 3),
        width=round(slot * 0.72, 3),
        parts=parts,
        hint=f"{hour:%d %b %H:%M} UTC: {told}",
        url=_hour_url(hour),
        label=f"{hour:%H:%M}" if hour.hour % 6 == 0 else "",
    )


def _hour_url(hour: datetime) -> str:
    day = f"{hour:%Y-%m-%d}"
    return _list(
        created_at_from_0=day,
        created_at_from_1=f"{hour:%H}:00:00",
        created_at_to_0=day,
        created_at_to_1=f"{hour:%H}:59:59",
    )


def _list(**query: Any) -> str:
    return _page("responses_response", **query)


def _page(name: str, **query: Any) -> str:
    url = reverse(f"admin:{name}_changelist")
    return f"{url}?{urlencode(query, doseq=True)}" if query else url
