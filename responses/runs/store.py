"""Write what runs produce: changes that are committed in groups, each guarded by the lease of its run.

A change inserts rows and may update its response. The update is conditional: it names the lease token and applies only
to a response that has not ended. If it matches no row, because the run was cancelled or resumed by another process,
nothing of the change is written.
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
    """The change was not written because its guard failed.

    Another process has ended or resumed the response, another response has locked its conversation, or its predecessor
    was deleted.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseUpdate:
    """The new state of a response's row. Counters are totals of the run, not increments; `spans` are appended."""

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
    spans: Sequence[Mapping[str, Any]] | None = None
    error: dict[str, Any] | None = None
    error_code: str | None = None
    incomplete_reason: str | None = None
    moderation: dict[str, Any] | None = None
    output_preview: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGuard:
    """The guard of a change that updates no response, such as a batch of events: the lease must be held."""

    response_id: str
    lease_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LockGuard:
    """The guard of a change that stores a response: it must hold the lock of its conversation."""

    response_id: str
    conversation_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PredecessorGuard:
    """The guard of a change that stores a response: its predecessor must still exist."""

    response_id: str
    previous_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallUpdate:
    """The new state of an open tool call, which may belong to an earlier response. None leaves a column unchanged."""

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
    """A write of another module that belongs to a change: an SQL expression `name AS (…)` over a JSON document.

    The document is the expression's only parameter (`%s::json`, an array of rows). Each row has the keys of `row` and
    `guard`, the guarded response: write a row only where `GUARDED` holds. Writes with equal `sql` share one document.
    """

    sql: str
    row: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Everything that one step of a run writes, atomically. At most one of the guards is set."""

    team_id: str
    insert: Sequence[models.Model] = field(default_factory=tuple)
    update: ResponseUpdate | None = None
    lease: LeaseGuard | None = None
    lock: LockGuard | None = None
    predecessor: PredecessorGuard | None = None
    calls: Sequence[CallUpdate] = field(default_factory=tuple)
    extra: Sequence[ExtraWrite] = field(default_factory=tuple)

    @property
    def guard(self) -> str | None:
        """The id of the response whose guard decides, or None if the change is always written."""
        guard = self.update or self.lease or self.lock or self.predecessor
        return guard.response_id if guard else None


# `status` and `ended_at` change together: check constraints tie them to each other. Secrets are erased with the end of
# the run, because only a run that is resumed needs them.
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
        spans = CASE WHEN new.spans IS NULL THEN response.spans ELSE response.spans || new.spans END,
        error = new.error,
        error_code = new.error_code,
        incomplete_reason = new.incomplete_reason,
        moderation = new.moderation,
        output_preview = new.output_preview
    FROM json_to_recordset(%s::json) AS new (
        response_id text, lease_token integer, status text, ended_at timestamptz, service_tier text,
        first_token_ms integer, duration_ms integer, turns integer, tool_calls integer, input_tokens integer,
        cached_tokens integer, cache_write_tokens integer, output_tokens integer, reasoning_tokens integer,
        cost numeric, spans jsonb, error json, error_code text, incomplete_reason text, moderation json,
        output_preview text
    )
    WHERE response.id = new.response_id
      AND response.lease_token = new.lease_token
      AND response.ended_at IS NULL
    RETURNING response.id
)"""  # noqa: S608 - constants only


