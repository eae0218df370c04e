"""Decisions for which runs wait, with the calls that they are about."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from django.db.models import QuerySet

from responses.models import IS_AWAITED, Decision, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The call of a decision: the label of its MCP server, the name of its tool, and its arguments."""

    server: str
    name: str
    arguments: dict[str, Any]

    @property
    def tool(self) -> str:
        """The tool as `<server label>.<tool>`."""
        return f"{self.server}.{self.name}" if self.server else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedDecision:
    """An open decision with its call."""

    row: Decision
    subject: Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedPlace:
    """Place of an open decision among those of several teams, in order of expiry."""

    expires_at: datetime
    decision_id: str
    response_id: str


def awaited_places(teams: Sequence[str] | None, *, limit: int) -> list[AwaitedPlace]:
    """Return the open decisions of these teams, or of all teams for None, the first to expire first.

    Runs in a scope that sees them. The cost depends on `limit` and the number of teams only.
    """
    rows = Decision.objects.filter(IS_AWAITED, response__ended_at=None).order_by("expires_at", "pk")
    found = rows.values_list("expires_at", "pk", "response_id")
    branches = [found] if teams is None else [found.filter(team_id=team_id) for team_id in teams]
    places = [
        AwaitedPlace(expires_at=expires_at, decision_id=decision_id, response_id=response_id)
        for expires_at, decision_id, response_id in union([branch[:limit] for branch in branches])
        if expires_at is not None
    ]
    return sorted(places, key=lambda place: (place.expires_at, place.decision_id))[:limit]


def union(branches: Sequence[QuerySet[Decision, Any]]) -> Iterable[Any]:
    """Return the rows of all queries.

    Each query reads one range of an index in order. A single query with several teams or states could not, and would
    sort all of their rows.
    """
    if not branches:
        return ()
    return branches[0] if len(branches) == 1 else branches[0].union(*branches[1:], all=True)


def awaited_decisions(*, team_id: str | None = None, limit: int = 1000) -> list[AwaitedDecision]:
    """Return the open decisions of a team or of all teams, the first to expire first.

    Runs in a scope that sees them.
    """
    rows = Decision.objects.filter(IS_AWAITED, response__ended_at=None)
    if team_id is not None:
        rows = rows.filter(team_id=team_id)
    found = list(rows.select_related("team").order_by("expires_at")[:limit])
    subjects = subjects_of(found)
    return [AwaitedDecision(row=row, subject=subjects[row.pk]) for row in found]


def subject_of(row: Decision) -> Subject:
    """Return the call of a decision."""
    return subjects_of([row])[row.pk]


def subjects_of(rows: Sequence[Decision]) -> dict[str, Subject]:
    """Return the calls of decisions, by the id of the decision."""
    calls = ToolCall.objects.filter(
        response_id__in={row.response_id for row in rows}, call_id__in={row.call_id for row in rows}
    )
    named: dict[tuple[str, str, int | None], tuple[str, str]] = {}
    columns = ("response_id", "call_id", "turn", "name", "arguments")
    for response_id, call_id, turn, name, arguments in calls.values_list(*columns):
        # Decisions of earlier releases do not name the turn.
        named[response_id, call_id, turn] = named[response_id, call_id, None] = name, arguments
    subjects = {}
    for row in rows:
        name, text = named.get((row.response_id, row.call_id, row.turn), ("", "{}"))
        label, separator, tool = name.partition("__")
        subjects[row.pk] = Subject(
            server=label if separator else "", name=tool if separator else name, arguments=orjson.loads(text)
        )
    return subjects
