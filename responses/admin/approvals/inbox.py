"""Queries of the inbox: decisions of the viewer's teams in one state, one page at a time, and the number that waits.

Each page reads an index in its order and continues behind the last row of the page before, so its cost depends neither
on the number of decisions nor on the number of the page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Q, QuerySet
from django.http import HttpRequest, QueryDict
from django.urls import reverse

from responses.models import HAS_WAITED, Decision, DecisionKind, DecisionState
from responses.runs.decisions.listing import Subject, awaited_places, subjects_of, union
from tenants.console.viewer import Viewer, viewer_of

PAGE_SIZE = 50
_MAX_COUNTED = 100
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxView:
    """A view of the inbox: its states, and the column by which it is ordered."""

    title: str
    states: Sequence[DecisionState]
    order: str
    is_descending: bool
    empty: str

    @property
    def is_open(self) -> bool:
        """True if its decisions are not made."""
        return DecisionState.ASKED in self.states


VIEWS = {
    # What expires first is first.
    "waiting": InboxView(
        title="Waiting",
        states=(DecisionState.ASKED,),
        order="expires_at",
        is_descending=False,
        empty="Nothing waits for a decision.",
    ),
    "decided": InboxView(
        title="Decided",
        states=(DecisionState.GRANTED, DecisionState.DENIED, DecisionState.ANSWERED),
        order="asked_at",
        is_descending=True,
        empty="No decisions yet.",
    ),
    "expired": InboxView(
        title="Expired",
        states=(DecisionState.EXPIRED,),
        order="asked_at",
        is_descending=True,
        empty="Nothing has expired.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxQuery:
    """The chosen view and filters, and the place where the page begins: the order value and id of the row before."""

    view: str = "waiting"
    team: str = ""
    kind: str = ""
    after: tuple[datetime, str] | None = None

    @classmethod
    def of(cls, given: QueryDict) -> "InboxQuery":
        """Return the query of a URL. Unknown values are ignored."""
        view, kind = given.get("state", ""), given.get("kind", "")
        return cls(
            view=view if view in VIEWS else "waiting",
            team=given.get("team", "").replace("\x00", ""),
            kind=kind if kind in DecisionKind.values else "",
            after=_place(given.get("after", "")),
        )

    def url(self, **changes: str) -> str:
        """Return the URL of the first page of this query with changes, or of another page with `after`."""
        parameters = {"state": self.view, "team": self.team, "kind": self.kind, **changes}
        shown = {name: value for name, value in parameters.items() if value and (name, value) != ("state", "waiting")}
        query = QueryDict(mutable=True)
        query.update(shown)
        return f"{reverse('console:approvals')}{'?' if shown else ''}{query.urlencode()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxRow:
    """A decision with its call."""

    row: Decision
    subject: Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxPage:
    """A page of decisions. `next` is the place where the following page begins; empty on the last page."""

    rows: Sequence[InboxRow]
    next: str


def read_page(viewer: Viewer, query: InboxQuery, *, size: int = PAGE_SIZE) -> InboxPage:
    """Return a page of the decisions that the viewer may see."""
    view = VIEWS[query.view]
    teams = _visible_teams(viewer, query.team)
    everything = Decision.objects.all()
    of_teams = [everything] if teams is None else [everything.filter(team_id=team_id) for team_id in teams]
    found = union([_ordered(rows.filter(state=state), query)[: size + 1] for rows in of_teams for state in view.states])
    places = sorted(found, key=lambda place: (place[0], place[1]), reverse=view.is_descending)
    ids = [row_id for _, row_id in places[:size]]
    rows = Decision.objects.select_related("team", "response").in_bulk(ids)
    listed = [rows[row_id] for row_id in ids if row_id in rows]
    subjects = subjects_of(listed)
    return InboxPage(
        rows=[InboxRow(row=row, subject=subjects[row.pk]) for row in listed],
        next=_text_of(*places[size - 1]) if len(places) > size else "",
    )


def count_awaited(viewer: Viewer) -> str:
    """Return the number of decisions that wait in the viewer's teams, `99+` for a hundred and more; empty for none."""
    found = len(awaited_places(viewer.team_ids(), limit=_MAX_COUNTED))
    return f"{_MAX_COUNTED - 1}+" if found >= _MAX_COUNTED else str(found or "")


def navigation_count(request: HttpRequest) -> str:
    """Return the number beside the entry of the navigation. Called by Unfold."""
    return count_awaited(viewer_of(request))


def _visible_teams(viewer: Viewer, team_id: str) -> Sequence[str] | None:
    """Return the teams whose decisions are listed; None means every team."""
    teams = viewer.team_ids()
    if not team_id:
        return teams
    return [team_id] if teams is None or team_id in teams else []


def _ordered(rows: QuerySet[Decision], query: InboxQuery) -> QuerySet[Decision, Any]:
    """Return places (order value and id) of the rows that follow the place of the query, in order."""
    view = VIEWS[query.view]
    # No response waits for the other decisions: a later request of the client answers them.
    rows = rows.filter(HAS_WAITED)
    if view.is_open:
        # A response that was cancelled waits no more, although its decision was not made.
        rows = rows.filter(response__ended_at=None)
    if query.kind:
        rows = rows.filter(kind=query.kind)
    sign, comparison = ("-", "lt") if view.is_descending else ("", "gt")
    if query.after is not None:
        at, row_id = query.after
        # The first condition is the range of the index; the second one leaves out the rows of the same time.
        rows = rows.filter(**{f"{view.order}__{comparison}e": at})
        rows = rows.filter(~Q(**{view.order: at}) | Q(**{f"pk__{comparison}": row_id}))
    return rows.order_by(f"{sign}{view.order}", f"{sign}pk").values_list(view.order, "pk")


def _text_of(at: datetime, row_id: str) -> str:
    return f"{(at - _EPOCH) // timedelta(microseconds=1)}~{row_id}"


def _place(text: str) -> tuple[datetime, str] | None:
    number, separator, row_id = text.partition("~")
    if not (separator and number.isascii() and number.isdigit() and len(number) <= 17) or "\x00" in row_id:
        return None
    return _EPOCH + timedelta(microseconds=int(number)), row_id
