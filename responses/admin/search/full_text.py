"""Full-text search in what was said: who may read a team's content may search in it, and each search is noted."""

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

SHOWN = 20
LONGEST = 400
SHOWN_TEAMS = 500
PATIENCE_MS = 5000
PERIODS = (
    ("24h", "24 hours", 1),
    ("7d", "7 days", 7),
    ("30d", "30 days", 30),
    ("1y", "1 year", 365),
    ("10y", "10 years", 3650),
)
_DEFAULT = "30d"
_MARKS = {"\x02": "<mark>", "\x03": "</mark>"}
_PLACES = {Section.OUTPUT.value: 0, Section.INPUT.value: 1, Section.ITEMS.value: 2}

_FIND = """
SELECT item_id, team_id, speaker, created_at,
    ts_headline(
        'simple', text, query,
        'StartSel="\x02", StopSel="\x03", '
        || CASE WHEN length(text) <= 400 THEN 'HighlightAll=true' ELSE 'MaxFragments=2, MinWords=12, MaxWords=32' END
    )
FROM (
    SELECT item_id, team_id, speaker, created_at, text, query
    FROM responses_searchtext, websearch_to_tsquery('simple', %(words)s) AS query
    WHERE words @@ query AND created_at >= %(since)s AND created_at <= %(until)s {narrow}
    ORDER BY created_at DESC, item_id DESC
    LIMIT %(limit)s
) AS found
ORDER BY created_at DESC, item_id DESC
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is searched for. `teams` None: in all."""

    words: str
    teams: Sequence[str] | None
    since: datetime
    until: datetime
    before: tuple[datetime, UUID] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """An item that was found, and where it stands."""

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
        """When it was said."""
        return when(self.created_at)

    @property
    def badge(self) -> SafeString:
        """Who said it."""
        tone = {"user": "primary", "assistant": "success"}.get(self.speaker, "")
        return badge(self.speaker.replace("_", " "), tone)


@page("search-text/", name="search", viewers=EVERY_ROLE)
def search(request: HttpRequest) -> HttpResponse:
    """The form, and behind a search what was found: the newest first, page by page."""
    words = request.GET.get("q", "").strip().replace("\0", "")[:LONGEST]
    chosen = request.GET.get("team", "").strip()
    period = next((each for each in PERIODS if each[0] == request.GET.get("period")), None)
    teams = list(teams_for(request)[: SHOWN_TEAMS + 1])
    team = next((each for each in teams if each.pk == chosen), None)
    if chosen and team is None:
        team = teams_for(request).filter(pk=chosen).first()
    in_teams = [team.pk] if team is not None else _readable(request)
    context: dict[str, Any] = {
        "words": words,
        "teams": teams[:SHOWN_TEAMS],
        "team": team,
        "periods": PERIODS,
        "period": (period or _named(_DEFAULT))[0],
        "has_other_teams": team is None and _hides_some(request),
    }
    if team is not None and not may_read(request, team.pk):
        context["hidden"] = hidden_notice(request, team.pk)
    elif in_teams == [] or (chosen and team is None):
        context["nothing_readable"] = True
    elif words:
        at = now()
        asked = Asked(
            words=words,
            teams=in_teams,
            since=at - timedelta(days=(period or _named(_DEFAULT))[2]),
            until=at,
            before=_cursor(request.GET.get("before", "")),
        )
        context.update(_searched(request, asked))
    return render(request, "console/search.html", title="Search", **context)


def _named(name: str) -> tuple[str, str, int]:
    return next(each for each in PERIODS if each[0] == name)


def _readable(request: HttpRequest) -> list[str] | None:
    """The teams whose content the user may read; None: all of them."""
    reading = viewer(request).reading
    return None if EVERY_TEAM in reading else sorted(reading)


def _hides_some(request: HttpRequest) -> bool:
    who = viewer(request)
    if EVERY_TEAM in who.reading:
        return False
    return who.sees_every_team or any(team_id not in who.reading for team_id in who.roles)


