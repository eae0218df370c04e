"""Write the results of runs as changes, which are committed in groups. Each change is guarded by the lease of its run.

A change inserts rows and may update its response. The update is conditional: it applies only to a response that has
this lease token and has not ended. If it matches no row, because the run was cancelled or resumed by another process,
the whole change is left out.
"""

import asyncio
import atexit
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple, cast

import psycopg
from django.db import connection
from psycopg.conninfo import make_conninfo

from core.db.database import database_conninfo
from core.db.group_commit import Commit, GroupCommit, Outcomes, uncancelled
from core.db.statement_pipeline import ConnectionLost, Rows, Statement, StatementPipeline
from core.ids import new_id
from core.json import large_json
from core.json.large_work import LARGE_BYTES, Weight, pause, short_turns, weight
from core.records import record
from core.work.worker_loop import WorkerLoop
from responses.models import Status
from responses.runs.rows import Row, insertion


class LeaseLost(Exception):
    """The change was not written because its guard failed.

    Another process has ended or resumed the response or recorded the call, another response has locked its
    conversation, or its predecessor was deleted.
    """


class ReservationLost(Exception):
    """The change was not written: the state of the limits was rebuilt without its reservation. Make it again."""


@record
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
    """The guard of a change that updates no response, such as a batch of events: the run must still have its lease."""

    response_id: str
    lease_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LockGuard:
    """The guard of a change that stores a response: the response must have the lock of its conversation."""

    response_id: str
    conversation_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PredecessorGuard:
    """The guard of a change that stores a response: the predecessor of the response must still exist."""

    response_id: str
    previous_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGuard:
    """The guard of a change that records an open call: no other process may have recorded it."""

    call_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationGuard:
    """The guard of a change that stores a reservation: the team's limits must still have the same epoch.

    If the change has no other guard, it is identified by `reservation_id`.
    """

    reservation_id: str
    team_id: str
    epoch: int


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
    if_ended: dict[str, Any] | None = None


class ExtraWrite(NamedTuple):
    """A write of another module that belongs to a change: a statement over a JSON document.

    The document is the only parameter of the statement (`$1::json`, an array of rows). Each row has the keys of `row`
    and the key `guard` with the id of the guarded response. The statement must write a row only if `GUARDED` is true
    for it. Writes with equal statements share one document.
    """

    statement: Statement
    row: Mapping[str, Any]


@record
class Change:
    """Everything that one step of a run writes, atomically. At most one of the guards is set, besides `reservation`."""

    team_id: str
    insert: Sequence[Row] = ()
    update: ResponseUpdate | None = None
    lease: LeaseGuard | None = None
    lock: LockGuard | None = None
    predecessor: PredecessorGuard | None = None
    call: CallGuard | None = None
    reservation: ReservationGuard | None = None
    calls: Sequence[CallUpdate] = ()
    extra: Sequence[ExtraWrite] = ()

    @property
    def response_guard(self) -> "ResponseUpdate | LeaseGuard | LockGuard | PredecessorGuard | None":
        """The guard that depends on a response, if there is one."""
        return self.update or self.lease or self.lock or self.predecessor

    @property
    def guard(self) -> str | None:
        """The id of the guarded response, call or reservation, or None if the change is always written."""
        if (guard := self.response_guard) is not None:
            return guard.response_id
        if self.call is not None:
            return self.call.call_id
        return self.reservation.reservation_id if self.reservation else None


# A group is a transaction of a few fixed statements, so that each statement is prepared once for a connection. There is
# one statement for the settings, one for each kind of guard in the group, and one for each table into which rows are
# inserted. The guards collect the ids for which they are fulfilled in a setting of the transaction, and the following
# statements read this setting.
#
# A prepared plan is used even when its statistics are outdated: a table that was small when the plan was made must not
# be scanned for every group later. So only index scans and nested loops are allowed, and the keys are given twice: in
# the join and as an array (`_one_of`). Without the array, the planner starts from all rows of an empty table (5 ms for
# each update of a response while the table grew to 3,000 rows). The generic plan is forced, because the planner would
# otherwise first make five plans for particular values.
BEGIN = Statement("""
    SELECT set_config('app.team_ids', $1, true), set_config('app.held', '', true),
        set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
        set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)
""")
_HELD = "string_to_array(current_setting('app.held'), ',')"
GUARDED = f"(guard IS NULL OR guard = ANY ((SELECT {_HELD})::text[]))"
"""SQL condition for writing a row: the row has no guard, or its guard is fulfilled."""


