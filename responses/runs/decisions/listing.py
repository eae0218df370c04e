"""Decisions for which runs wait, with the calls that they are about."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from responses.models import IS_AWAITED, Decision, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The call of a decision: its tool as `<server label>.<tool>`, and its arguments."""

    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedDecision:
    """An open decision with its call."""

    row: Decision
    subject: Subject


def awaited_decisions(*, team_id: str | None = None, limit: int = 1000) -> list[AwaitedDecision]:
    """Return the open decisions of a team or of all teams, the first to expire first.

    Runs in a scope that sees them.
    """
    rows = Decision.objects.filter(IS_AWAITED, response__ended_at=None)
    if team_id is not None:
        rows = rows.filter(team_id=team_id)
    found = list(rows.select_related("team").order_by("expires_at")[:limit])
    subjects = _subjects(found)
    return [AwaitedDecision(row=row, subject=subjects[row.pk]) for row in found]


def subject_of(row: Decision) -> Subject:
    """Return the call of a decision."""
    return _subjects([row])[row.pk]


def _subjects(rows: Sequence[Decision]) -> dict[str, Subject]:
    calls = ToolCall.objects.filter(
        response_id__in={row.response_id for row in rows}, call_id__in={row.call_id for row in rows}
    )
    named = {
        (response_id, call_id): (name, arguments)
        for response_id, call_id, name, arguments in calls.values_list("response_id", "call_id", "name", "arguments")
    }
    subjects = {}
    for row in rows:
        name, text = named.get((row.response_id, row.call_id), ("", "{}"))
        label, separator, tool = name.partition("__")
        arguments = orjson.loads(text)
        subjects[row.pk] = Subject(tool=f"{label}.{tool}" if separator else name, arguments=arguments)
    return subjects