_HELD = """held AS (
    SELECT response.id
    FROM responses_response AS response
    JOIN json_to_recordset(%s::json) AS new (response_id text, lease_token integer)
      ON response.id = new.response_id AND response.lease_token = new.lease_token
    WHERE response.ended_at IS NULL
    FOR SHARE OF response
)"""
# FOR UPDATE: a response that takes over a stale lock waits for this commit, and then finds the response stored.
_LOCKED = """locked AS (
    SELECT hold.response_id AS id
    FROM responses_conversationhold AS hold
    JOIN json_to_recordset(%s::json) AS new (response_id text, conversation_id text)
      ON hold.conversation_id = new.conversation_id AND hold.response_id = new.response_id
    FOR UPDATE OF hold
)"""
# FOR KEY SHARE: a deletion of the predecessor waits for this commit, and then finds its new successor.
_PRECEDED = """preceded AS (
    SELECT new.response_id AS id
    FROM responses_response AS response
    JOIN json_to_recordset(%s::json) AS new (response_id text, previous_id text) ON response.id = new.previous_id
    FOR KEY SHARE OF response
)"""
_GUARDS = " UNION ALL ".join(f"SELECT id FROM {name}" for name in ("advanced", "held", "locked", "preceded"))  # noqa: S608
GUARDED = f"(guard IS NULL OR guard IN ({_GUARDS}))"
"""SQL condition of a row that is written: it has no guard, or its guard holds."""
# `ended_at IS NULL`: a call that has ended keeps its first result, so a repeated output changes nothing.
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
)"""  # noqa: S608 - constants only


_MARKED = f"""marked AS (
    INSERT INTO responses_commitmark AS mark (writer, batch, held, written_at)
    SELECT new.writer, new.batch, ARRAY({_GUARDS}), now()
    FROM json_to_recordset(%s::json) AS new (writer text, batch bigint)
    ON CONFLICT (writer) DO UPDATE
    SET batch = excluded.batch, held = excluded.held, written_at = excluded.written_at
)"""  # noqa: S608 - constants only
# The backend of the broken connection may still be committing, so it must be gone before the mark is read. The timeout
# is in milliseconds.
_TERMINATE = "SELECT coalesce(bool_and(pg_terminate_backend(pid, 5000)), true) FROM pg_stat_activity WHERE pid = %s"
_READ_MARK = "SELECT held FROM responses_commitmark WHERE writer = %s AND batch = %s"


class MarkedWriter:
    """Commits groups of changes and marks each group in the same transaction.

    If a connection breaks between a commit and its confirmation, `recall` reads the mark to find out whether the last
    group was committed.
    """

    def __init__(self) -> None:
        self._writer = new_id("writer")
        self._batch = 0
        self._backend = 0

    def apply(self, changes: Sequence[Change]) -> list[Exception | None]:
        """Commit the changes with a mark; see the function `apply`."""
        self._batch += 1
        self._backend = connection.connection.info.backend_pid
        return apply(changes, mark={"writer": self._writer, "batch": self._batch})

    def recall(self, changes: Sequence[Change]) -> list[Exception | None] | None:
        """Return the outcomes of the changes that were applied last, or None if they were not committed.

        Raises `OperationalError` while the backend of the lost connection may still be committing.
        """
        with connection.cursor() as cursor:
            cursor.execute(_TERMINATE, [self._backend])
            if cursor.fetchone() != (True,):
                raise OperationalError("the backend of the lost connection is still running")
            cursor.execute(_READ_MARK, [self._writer, self._batch])
            found = cursor.fetchone()
        return None if found is None else _outcomes(changes, held=set(found[0]))


def apply(changes: Sequence[Change], *, mark: Mapping[str, Any] | None = None) -> list[Exception | None]:
    """Commit the changes in one transaction and return their outcomes, in order.

    The outcome is None for a change that was written, and `LeaseLost` for one that was left out because its guard
    failed. Raises Django's database errors.
    """
    connection.ensure_connection()
    raw = cast("psycopg.Connection[tuple[str]]", connection.connection)
    teams = ",".join({change.team_id for change in changes})
    # Raises Django's exceptions: the group commit recognizes a lost connection by them.
    with connection.wrap_database_errors, psycopg.Cursor(raw) as cursor:
        # All rows travel in one statement, pipelined with the team setting and the commit. That makes a group a single
        # round trip. Round trips cost the most here: after each one, the writer thread must win back the interpreter
        # lock from the event loop.
        with raw.pipeline(), raw.transaction():
            cursor.execute("SELECT set_config('app.team_ids', %s, true)", [teams])
            cursor.execute(*_statement(changes, mark))
        held = {row[0] for row in cursor.fetchall()}
    return _outcomes(changes, held=held)


def _outcomes(changes: Sequence[Change], *, held: Collection[str]) -> list[Exception | None]:
    return [None if change.guard is None or change.guard in held else LeaseLost() for change in changes]


def _statement(changes: Sequence[Change], mark: Mapping[str, Any] | None) -> tuple[bytes, list[str]]:
    """Return one statement for all tables of these changes, and a JSON document of rows for each of its parts."""
    # The four guards are always part of the statement, even without rows: `GUARDED` refers to all of them.
    documents: dict[str, list[dict[str, Any]]] = {
        _ADVANCED: [asdict(change.update) for change in changes if change.update is not None],
        _HELD: [asdict(change.lease) for change in changes if change.lease is not None],
        _LOCKED: [asdict(change.lock) for change in changes if change.lock is not None],
        _PRECEDED: [asdict(change.predecessor) for change in changes if change.predecessor is not None],
    }
    for change in changes:
        guard = change.guard
        for row in change.insert:
            names, sql = _insertion(type(row))
            values = {name: row.__dict__[name] for name in names}
            documents.setdefault(sql, []).append(values | {"guard": guard})
        for update in change.calls:
            documents.setdefault(_CALLED, []).append(asdict(update) | {"guard": guard})
        for write in change.extra:
            documents.setdefault(write.sql, []).append({**write.row, "guard": guard})
    if mark is not None:
        documents[_MARKED] = [{**mark}]
    statement = f"WITH {', '.join(documents)} {_GUARDS}"
    return statement.encode(), [orjson.dumps(rows, default=_exact).decode() for rows in documents.values()]


def _exact(value: object) -> str:
    # Decimals travel as text: a JSON number would be read as a float and lose digits of a cost.
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    raise TypeError


@cache
def _insertion(kind: type[models.Model]) -> tuple[list[str], str]:
    """Return the columns of a table that are inserted, and the SQL that inserts them from a JSON document."""
    meta = kind._meta  # noqa: SLF001 - Django's documented API for models
    # The database assigns automatic keys.
    fields = [field for field in meta.concrete_fields if not isinstance(field, models.AutoField | models.BigAutoField)]
    columns = ", ".join(f'"{field.column}"' for field in fields)
    types = ", ".join(f'"{field.attname}" {field.rel_db_type(connection)}' for field in fields)
    values = ", ".join(f'"{field.attname}"' for field in fields)
    sql = f"""into_{meta.db_table} AS (
    INSERT INTO "{meta.db_table}" ({columns})
    SELECT {values} FROM json_to_recordset(%s::json) AS new ({types}, guard text)
    WHERE {GUARDED}
)"""  # noqa: S608 - names of our own tables
    return [field.attname for field in fields], sql


_marked_writer = MarkedWriter()
writer: GroupCommit[Change] = GroupCommit(_marked_writer.apply, recall=_marked_writer.recall, name="run-writer")
"""The writer of this process: every run submits its changes here."""