def _one_of(column: str, name: str) -> str:
    """Return the SQL condition that a column has one of the values of the key `name` in the document."""
    return f"{column} = ANY (ARRAY(SELECT {name} FROM json_to_recordset($1::json) AS key ({name} text)))"  # noqa: S608


def _guard(condition: str) -> Statement:
    """Return the statement that checks one kind of guard. `condition` selects the ids for which it is fulfilled."""
    return Statement(f"""
        WITH holding AS ({condition}), ids AS (SELECT string_agg(id, ',') AS list FROM holding)
        SELECT list, set_config('app.held', concat_ws(',', nullif(current_setting('app.held'), ''), list), true)
        FROM ids
    """)  # noqa: S608 - constants only


# Check constraints require that `status` and `ended_at` change together. Secrets are erased at the end of the run,
# because they are needed only to resume it.
_ADVANCED = _guard(f"""
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
    FROM json_to_recordset($1::json) AS new (
        response_id text, lease_token integer, status text, ended_at timestamptz, service_tier text,
        first_token_ms integer, duration_ms integer, turns integer, tool_calls integer, input_tokens integer,
        cached_tokens integer, cache_write_tokens integer, output_tokens integer, reasoning_tokens integer,
        cost numeric, spans jsonb, error json, error_code text, incomplete_reason text, moderation json,
        output_preview text
    )
    WHERE response.id = new.response_id
      AND {_one_of("response.id", "response_id")}
      AND response.lease_token = new.lease_token
      AND response.ended_at IS NULL
    RETURNING response.id
""")  # noqa: S608 - constants only
_LEASED = _guard(f"""
    SELECT response.id
    FROM responses_response AS response
    JOIN json_to_recordset($1::json) AS new (response_id text, lease_token integer)
      ON response.id = new.response_id AND response.lease_token = new.lease_token
    WHERE response.ended_at IS NULL AND {_one_of("response.id", "response_id")}
    FOR SHARE OF response
""")  # noqa: S608 - constants only
# FOR UPDATE: a response that takes over a stale lock waits for this commit, and then finds the response stored.
_LOCKED = _guard(f"""
    SELECT hold.response_id AS id
    FROM responses_conversationhold AS hold
    JOIN json_to_recordset($1::json) AS new (response_id text, conversation_id text)
      ON hold.conversation_id = new.conversation_id AND hold.response_id = new.response_id
    WHERE {_one_of("hold.conversation_id", "conversation_id")}
    FOR UPDATE OF hold
""")  # noqa: S608 - constants only
# FOR KEY SHARE: a deletion of the predecessor waits for this commit, and then finds its new successor.
_PRECEDED = _guard(f"""
    SELECT new.response_id AS id
    FROM responses_response AS response
    JOIN json_to_recordset($1::json) AS new (response_id text, previous_id text) ON response.id = new.previous_id
    WHERE {_one_of("response.id", "previous_id")}
    FOR KEY SHARE OF response
""")  # noqa: S608 - constants only
# FOR UPDATE: of two processes that record the same call, one waits for the other, and then finds no row.
_OPEN = _guard(f"""
    SELECT call.id
    FROM tenants_reservation AS call
    JOIN json_to_recordset($1::json) AS new (call_id text) ON call.id = new.call_id
    WHERE {_one_of("call.id", "call_id")}
    FOR UPDATE OF call
""")  # noqa: S608 - constants only
# This guard is checked last, because it revokes other guards: the id of a change whose reservation was lost is marked
# by "!". FOR SHARE: either a rebuild of the limits' state waits for this commit and then finds the reservation, or this
# statement waits for the rebuild.
_RESERVED = Statement(f"""
    WITH given AS MATERIALIZED (
        SELECT * FROM json_to_recordset($1::json) AS new (id text, team_id text, epoch bigint, is_alone boolean)
    ),
    current AS MATERIALIZED (
        SELECT team_id, epoch FROM tenants_limitepoch
        WHERE {_one_of("team_id", "team_id")}
        FOR SHARE
    ),
    checked AS MATERIALIZED (
        SELECT given.id, given.is_alone, EXISTS (
            SELECT FROM current WHERE current.team_id = given.team_id AND current.epoch = given.epoch
        ) AS holds
        FROM given
    )
    SELECT set_config('app.held', concat_ws(',',
        (SELECT string_agg(held.id, ',') FROM unnest({_HELD}) AS held (id)
         WHERE NOT EXISTS (SELECT FROM checked WHERE checked.id = held.id AND NOT checked.holds)),
        (SELECT string_agg(id, ',') FROM checked WHERE is_alone AND holds),
        (SELECT string_agg('!' || id, ',') FROM checked WHERE NOT holds)
    ), true)
""")  # noqa: S608 - constants only
# `ended_at IS NULL`: a call that has ended keeps its first result, so a repeated output changes nothing.
_CALLED = Statement(f"""
    UPDATE responses_toolcall AS call SET
        status = new.status,
        started_at = coalesce(new.started_at, call.started_at),
        ended_at = new.ended_at,
        attempt = coalesce(new.attempt, call.attempt),
        output = new.output,
        error = new.error,
        result = new.result,
        if_ended = new.if_ended
    FROM json_to_recordset($1::json) AS new (
        response_id text, call_id text, status text, started_at timestamptz, ended_at timestamptz, attempt integer,
        output text, error text, result jsonb, if_ended jsonb, guard text
    )
    WHERE call.response_id = new.response_id
      AND {_one_of("call.response_id", "response_id")}
      AND call.call_id = new.call_id
      AND call.ended_at IS NULL
      AND {GUARDED}
""")  # noqa: S608 - constants only
_CALL_FIELDS = [field.name for field in fields(CallUpdate)]
# The last statement of every group returns the ids whose guard was fulfilled.
_MARK = Statement(f"""
    INSERT INTO responses_commitmark (writer, batch, held, written_at) VALUES ($1, $2::bigint, {_HELD}, now())
    ON CONFLICT (writer) DO UPDATE
    SET batch = excluded.batch, held = excluded.held, written_at = excluded.written_at
    RETURNING array_to_string(held, ',')
""")  # noqa: S608 - constants only
_END = Statement("SELECT current_setting('app.held')")
# The backend of the broken connection may still be committing, so it must have ended before the mark is read. It is
# found by the name of the connection, because behind a pooler the client does not know the process id. The timeout is
# in milliseconds.
_TERMINATE = Statement("""
    SELECT coalesce(bool_and(pg_terminate_backend(pid, 5000)), true)
    FROM pg_stat_activity WHERE application_name = $1 AND pid <> pg_backend_pid()
""")
_READ_MARK = Statement("""
    SELECT array_to_string(held, ',') FROM responses_commitmark WHERE writer = $1 AND batch = $2::bigint
""")
_Calls = list[tuple[Statement, Sequence[bytes]]]


