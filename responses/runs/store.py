"""What a run writes, and how: changes that are committed in groups, each guarded by the run's lease.

A change inserts rows and may advance its response. The advance is a conditional update that names the lease token and
takes only a response that has not ended; when it finds nothing (cancelled, or taken over by a successor), nothing of
the change is written.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any, NamedTuple, cast

import orjson
import psycopg
from django.db import OperationalError, connection, models

from kernel.group_commit import GroupCommit
from kernel.ids import new_id
from responses.models import Status


class LeaseLost(Exception):
    """Somebody else has ended or taken over the response, or the conversation that it was to continue; or has deleted
    the response that it was to follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseUpdate:
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
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cost: Decimal | None = None
    error: dict[str, Any] | None = None
    error_code: str | None = None
    incomplete_reason: str | None = None
    moderation: dict[str, Any] | None = None
    output_preview: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGuard:
    """What a change needs to be held that advances nothing: the log's deltas."""

    response_id: str
    lease_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LockGuard:
    """What a change needs to be held that makes a response: the conversation that this one is to continue."""

    response_id: str
    conversation_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PredecessorGuard:
    """What a change needs to be there that makes a response: the one that this one follows."""

    response_id: str
    previous_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallUpdate:
    """The new state of an open tool call, whichever response made the call. What is None stays as it is."""

    response_id: str
    call_id: str
    status: str
    started_at: datetime | None = None
    ended_at: datetime | None = None
    attempt: int | None = None
    output: str | None = None
    error: str | None = None
    result: dict[str, Any] | None = None


