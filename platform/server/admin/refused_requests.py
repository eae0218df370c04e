"""Refused requests: requests to the API that were answered with an error, the latest first.

Members see those of their teams; requests with unknown keys belong to no team, and only staff sees them.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.http import urlencode

from console.widgets import copyable, when
from core.clock import now
from core.http.query import row_number
from tenants.console.roles import EVERY_ROLE
from tenants.console.site import page, render
from tenants.console.viewer import Viewer
from tenants.models import ApiKey, RefusedRequest, Team

PAGE = 100
_PERIODS = {
    "24h": ("24 hours", timedelta(days=1)),
    "7d": ("7 days", timedelta(days=7)),
    "30d": ("30 days", timedelta(days=30)),
}
_STATUSES = (400, 401, 403, 404, 409, 413, 424, 429, 500, 503)
_FILTERS = ("status", "code", "key", "team")


@page("refused/", name="refused", viewers=EVERY_ROLE)
def refused(request: HttpRequest, viewer: Viewer) -> HttpResponseBase:
    """Render the list of refused requests."""
    period = request.GET.get("period", "")
    period = period if period in _PERIODS else "24h"
    given = {name: request.GET.get(name, "").replace("\0", "").strip()[:200] for name in _FILTERS}
    chosen = {name: value for name, value in given.items() if value}
    rows = _rows(viewer.team_ids(), period, chosen)
    last = row_number(request.GET.get("before", ""))
    if last is not None and (cursor := rows.filter(pk=last).first()) is not None:
        rows = rows.filter(_older(cursor))
    found = list(rows.order_by("-minute", "-last_at", "-pk")[: PAGE + 1])
    shown = found[:PAGE]

    def url(**changes: str) -> str:
        return "?" + urlencode(
            {name: value for name, value in {"period": period, **chosen, **changes}.items() if value}
        )

    return render(
        request,
        "console/refused.html",
        title="Refused requests",
        rows=_cells(shown),
        chosen=given,
        period=period,
        statuses=_STATUSES,
        teams=list(viewer.teams().values_list("pk", "name")[:PAGE]),
        periods=[(url(period=name), title, name == period) for name, (title, _) in _PERIODS.items()],
        older_url=url(before=str(shown[-1].pk)) if len(found) > PAGE else "",
        is_filtered=bool(chosen),
    )


def _rows(teams: Sequence[str] | None, period: str, chosen: dict[str, str]) -> QuerySet[RefusedRequest]:
    rows = RefusedRequest.objects.filter(minute__gte=now() - _PERIODS[period][1])
    if teams is not None:
        rows = rows.filter(team_id__in=teams)
    if "status" in chosen:
        number = row_number(chosen["status"])
        rows = rows.none() if number is None else rows.filter(status=number)
    columns = {"code": "code", "key": "api_key_id", "team": "team_id"}
    return rows.filter(**{columns[name]: value for name, value in chosen.items() if name in columns})


def _older(cursor: RefusedRequest) -> Q:
    same = Q(minute=cursor.minute)
    return (
        Q(minute__lt=cursor.minute)
        | (same & Q(last_at__lt=cursor.last_at))
        | (same & Q(last_at=cursor.last_at, pk__lt=cursor.pk))
    )


def _cells(rows: Sequence[RefusedRequest]) -> list[dict[str, Any]]:
    keys = ApiKey.objects.filter(pk__in={row.api_key_id for row in rows}).in_bulk()
    teams = dict(Team.objects.filter(pk__in={row.team_id for row in rows}).values_list("pk", "name"))
    cells = []
    for row in rows:
        key = keys.get(row.api_key_id)
        cells.append(
            {
                "row": row,
                "time": when(row.last_at),
                "key": f"{key.name} ({key.prefix}…{key.last_four})" if key else row.key_hint or "no key",
                "team": teams.get(row.team_id, ""),
                "request_id": copyable(row.request_id) if row.request_id else "–",
            }
        )
    return cells


def reasons(teams: Sequence[str] | None, *, most: int) -> list[RefusedRequest]:
    """Return the latest refused requests of 24 hours, for the home page."""
    return list(_rows(teams, "24h", {}).order_by("-minute", "-last_at", "-pk")[:most])