class MarkedWriter:
    """Commits groups of changes and marks each group in the same transaction.

    If the connection breaks between a commit and its confirmation, `recall` reads the mark to find out whether the last
    group was committed. `name` is the name of the mark and of the connection.
    """

    def __init__(self, conninfo: Callable[[], str] = database_conninfo) -> None:
        self.name = new_id("writer")
        self._batch = 0
        self._pipeline = StatementPipeline(lambda: make_conninfo(conninfo(), application_name=self.name))
        # Stored here, because on an event loop every task gets its own `connection` object: 3.5 KB that only the
        # garbage collector frees.
        self._wrapped_errors = connection.wrap_database_errors

    async def apply(self, changes: Sequence[Change]) -> list[Exception | None]:
        """Commit the changes with a mark; see the function `apply`."""
        self._batch += 1
        results = await self._run([*statements_of(changes), (_MARK, self._mark())])
        return _outcomes(changes, held=results[-1][0][0])

    def start(
        self, changes: Sequence[Change], done: Callable[[Outcomes | Exception], None], *, seconds: float | None
    ) -> bool:
        """Begin to commit like `apply`, without a task; see `Committer`."""
        self._batch += 1
        calls = [*statements_of(changes), (_MARK, self._mark())]
        return self._pipeline.start(calls, partial(self._end, changes, done), seconds=seconds)

    def _end(
        self,
        changes: Sequence[Change],
        done: Callable[[Outcomes | Exception], None],
        results: Rows | Exception,
    ) -> None:
        if not isinstance(results, Exception):
            done(_outcomes(changes, held=results[-1][0][0]))
            return
        try:
            with self._wrapped_errors:
                raise results  # noqa: TRY301 - the context manager converts it
        except Exception as error:
            done(error)

    async def recall(self, changes: Sequence[Change]) -> list[Exception | None] | None:
        """Return the outcomes of the last group of changes, or None if the group was not committed.

        Raises `ConnectionLost` while the backend of the lost connection may still be committing.
        """
        ((is_gone,),), marks = await self._run([(_TERMINATE, [self.name.encode()]), (_READ_MARK, self._mark())])
        if is_gone != b"t":
            raise ConnectionLost("the backend of the lost connection is still running")
        return _outcomes(changes, held=marks[0][0]) if marks else None

    def _mark(self) -> list[bytes]:
        return [self.name.encode(), str(self._batch).encode()]

    async def _run(self, calls: _Calls) -> list[list[tuple[bytes | None, ...]]]:
        with self._wrapped_errors:
            return await self._pipeline.run(calls)


