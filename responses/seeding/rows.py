"""Rows of seeded runs, collected in memory and inserted in bulk for each team."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from django.db import models

from conversations.models import Conversation, Item, Placement
from responses.models import Approval, EventBatch, Response, ToolCall, Turn
from responses.runs.store import CallUpdate, Change
from tenants import scope
from tenants.models import UsageRecord

_ORDER: tuple[type[models.Model], ...] = (
    Conversation,
    Response,
    Item,
    Placement,
    Turn,
    ToolCall,
    Approval,
    EventBatch,
    UsageRecord,
)
_AT_ONCE = 500


class Rows:
    """Rows of one team. Changes are applied as `responses.runs.store` does."""

    def __init__(self, team_id: str) -> None:
        self.team_id = team_id
        self.by_kind: dict[type[models.Model], list[Any]] = {}
        self._calls: dict[tuple[str, str], ToolCall] = {}

    def add(self, rows: Iterable[models.Model]) -> None:
        """Add new rows."""
        for row in rows:
            self.by_kind.setdefault(type(row), []).append(row)
            if isinstance(row, ToolCall):
                self._calls[row.response_id, row.call_id] = row

    def apply(self, change: Change, response: Response) -> None:
        """Apply the change of a step."""
        self.add(change.insert)
        for call in change.calls:
            self.answer(call)
        if (update := change.update) is None:
            return
        for name, value in asdict(update).items():
            if name not in {"response_id", "lease_token", "service_tier"}:
                setattr(response, name, value)
        if update.ended_at is not None:
            response.service_tier = update.service_tier
            response.completed_at = update.ended_at if update.status == "completed" else None
            response.lease_until = response.lease_owner = None

    def answer(self, update: CallUpdate) -> None:
        """Update a tool call, unless it has ended."""
        call = self._calls.get((update.response_id, update.call_id))
        if call is None or call.ended_at is not None:
            return
        for name in ("status", "started_at", "ended_at", "attempt", "output", "error", "result"):
            if (value := getattr(update, name)) is not None:
                setattr(call, name, value)

    def of(self, kind: type[models.Model]) -> list[Any]:
        """Return the rows of one model."""
        return self.by_kind.get(kind, [])

    def write(self) -> None:
        """Insert all rows."""
        with scope.team(self.team_id):
            for kind in (*_ORDER, *(kind for kind in self.by_kind if kind not in _ORDER)):
                kind._default_manager.bulk_create(self.of(kind), batch_size=_AT_ONCE)