class ExtraWrite(NamedTuple):
    """A write of another module's that belongs to a change: an SQL expression `name AS (…)` over a JSON document.

    The document is its one parameter (`%s::json`, an array of rows). Rows carry `guard` beside what `row` says: write
    only where `GUARDED` holds. Parts with the same text share one document.
    """

    sql: str
    row: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one step of a run writes."""

    team_id: str
    insert: Sequence[models.Model] = field(default_factory=tuple)
    advance: ResponseUpdate | None = None
    lease: LeaseGuard | None = None
    hold: LockGuard | None = None
    follow: PredecessorGuard | None = None
    calls: Sequence[CallUpdate] = field(default_factory=tuple)
    parts: Sequence[ExtraWrite] = field(default_factory=tuple)

    @property
    def guard(self) -> str | None:
        """The response whose lease or conversation must be held, or that must find the one it follows; None: the change
        counts anyway."""
        holder = self.advance or self.lease or self.hold or self.follow
        return holder.response_id if holder else None


_ADVANCED = f"""advanced AS (
    UPDATE responses_response AS response SET
        status = new.status,
        ended_at = new.ended_at,
        completed_at = CASE WHEN new.status = '{Status.COMPLETED}' THEN new.ended_at END,
        service_tier = new.service_tier,
        secrets = CASE WHEN new.ended_at IS NULL THEN response.secrets ELSE '' END,
        first_token_ms = new.first_token_ms,
        duration_ms = new.duration_ms,
        turns = new.turns,
        tool_calls = new.tool_calls,
        input_tokens = new.input_tokens,
        cached_tokens = new.cached_tokens,
        cache_write_tokens = new.cache_write_tokens,
        output_tokens = new.output_tokens,
        reasoning_tokens = new.reasoning_tokens,
        cost = new.cost,
        error = new.error,
        error_code = new.error_code,
        incomplete_reason = new.incomplete_reason,
        moderation = new.moderation,
        output_preview = new.output_preview
    FROM json_to_recordset(%s::json) AS new (
        response_id text, lease_token integer, status text, ended_at timestamptz, service_tier text,
        first_token_ms integer, duration_ms integer, turns integer, tool_calls integer, input_tokens integer,
        cached_tokens integer, cache_write_tokens integer, output_tokens integer, reasoning_tokens integer,
        cost numeric, error jsonb, error_code text, incomplete_reason text, moderation jsonb, output_preview text
    )
    WHERE response.id = new.response_id
      AND response.lease_token = new.lease_token
      AND response.ended_at IS NULL
    RETURNING response.id
)"""  # noqa: S608 - constants of ours


_HELD = """held AS (
    SELECT response.id
    FROM responses_response AS response
    JOIN json_to_recordset(%s::json) AS new (response_id text, lease_token integer)
      ON response.id = new.response_id AND response.lease_token = new.lease_token
    WHERE response.ended_at IS NULL
    FOR SHARE OF response
)"""
# The lock makes who takes over an abandoned hold wait, and find the response.
_KEPT = """kept AS (
    SELECT hold.response_id AS id
    FROM responses_conversationhold AS hold
    JOIN json_to_recordset(%s::json) AS new (response_id text, conversation_id text)
      ON hold.conversation_id = new.conversation_id AND hold.response_id = new.response_id
    FOR UPDATE OF hold
)"""
# The lock makes who deletes the response that is followed wait, and find its follower.
_FOLLOWED = """followed AS (
    SELECT new.response_id AS id
    FROM responses_response AS response
    JOIN json_to_recordset(%s::json) AS new (response_id text, previous_id text) ON response.id = new.previous_id
    FOR KEY SHARE OF response
)"""
_GUARDS = " UNION ALL ".join(f"SELECT id FROM {name}" for name in ("advanced", "held", "kept", "followed"))  # noqa: S608
# Whether what a row belongs to counts: its response was advanced, or is held, or its conversation is, or it follows one
# that is there.
GUARDED = f"(guard IS NULL OR guard IN ({_GUARDS}))"
_CALLED = f"""called AS (
    UPDATE responses_toolcall AS call SET
        status = new.status,
        started_at = coalesce(new.started_at, call.started_at),
        ended_at = new.ended_at,
        attempt = coalesce(new.attempt, call.attempt),
        output = new.output,
        error = new.error,
        result = new.result
    FROM json_to_recordset(%s::json) AS new (
        response_id text, call_id text, status text, started_at timestamptz, ended_at timestamptz, attempt integer,
        output text, error text, result jsonb, guard text
    )
    WHERE call.response_id = new.response_id
      AND call.call_id = new.call_id
      AND call.ended_at IS NULL
      AND {GUARDED}
)"""  # noqa: S608 - parts of our own


_MARKED = f"""marked AS (
    INSERT INTO responses_commitmark AS mark (writer, batch, held, written_at)
    SELECT new.writer, new.batch, ARRAY({_GUARDS}), now()
    FROM json_to_recordset(%s::json) AS new (writer text, batch bigint)
    ON CONFLICT (writer) DO UPDATE
    SET batch = excluded.batch, held = excluded.held, written_at = excluded.written_at
)"""  # noqa: S608 - parts of our own
# Whoever still works for the connection that broke must be through with it before anybody looks at the mark.
_ENDED = "SELECT coalesce(bool_and(pg_terminate_backend(pid, 5000)), true) FROM pg_stat_activity WHERE pid = %s"
_RECALLED = "SELECT held FROM responses_commitmark WHERE writer = %s AND batch = %s"


class MarkedWriter:
    """Commits groups of changes and marks each of them, so that a connection which breaks between a commit and its
    answer leaves no doubt: `recall` says what became of the last group."""

    def __init__(self) -> None:
        self._writer = new_id("writer")
        self._batch = 0
        self._backend = 0

    def apply(self, changes: Sequence[Change]) -> list[Exception | None]:
        """`apply`, marked."""
        self._batch += 1
        self._backend = connection.connection.info.backend_pid
        return apply(changes, mark={"writer": self._writer, "batch": self._batch})

    def recall(self, changes: Sequence[Change]) -> list[Exception | None] | None:
        """The outcomes of these changes, which were the last to be applied; None: nothing of them was committed."""
        with connection.cursor() as cursor:
            cursor.execute(_ENDED, [self._backend])
            if cursor.fetchone() != (True,):
                message = "the connection that was lost is still being served"
                raise OperationalError(message)
            cursor.execute(_RECALLED, [self._writer, self._batch])
            found = cursor.fetchone()
        return None if found is None else _outcomes(changes, held=set(found[0]))


def apply(changes: Sequence[Change], *, mark: Mapping[str, Any] | None = None) -> list[Exception | None]:
    """Commit the changes in one transaction; those whose response was lost are left out and answered `LeaseLost`.

    All rows travel in one statement: it advances the responses, and writes what belongs to those that it advanced (or
    to changes that advance nothing). With the setting of the teams and the commit in the same pipeline a batch is one
    round trip, which is what costs most: at each of them the writer has to win the interpreter back from the loop.
    """
    connection.ensure_connection()
    raw = cast("psycopg.Connection[tuple[str]]", connection.connection)
    teams = ",".join({change.team_id for change in changes})
    # In Django's errors, so that the group commit knows a lost connection when it sees one.
    with connection.wrap_database_errors, psycopg.Cursor(raw) as cursor:
        with raw.pipeline(), raw.transaction():
            cursor.execute("SELECT set_config('app.team_ids', %s, true)", [teams])
            cursor.execute(*_statement(changes, mark))
        held = {row[0] for row in cursor.fetchall()}
    return _outcomes(changes, held=held)


def _outcomes(changes: Sequence[Change], *, held: Collection[str]) -> list[Exception | None]:
    return [None if change.guard is None or change.guard in held else LeaseLost() for change in changes]


def _statement(changes: Sequence[Change], mark: Mapping[str, Any] | None) -> tuple[bytes, list[str]]:
    """The statement for the tables that these changes touch, and one JSON document of rows for each part of it."""
    advances = [asdict(change.advance) for change in changes if change.advance is not None]
    leases = [asdict(change.lease) for change in changes if change.lease is not None]
    holds = [asdict(change.hold) for change in changes if change.hold is not None]
    follows = [asdict(change.follow) for change in changes if change.follow is not None]
    documents: dict[str, list[dict[str, Any]]] = {
        _ADVANCED: advances,
        _HELD: leases,
        _KEPT: holds,
        _FOLLOWED: follows,
    }
    for change in changes:
        guard = change.guard
        for row in change.insert:
            names, sql = _insertion(type(row))
            values = {name: row.__dict__[name] for name in names}
            documents.setdefault(sql, []).append(values | {"guard": guard})
        for update in change.calls:
            documents.setdefault(_CALLED, []).append(asdict(update) | {"guard": guard})
        for part in change.parts:
            documents.setdefault(part.sql, []).append({**part.row, "guard": guard})
    if mark is not None:
        documents[_MARKED] = [{**mark}]
    statement = f"WITH {', '.join(documents)} {_GUARDS}"
    return statement.encode(), [_document(rows) for rows in documents.values()]


def _document(rows: list[dict[str, Any]]) -> str:
    return orjson.dumps(rows, default=_exact).decode()


def _exact(value: object) -> str:
    """A decimal number as PostgreSQL reads it; JSON's own would be a float."""
    if isinstance(value, Decimal):
        return f"{value:f}"
    raise TypeError


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
    WHERE {GUARDED}
)"""  # noqa: S608 - names of our own tables
    return _Insertion([field.attname for field in fields], sql)


_marker = MarkedWriter()
writer: GroupCommit[Change] = GroupCommit(_marker.apply, recall=_marker.recall, name="run-writer")
