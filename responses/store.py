"""What a run writes, and how: changes that are committed in groups, each guarded by the run's lease.

A change inserts rows and may advance its response. The advance is a conditional update that names the lease token and a
running state; when it finds nothing (cancelled, or taken over by a successor), nothing of the change is written.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

import orjson
from django.db import connection, models, transaction

from conversations.models import Item, Placement
from kernel.groupcommit import GroupCommit
from kernel.rowsecurity import open_to
from responses.models import EventBatch, Response, Status, ToolCall, Turn
from tenants.models import UsageRecord


class LeaseLost(Exception):
    """Somebody else has ended or taken over the response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """The new state of a response's row. Numbers are totals of the run, not increments."""

    response_id: str
    lease_token: int
    status: str
    ended_at: datetime | None = None
    service_tier: str | None = None
    first_token_ms: int | None = None
    duration_ms: int | None = None
    turns: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    error: dict[str, Any] | None = None
    error_code: str | None = None
    incomplete_reason: str | None = None
    output_preview: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallUpdate:
    """The new state of a tool call's row, whichever response made the call."""

    response_id: str
    call_id: str
    values: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one step of a run writes."""

    team_id: str
    insert: Sequence[models.Model] = field(default_factory=tuple)
    advance: Advance | None = None
    calls: Sequence[CallUpdate] = field(default_factory=tuple)


# Parents before children.
_ORDER: tuple[type[models.Model], ...] = (Response, Item, Placement, Turn, ToolCall, EventBatch, UsageRecord)

_ADVANCE = f"""
UPDATE responses_response AS response SET
    status = new.status,
    ended_at = new.ended_at,
    completed_at = CASE WHEN new.status = '{Status.COMPLETED}' THEN new.ended_at END,
    service_tier = new.service_tier,
    first_token_ms = coalesce(response.first_token_ms, new.first_token_ms),
    duration_ms = new.duration_ms,
    turns = new.turns,
    tool_calls = new.tool_calls,
    input_tokens = new.input_tokens,
    cached_tokens = new.cached_tokens,
    output_tokens = new.output_tokens,
    reasoning_tokens = new.reasoning_tokens,
    error = new.error,
    error_code = new.error_code,
    incomplete_reason = new.incomplete_reason,
    output_preview = new.output_preview
FROM jsonb_to_recordset(%s::jsonb) AS new (
    response_id text, lease_token integer, status text, ended_at timestamptz, service_tier text,
    first_token_ms integer, duration_ms integer, turns integer, tool_calls integer, input_tokens integer,
    cached_tokens integer, output_tokens integer, reasoning_tokens integer, error jsonb, error_code text,
    incomplete_reason text, output_preview text
)
WHERE response.id = new.response_id
  AND response.lease_token = new.lease_token
  AND response.status IN ('{Status.QUEUED}', '{Status.IN_PROGRESS}')
RETURNING response.id
"""  # noqa: S608 - constants of ours


def apply(changes: Sequence[Change]) -> list[Exception | None]:
    """Commit the changes in one transaction; those whose response was lost are left out and answered `LeaseLost`."""
    with transaction.atomic():
        open_to({change.team_id for change in changes})
        held = _advance([change.advance for change in changes if change.advance is not None])
        kept = [change for change in changes if change.advance is None or change.advance.response_id in held]
        for kind in _ORDER:
            rows = [row for change in kept for row in change.insert if type(row) is kind]
            if rows:
                kind._default_manager.bulk_create(rows)
        for change in kept:
            _update_calls(change)
    return [
        LeaseLost() if change.advance is not None and change.advance.response_id not in held else None
        for change in changes
    ]


def _advance(advances: Sequence[Advance]) -> set[str]:
    if not advances:
        return set()
    rows = orjson.dumps([asdict(advance) for advance in advances]).decode()
    with connection.cursor() as cursor:
        cursor.execute(_ADVANCE, [rows])
        return {row[0] for row in cursor.fetchall()}


def _update_calls(change: Change) -> None:
    for update in change.calls:
        calls = ToolCall.objects.filter(response_id=update.response_id, call_id=update.call_id)
        calls.update(**update.values)


writer: GroupCommit[Change] = GroupCommit(apply, name="run-writer")