def _searched(request: HttpRequest, asked: Asked) -> dict[str, Any]:
    _note(request, asked)
    try:
        hits = _find(asked)
    except OperationalError:
        return {"is_too_slow": True}
    shown = _placed(hits[:SHOWN])
    onward = ""
    if len(hits) > SHOWN:
        last = hits[SHOWN - 1]
        query = {name: value for name in ("q", "team", "period") if (value := request.GET.get(name))}
        onward = urlencode({**query, "before": f"{last.created_at.isoformat()}_{last.key}"})
    return {"hits": shown, "onward": onward, "is_searched": True, "is_later_page": asked.before is not None}


def _note(request: HttpRequest, asked: Asked) -> None:
    """Each search stands in the log of the teams in which it looked."""
    for team_id in asked.teams if asked.teams is not None else [None]:
        audit(
            team_id=team_id,
            actor=actor(request),
            action="content.searched",
            target=team_id or "every team",
            after={"query": asked.words, "since": asked.since.isoformat(timespec="seconds")},
            request_id=getattr(request, "scope", {}).get("request_id", ""),
        )


def _find(asked: Asked) -> list[Hit]:
    """One more than a page shows. Raises OperationalError when it takes too long."""
    narrow: list[str] = []
    values: dict[str, Any] = {"words": asked.words, "since": asked.since, "until": asked.until, "limit": SHOWN + 1}
    if asked.teams is not None:
        narrow.append("AND team_id = ANY(%(teams)s)")
        values["teams"] = list(asked.teams)
    if asked.before is not None:
        narrow.append("AND (created_at, item_id) < (%(before)s, %(key)s)")
        values["before"], values["key"] = asked.before
    # A statement that is cancelled takes its savepoint with it, not the page.
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('statement_timeout')")
        (usual,) = cursor.fetchone()
        cursor.execute("SELECT set_config('statement_timeout', %s, true)", [str(PATIENCE_MS)])
        cursor.execute(_FIND.format(narrow=" ".join(narrow)), values)
        rows = cursor.fetchall()
        cursor.execute("SELECT set_config('statement_timeout', %s, true)", [usual])
    return [
        Hit(key=key, team_id=team_id, speaker=speaker, created_at=at, snippet=_snippet(text))
        for key, team_id, speaker, at, text in rows
    ]


def _snippet(text: str) -> SafeString:
    """What was found in its words, as markup: everything is escaped before anything is marked."""
    escaped = str(escape(text))
    for sign, tag in _MARKS.items():
        escaped = escaped.replace(sign, tag)
    return mark_safe(escaped)  # noqa: S308 - escaped above


def _placed(hits: Sequence[Hit]) -> list[Hit]:
    """The hits with the pages on which they stand."""
    keys = [hit.key for hit in hits]
    wire_ids = dict(Item.objects.filter(pk__in=keys).values_list("pk", "id"))
    names = dict(Team.objects.filter(pk__in={hit.team_id for hit in hits}).values_list("pk", "name"))
    places: dict[UUID, Placement] = {}
    for place in sorted(Placement.objects.filter(item_id__in=keys).order_by("id"), key=_rank):
        places.setdefault(place.item_id, place)
    return [
        replace(
            hit,
            item_id=wire_ids[hit.key],
            owner=places[hit.key].owner,
            url=url_of_place(places[hit.key], wire_ids[hit.key]),
            team=names.get(hit.team_id, ""),
        )
        for hit in hits
        if hit.key in places and hit.key in wire_ids
    ]


def _rank(place: Placement) -> int:
    return _PLACES[place.section]


def _cursor(text: str) -> tuple[datetime, UUID] | None:
    """Where the next page begins; None for what is no such place."""
    moment, _, key = text.partition("_")
    try:
        at = datetime.fromisoformat(moment)
        return (at, UUID(key)) if at.tzinfo is not None else None
    except ValueError:
        return None
