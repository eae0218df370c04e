"""What a run writes, and how: changes that are committed in groups, each guarded by the run's lease.

A change inserts rows and may advance its response. The advance is a conditional update that names the lease token and a
running state; when it finds nothing (cancelled, or taken over by a successor), nothing of the change is written.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, LiteralString, NamedTuple, cast

import orjson
import psycopg
from django.db import connection, models, transaction

from kernel.groupcommit import GroupCommit
from responses.models import RUNNING, Status, ToolCall


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


_STATES = ", ".join(f"'{status}'" for status in RUNNING)
_ADVANCED = f"""advanced AS (
    UPDATE responses_response AS response SET
        status = new.status,
        ended_at = new.ended_at,
        completed_at = CASE WHEN new.status = '{Status.COMPLETED}' THEN new.ended_at END,
        service_tier = new.service_tier,
        first_token_ms = new.first_token_ms,
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
    FROM json_to_recordset(%s::json) AS new (
        response_id text, lease_token integer, status text, ended_at timestamptz, service_tier text,
        first_token_ms integer, duration_ms integer, turns integer, tool_calls integer, input_tokens integer,
        cached_tokens integer, output_tokens integer, reasoning_tokens integer, error jsonb, error_code text,
        incomplete_reason text, output_preview text
    )
    WHERE response.id = new.response_id
      AND response.lease_token = new.lease_token
      AND response.status IN ({_STATES})
    RETURNING response.id
)"""  # noqa: S608 - constants of ours


def apply(changes: Sequence[Change]) -> list[Exception | None]:
    """Commit the changes in one transaction; those whose response was lost are left out and answered `LeaseLost`.

    All rows travel in one statement: it advances the responses, and inserts what belongs to those that it advanced (or
    to changes that advance nothing). Together with the setting of the teams it is one round trip to the database, which
    is what a batch costs most: at each of them the writer has to win the interpreter back from the event loop.
    """
    with transaction.atomic():
        raw = cast("psycopg.Connection[tuple[str]]", connection.connection)
        statement, parameters = _statement(changes)
        with raw.pipeline(), psycopg.Cursor(raw) as cursor:
            cursor.execute("SELECT set_config('app.team_ids', %s, true)", [",".join({c.team_id for c in changes})])
            cursor.execute(statement, parameters)
            held = {row[0] for row in cursor.fetchall()}
        lost = [change.advance is not None and change.advance.response_id not in held for change in changes]
        for change, is_lost in zip(changes, lost, strict=True):
            if change.calls and not is_lost:
                _update_calls(change)
    return [LeaseLost() if is_lost else None for is_lost in lost]


def _statement(changes: Sequence[Change]) -> tuple[LiteralString, list[str]]:
    """The statement for the tables that these changes touch, and one JSON document of rows for each."""
    advances = [asdict(change.advance) for change in changes if change.advance is not None]
    rows: dict[type[models.Model], list[dict[str, Any]]] = {}
    for change in changes:
        guard = change.advance.response_id if change.advance is not None else None
        for row in change.insert:
            values = {name: row.__dict__[name] for name in _insertion(type(row)).names}
            values["guard"] = guard
            rows.setdefault(type(row), []).append(values)
    parts = [_ADVANCED, *(_insertion(kind).sql for kind in rows)]
    statement = f"WITH {', '.join(parts)} SELECT id FROM advanced"  # noqa: S608 - names of our own tables
    return cast("LiteralString", statement), [_document(advances), *map(_document, rows.values())]


def _document(rows: list[dict[str, Any]]) -> str:
    return orjson.dumps(rows).decode()


class _Insertion(NamedTuple):
    """How rows of a table are inserted out of a JSON document."""

    names: list[str]
    sql: str


@cache
def _insertion(kind: type[models.Model]) -> _Insertion:
    """`guard` is the response that must have been advanced for the row to count; none: the row counts anyway."""
    meta = kind._meta  # noqa: SLF001 - Django's documented API for models
    fields = [field for field in meta.concrete_fields if not isinstance(field, models.AutoField | models.BigAutoField)]
    columns = ", ".join(f'"{field.column}"' for field in fields)
    types = ", ".join(f'"{field.attname}" {field.rel_db_type(connection)}' for field in fields)
    values = ", ".join(f'"{field.attname}"' for field in fields)
    sql = f"""into_{meta.db_table} AS (
    INSERT INTO "{meta.db_table}" ({columns})
    SELECT {values} FROM json_to_recordset(%s::json) AS new ({types}, guard text)
    WHERE guard IS NULL OR guard IN (SELECT id FROM advanced)
)"""  # noqa: S608 - names of our own tables
    return _Insertion([field.attname for field in fields], sql)


def _update_calls(change: Change) -> None:
    for update in change.calls:
        calls = ToolCall.objects.filter(response_id=update.response_id, call_id=update.call_id)
        calls.update(**update.values)


writer: GroupCommit[Change] = GroupCommit(apply, name="run-writer")
