"""Full-text search of message content.

A user may search the teams whose content they may read. Every search is recorded in the audit log.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import OperationalError, connection, transaction
from django.http import HttpRequest, HttpResponse
from django.utils.html import escape
from django.utils.http import urlencode
from django.utils.safestring import SafeString, mark_safe
from psycopg.errors import QueryCanceled

from console.markdown import without_markup
from console.widgets import badge, when
from conversations.models import Item, Placement, Section
from core.clock import now
from core.db.row_security import EVERY_TEAM
from server.admin.search.lookup import url_of_place
from tenants.audit import audit
from tenants.console.roles import EVERY_ROLE
from tenants.console.site import page, render
from tenants.console.viewer import Viewer
from tenants.models import Team

PAGE_SIZE = 20
MAX_QUERY = 400
MAX_TEAMS = 500
# A rare word in a long range may read many rows: the search gives up instead of occupying the database.
TIMEOUT_MS = 5000
PERIODS = (
    ("24h", "24 hours", 1),
    ("7d", "7 days", 7),
    ("30d", "30 days", 30),
    ("1y", "1 year", 365),
    ("10y", "10 years", 3650),
)
_DEFAULT = PERIODS[2]
# An item may be listed in several places: its own output first, then inputs, then conversations.
_PLACES = {Section.OUTPUT.value: 0, Section.INPUT.value: 1, Section.ITEMS.value: 2}

_SEARCH = """
SELECT item_id, team_id, speaker, created_at,
    ts_headline(
        'simple', text, query,
        'StartSel="\x02", StopSel="\x03", '
        || CASE WHEN length(text) <= 400 THEN 'HighlightAll=true' ELSE 'MaxFragments=2, MinWords=12, MaxWords=32' END
    )
FROM (
    SELECT item_id, team_id, speaker, created_at, text, query
    FROM responses_searchtext, websearch_to_tsquery('simple', %(words)s) AS query
    WHERE words @@ query AND created_at >= %(since)s AND created_at <= %(until)s {conditions}
    ORDER BY created_at DESC, item_id DESC
    LIMIT %(limit)s
) AS found
ORDER BY created_at DESC, item_id DESC
"""


@page("search-text/", name="search", viewers=EVERY_ROLE)
def search(request: HttpRequest, viewer: Viewer) -> HttpResponse:
    """Render the search form and the results, newest first."""
    words = request.GET.get("q", "").strip().replace("\0", "")[:MAX_QUERY]
    chosen = request.GET.get("team", "").strip()
    period, _, days = next((entry for entry in PERIODS if entry[0] == request.GET.get("period")), _DEFAULT)
    # A team beyond the limit of the drop-down list can still be chosen by URL.
    teams = list(viewer.teams()[: MAX_TEAMS + 1])
    team = next((row for row in teams if row.pk == chosen), None)
    if chosen and team is None:
        team = viewer.teams().filter(pk=chosen).first()
    reads_all = EVERY_TEAM in viewer.reading
    # None means every team.
    in_teams = [team.pk] if team is not None else None if reads_all else sorted(viewer.reading)
    has_hidden_teams = not reads_all and (viewer.sees_every_team or not viewer.roles.keys() <= viewer.reading)
    context: dict[str, Any] = {
        "words": words,
        "teams": teams[:MAX_TEAMS],
        "team": team,
        "periods": PERIODS,
        "period": period,
        "has_other_teams": team is None and has_hidden_teams,
    }
    if team is not None and not viewer.may_read(team.pk):
        context["hidden_team"] = team.pk
    elif in_teams == [] or (chosen and team is None):
        context["has_no_readable_team"] = True
    elif words:
        at = now()
        context |= _results(request, viewer, words, in_teams, at - timedelta(days=days), at)
    return render(request, "console/search.html", title="Search", **context)


def _results(
    request: HttpRequest, viewer: Viewer, words: str, teams: Sequence[str] | None, since: datetime, until: datetime
) -> dict[str, Any]:
    # One event per searched team, so that its members find the search in their own audit log.
    for team_id in teams if teams is not None else [None]:
        audit(
            team_id=team_id,
            actor=viewer.actor,
            action="content.searched",
            target=team_id or "every team",
            after={"query": words, "since": since.isoformat(timespec="seconds")},
        )
    conditions = ""
    # One hit more than a page shows: if it exists, there is a next page.
    values: dict[str, Any] = {"words": words, "since": since, "until": until, "limit": PAGE_SIZE + 1}
    if teams is not None:
        conditions += " AND team_id = ANY(%(teams)s)"
        values["teams"] = list(teams)
    before = _cursor(request.GET.get("before", ""))
    if before is not None:
        conditions += " AND (created_at, item_id) < (%(before)s, %(key)s)"
        values["before"], values["key"] = before
    try:
        # A cancelled statement aborts its transaction. The savepoint keeps the rest of the request usable.
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('statement_timeout')")
            (previous_timeout,) = cursor.fetchone()
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [str(TIMEOUT_MS)])
            cursor.execute(_SEARCH.format(conditions=conditions), values)
            rows = cursor.fetchall()
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [previous_timeout])
    except OperationalError as error:
        if not isinstance(error.__cause__, QueryCanceled):
            raise
        return {"is_too_slow": True}
    older_query = ""
    if len(rows) > PAGE_SIZE:
        key, _, _, created_at, _ = rows[PAGE_SIZE - 1]
        parameters = {name: value for name in ("q", "team", "period") if (value := request.GET.get(name))}
        older_query = urlencode({**parameters, "before": f"{created_at.isoformat()}_{key}"})
    hits = _hits(rows[:PAGE_SIZE])
    return {"hits": hits, "older_query": older_query, "is_searched": True, "is_later_page": before is not None}


def _hits(rows: Sequence[tuple[UUID, str, str, datetime, str]]) -> list[dict[str, Any]]:
    """Return the matches with links to the pages that show them; items without a page are left out."""
    keys = [key for key, *_ in rows]
    wire_ids = dict(Item.objects.filter(pk__in=keys).values_list("pk", "id"))
    names = dict(Team.objects.filter(pk__in={team_id for _, team_id, *_ in rows}).values_list("pk", "name"))
    # If an item has several places, the dictionary keeps the last one, so the preferred places are sorted to the end.
    placed = Placement.objects.filter(item_id__in=keys).order_by("-id")
    places = {place.item_id: place for place in sorted(placed, key=lambda place: -_PLACES[place.section])}
    tones = {"user": "primary", "assistant": "success"}
    return [
        {
            "badge": badge(speaker, tones.get(speaker, "")),
            "url": url_of_place(places[key], wire_ids[key]),
            "owner": places[key].owner,
            "team": names.get(team_id, ""),
            "time": when(created_at),
            "snippet": _snippet(text),
        }
        for key, team_id, speaker, created_at, text in rows
        if key in places and key in wire_ids
    ]


def _snippet(text: str) -> SafeString:
    # Order matters: the text is untrusted, so it is escaped before the markers of a match become tags. The index strips
    # control characters, so no text contains these.
    marked = str(escape(without_markup(text))).replace("\x02", "<mark>").replace("\x03", "</mark>")
    return mark_safe(marked)  # noqa: S308 - escaped above


def _cursor(text: str) -> tuple[datetime, UUID] | None:
    # The cursor comes from the URL; an invalid one means the first page.
    moment, _, key = text.partition("_")
    try:
        at = datetime.fromisoformat(moment)
        return (at, UUID(key)) if at.tzinfo is not None else None
    except ValueError:
        return None
