"""Full-text search of message content.

A user may search the teams whose content they may read. Every search is recorded in the audit log.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import OperationalError, connection, transaction
from django.http import HttpRequest, HttpResponse
from django.utils.html import escape
from django.utils.http import urlencode
from django.utils.safestring import SafeString, mark_safe

from console.widgets import badge, when
from conversations.models import Item, Placement, Section
from kernel.clock import now
from kernel.row_security import EVERY_TEAM
from responses.admin.search.id_lookup import url_of_place
from tenants.audit import audit
from tenants.console.audited_admin import actor
from tenants.console.content_access import hidden_notice, may_read
from tenants.console.roles import EVERY_ROLE, teams_for
from tenants.console.site import page, render
from tenants.console.viewer import viewer
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
_DEFAULT = "30d"
# Markers of a match in the headline. The index strips control characters, so no text contains them.
_MARKS = {"\x02": "<mark>", "\x03": "</mark>"}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    """Words and range of a search. `teams` is None for all teams; `before` is the cursor of the previous page."""

    words: str
    teams: Sequence[str] | None
    since: datetime
    until: datetime
    before: tuple[datetime, UUID] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSearchHit:
    """Matching item with a link to the page that shows it."""

    key: UUID
    team_id: str
    speaker: str
    created_at: datetime
    snippet: SafeString
    item_id: str = ""
    owner: str = ""
    url: str = ""
    team: str = ""

    @property
    def time(self) -> SafeString | str:
        return when(self.created_at)

    @property
    def badge(self) -> SafeString:
        """Return the role of the author as a badge."""
        tone = {"user": "primary", "assistant": "success"}.get(self.speaker, "")
        return badge(self.speaker.replace("_", " "), tone)


@page("search-text/", name="search", viewers=EVERY_ROLE)
def search(request: HttpRequest) -> HttpResponse:
    """Render the search form and the results, newest first."""
    words = request.GET.get("q", "").strip().replace("\0", "")[:MAX_QUERY]
    chosen = request.GET.get("team", "").strip()
    period = next((each for each in PERIODS if each[0] == request.GET.get("period")), None)
    # A team beyond the limit of the drop-down list can still be chosen by URL.
    teams = list(teams_for(request)[: MAX_TEAMS + 1])
    team = next((each for each in teams if each.pk == chosen), None)
    if chosen and team is None:
        team = teams_for(request).filter(pk=chosen).first()
    in_teams = [team.pk] if team is not None else _readable_teams(request)
    context: dict[str, Any] = {
        "words": words,
        "teams": teams[:MAX_TEAMS],
        "team": team,
        "periods": PERIODS,
        "period": (period or _period(_DEFAULT))[0],
        "has_other_teams": team is None and _has_hidden_teams(request),
    }
    if team is not None and not may_read(request, team.pk):
        context["hidden"] = hidden_notice(request, team.pk)
    elif in_teams == [] or (chosen and team is None):
        context["has_no_readable_team"] = True
    elif words:
        at = now()
        query = SearchQuery(
            words=words,
            teams=in_teams,
            since=at - timedelta(days=(period or _period(_DEFAULT))[2]),
            until=at,
            before=_cursor(request.GET.get("before", "")),
        )
        context.update(_results(request, query))
    return render(request, "console/search.html", title="Search", **context)


def _period(name: str) -> tuple[str, str, int]:
    return next(each for each in PERIODS if each[0] == name)


def _readable_teams(request: HttpRequest) -> list[str] | None:
    """Return the teams whose content the user may read, or None for all teams."""
    reading = viewer(request).reading
    return None if EVERY_TEAM in reading else sorted(reading)


def _has_hidden_teams(request: HttpRequest) -> bool:
    user = viewer(request)
    if EVERY_TEAM in user.reading:
        return False
    return user.sees_every_team or any(team_id not in user.reading for team_id in user.roles)


def _results(request: HttpRequest, query: SearchQuery) -> dict[str, Any]:
    _audit_search(request, query)
    try:
        hits = _find(query)
    except OperationalError:
        return {"is_too_slow": True}
    shown = _with_places(hits[:PAGE_SIZE])
    older_query = ""
    if len(hits) > PAGE_SIZE:
        last = hits[PAGE_SIZE - 1]
        parameters = {name: value for name in ("q", "team", "period") if (value := request.GET.get(name))}
        older_query = urlencode({**parameters, "before": f"{last.created_at.isoformat()}_{last.key}"})
    return {"hits": shown, "older_query": older_query, "is_searched": True, "is_later_page": query.before is not None}


def _audit_search(request: HttpRequest, query: SearchQuery) -> None:
    # One event per searched team, so that its members find the search in their own audit log.
    for team_id in query.teams if query.teams is not None else [None]:
        audit(
            team_id=team_id,
            actor=actor(request),
            action="content.searched",
            target=team_id or "every team",
            after={"query": query.words, "since": query.since.isoformat(timespec="seconds")},
            request_id=getattr(request, "scope", {}).get("request_id", ""),
        )


def _find(query: SearchQuery) -> list[TextSearchHit]:
    """Return one hit more than a page shows. Raises OperationalError after `TIMEOUT_MS`."""
    conditions: list[str] = []
    values: dict[str, Any] = {"words": query.words, "since": query.since, "until": query.until, "limit": PAGE_SIZE + 1}
    if query.teams is not None:
        conditions.append("AND team_id = ANY(%(teams)s)")
        values["teams"] = list(query.teams)
    if query.before is not None:
        conditions.append("AND (created_at, item_id) < (%(before)s, %(key)s)")
        values["before"], values["key"] = query.before
    # A cancelled statement aborts its transaction. The savepoint keeps the rest of the request usable.
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('statement_timeout')")
        (previous_timeout,) = cursor.fetchone()
        cursor.execute("SELECT set_config('statement_timeout', %s, true)", [str(TIMEOUT_MS)])
        cursor.execute(_SEARCH.format(conditions=" ".join(conditions)), values)
        rows = cursor.fetchall()
        cursor.execute("SELECT set_config('statement_timeout', %s, true)", [previous_timeout])
    return [
        TextSearchHit(key=key, team_id=team_id, speaker=speaker, created_at=at, snippet=_snippet(text))
        for key, team_id, speaker, at, text in rows
    ]


def _snippet(text: str) -> SafeString:
    # Order matters: the text is untrusted, so it is escaped before the markers become tags.
    escaped = str(escape(text))
    for sign, tag in _MARKS.items():
        escaped = escaped.replace(sign, tag)
    return mark_safe(escaped)  # noqa: S308 - escaped above


def _with_places(hits: Sequence[TextSearchHit]) -> list[TextSearchHit]:
    """Return the hits with links to the pages that show them; items without a page are left out."""
    keys = [hit.key for hit in hits]
    wire_ids = dict(Item.objects.filter(pk__in=keys).values_list("pk", "id"))
    names = dict(Team.objects.filter(pk__in={hit.team_id for hit in hits}).values_list("pk", "name"))
    placements: dict[UUID, Placement] = {}
    for placement in sorted(Placement.objects.filter(item_id__in=keys).order_by("id"), key=_section_rank):
        placements.setdefault(placement.item_id, placement)
    return [
        replace(
            hit,
            item_id=wire_ids[hit.key],
            owner=placements[hit.key].owner,
            url=url_of_place(placements[hit.key], wire_ids[hit.key]),
            team=names.get(hit.team_id, ""),
        )
        for hit in hits
        if hit.key in placements and hit.key in wire_ids
    ]


def _section_rank(placement: Placement) -> int:
    return _PLACES[placement.section]


def _cursor(text: str) -> tuple[datetime, UUID] | None:
    # The cursor comes from the URL; an invalid one means the first page.
    moment, _, key = text.partition("_")
    try:
        at = datetime.fromisoformat(moment)
        return (at, UUID(key)) if at.tzinfo is not None else None
    except ValueError:
        return None