def apply(changes: Sequence[Change]) -> list[Exception | None]:
    """Commit the changes in one transaction and return their outcomes, in order. For code without an event loop.

    The outcome is None for a change that was written, and `LeaseLost` for one that was left out because its guard
    failed. Raises Django's database errors.
    """
    connection.ensure_connection()
    raw = cast("psycopg.Connection[tuple[str]]", connection.connection)
    with connection.wrap_database_errors, psycopg.RawCursor(raw) as cursor:
        with raw.pipeline(), raw.transaction():
            for statement, values in [*statements_of(changes), (_END, ())]:
                cursor.execute(statement.sql.encode(), [value.decode() for value in values])
        (held,) = cursor.fetchone() or ("",)
    return _outcomes(changes, held=held.encode())


def _outcomes(changes: Sequence[Change], *, held: bytes | None) -> list[Exception | None]:
    """Return the outcomes of the changes, in order.

    `held` contains the ids whose guard was fulfilled, separated by commas. Ids that begin with "!" have lost their
    reservations.
    """
    ids = {name.decode() for name in (held or b"").split(b",")}

    def outcome(guard: str | None) -> Exception | None:
        if guard is None or guard in ids:
            return None
        return ReservationLost() if f"!{guard}" in ids else LeaseLost()

    return [outcome(change.guard) for change in changes]


def statements_of(changes: Sequence[Change]) -> _Calls:
    """Return the statements for these changes in the order of their execution, each with its JSON document of rows."""
    guards: dict[Statement, list[Any]] = {}
    documents: dict[Statement, list[dict[str, Any]]] = {}
    reservations: list[dict[str, Any]] = []
    for change in changes:
        for statement, guarding in (
            (_LEASED, change.lease),
            (_ADVANCED, change.update),
            (_LOCKED, change.lock),
            (_PRECEDED, change.predecessor),
            (_OPEN, change.call),
        ):
            if guarding is not None:
                # orjson serializes dataclasses without a copy.
                guards.setdefault(statement, []).append(guarding)
        guard = change.guard
        if (reserved := change.reservation) is not None:
            is_alone = change.response_guard is None
            reservations.append(
                {"id": guard, "team_id": reserved.team_id, "epoch": reserved.epoch, "is_alone": is_alone}
            )
        for table, values in change.insert:
            row = values if guard is None else {**values, "guard": guard}
            documents.setdefault(insertion(table, GUARDED), []).append(row)
        for update in change.calls:
            columns = {name: getattr(update, name) for name in _CALL_FIELDS}
            documents.setdefault(_CALLED, []).append(columns | {"guard": guard})
        for write in change.extra:
            documents.setdefault(write.statement, []).append({**write.row, "guard": guard})
    teams = ",".join({change.team_id for change in changes})
    return [
        (BEGIN, [teams.encode()]),
        *((statement, [_document(rows)]) for statement, rows in guards.items()),
        *([(_RESERVED, [_document(reservations)])] if reservations else []),
        *((statement, [_document(rows)]) for statement, rows in documents.items()),
    ]


def _document(rows: Sequence[Any]) -> bytes:
    document = large_json.dumps(rows, default=_exact)
    if len(document) > LARGE_BYTES:
        pause()
    return document


def _exact(value: object) -> str:
    # Decimals are written as text, because a JSON number would be read as a float and lose digits of a cost.
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    raise TypeError


writer: GroupCommit[Change] = GroupCommit(MarkedWriter)
"""The writer of this process: every run submits its changes here."""
_large_writes = WorkerLoop(name="large-writes")
atexit.register(_large_writes.close)


def submit_new(change: Change) -> Commit:
    """Submit the change that stores a new response. Await the future for the commit.

    The change of a long or large request is written by another event loop and connection. Otherwise, with an image of
    20 MB, the changes of other runs in the same group would wait for 0.8 s, and the event loop would be blocked for
    40 ms. With a prompt of 200 KB, they would wait for 5 ms while PostgreSQL compresses it.
    """
    if weight() is Weight.USUAL:
        return writer.submit(change)
    return uncancelled(asyncio.wrap_future(_large_writes.submit(_commit(change))))


def started(commit: Coroutine[Any, Any, None]) -> Commit:
    """Start code that commits a change. Return its commit, which is not cancelled with the task that awaits it."""
    return uncancelled(asyncio.ensure_future(commit))


async def _commit(change: Change) -> None:
    with short_turns():
        await writer.submit(change)
