"""Transactions of prepared statements, each in one round trip, over a connection that belongs to an event loop.

The statements are prepared on their first use: planning them took three quarters of a small transaction (PostgreSQL's
CPU per response at concurrency 1: 4.0 ms planned each time, 1.5 ms prepared).
"""

import asyncio
import logging
import select
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import psycopg
from django.db import OperationalError
from psycopg import pq

from core.db.database import CANCEL_SECONDS, READ_ONLY, database_conninfo, note_server
from core.db.wait_limit import seconds_left, unrelated
from core.lazy_timer import LazyTimer

logger = logging.getLogger(__name__)
Row = tuple[bytes | None, ...]
# Errors of a server that has not prepared the statement, or has already prepared it for another client.
_NOT_PREPARED = (psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement)


# Codes of errors after which the same transaction may succeed in a moment: it was rolled back to resolve a conflict
# (class 40), the server lacks memory or disk space (53) or is read-only (25006), or a statement was cancelled or
# exceeded a time limit.
_PASSING = ("40", "53", "25006", "55P03", "57014")


class ConnectionLost(OperationalError):
    """The connection cannot be opened, or broke during a transaction, which may have been committed.

    Also raised if the server cannot commit the transaction at the moment.
    """


class TransactionCancelled(ConnectionLost):
    """The server has cancelled the transaction, by a time limit or on request; it was not committed."""


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """An SQL statement with the parameters `$1`, `$2`, …; create one object per statement and reuse it."""

    sql: str
    name: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Derived from the text: behind a pooler, another process may have prepared its statements on the same
        # connection, so equal names must mean equal statements.
        object.__setattr__(self, "name", b"p_" + sha256(self.sql.encode()).hexdigest()[:24].encode())


Calls = Sequence[tuple[Statement, Sequence[bytes]]]
Rows = list[list[Row]]
"""The rows of each statement of a transaction."""
Done = Callable[[Rows | Exception], None]


class _Transaction:
    """A transaction whose results have not all arrived. `commands` has the names of the statements to prepare."""

    __slots__ = ("calls", "commands", "done", "results")

    def __init__(self, calls: Calls, done: Done) -> None:
        self.calls, self.done = calls, done
        self.restart()

    def restart(self) -> None:
        """Forget the results of the first attempt."""
        self.commands: list[bytes | None] = []
        self.results: list[pq.abc.PGresult] = []


class StatementPipeline:
    """A connection that is opened by the first transaction. If it is lost, the next transaction opens a new one.

    Only one transaction may run at a time.
    """

    def __init__(self, conninfo: Callable[[], str] = database_conninfo) -> None:
        self._conninfo = conninfo
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._libpq: pq.abc.PGconn | None = None
        self._prepared: set[bytes] = set()
        # False once a server did not know a prepared statement, as behind poolers that do not track statements.
        self._prepares = True
        self._socket = -1
        self._readiness = select.poll()
        self._transaction: _Transaction | None = None
        self._limit = LazyTimer(self._end_late)
        self._cancelling: asyncio.Task[None] | None = None

    async def run(self, calls: Calls) -> Rows:
        """Execute the statements with their parameters in one transaction and return the rows of each.

        Raises `psycopg.Error`, after which nothing was written, or `ConnectionLost`.
        """
        await self._connected()
        ended: asyncio.Future[Rows] = asyncio.get_running_loop().create_future()

        def end(outcome: Rows | Exception) -> None:
            if ended.done():
                return
            if isinstance(outcome, Exception):
                ended.set_exception(outcome)
            else:
                ended.set_result(outcome)

        if not self.start(calls, end, seconds=seconds_left()):
            raise ConnectionLost("the connection to the database was lost")
        try:
            return await ended
        except asyncio.CancelledError:
            # Otherwise the next transaction would read the answers of this one.
            self.close()
            raise

    def start(self, calls: Calls, done: Done, *, seconds: float | None) -> bool:
        """Begin a transaction like `run`, without a task: `done` is called with its rows or its error.

        The answer of the server is awaited for at most `seconds`. Return False, without an effect, if there is no
        connection. Raises `ConnectionLost`.
        """
        libpq = self._libpq
        if libpq is None or libpq.status != pq.ConnStatus.OK:
            return False
        self._transaction = _Transaction(calls, done)
        try:
            self._send(libpq, self._transaction)
        except BaseException as error:
            self.close()
            if isinstance(error, psycopg.OperationalError | OSError):
                raise ConnectionLost(str(error)) from error
            raise
        if seconds is not None:
            self._limit.start(seconds)
        return True

    def _send(self, libpq: pq.abc.PGconn, transaction: "_Transaction") -> None:
        # All statements before a "sync" are one implicit transaction, which the sync commits. That saves the messages
        # of BEGIN and COMMIT (8 % of PostgreSQL's CPU for a small transaction).
        commands = transaction.commands
        for statement, values in transaction.calls:
            if not self._prepares:
                libpq.send_query_params(statement.sql.encode(), values)
            else:
                if statement.name not in self._prepared and statement.name not in commands:
                    libpq.send_prepare(statement.name, statement.sql.encode())
                    commands.append(statement.name)
                libpq.send_query_prepared(statement.name, values)
            commands.append(None)
        libpq.pipeline_sync()
        if libpq.flush():
            asyncio.get_running_loop().add_writer(self._socket, self._flush)

    def _complete(self, transaction: "_Transaction") -> None:
        """End a transaction whose results have all arrived."""
        try:
            rows = self._rows_of(transaction)
        except _NOT_PREPARED as error:
            libpq = self._libpq
            if not self._prepares or libpq is None:
                self._end(transaction, error)
                return
            logger.warning(
                "the database has lost a prepared statement; this process prepares no more of them, which costs CPU. "
                "With PgBouncer in transaction mode, use version 1.21 or later with max_prepared_statements."
            )
            self._prepares = False
            transaction.restart()
            self._transaction = transaction
            try:
                self._send(libpq, transaction)
            except (psycopg.OperationalError, OSError) as failed:
                self._fail(failed)
        except Exception as error:
            self._end(transaction, error)
        else:
            self._end(transaction, rows)

    def _end(self, transaction: "_Transaction", outcome: Rows | Exception) -> None:
        self._transaction = None
        self._limit.stop()
        transaction.done(outcome)

    def _rows_of(self, transaction: "_Transaction") -> Rows:
        commands, results = transaction.commands, transaction.results
        if self._prepares:
            for name, result in zip(commands, results, strict=False):
                if name is not None and result.status == pq.ExecStatus.COMMAND_OK:
                    self._prepared.add(name)
        # An error of the commit itself, such as a missing foreign key, follows the results of the statements.
        for result in results:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                failed = psycopg.errors.error_from_result(result)
                if not (failed.sqlstate or "").startswith(_PASSING):
                    raise failed
                if isinstance(failed, READ_ONLY):
                    # After a failover, this server is a standby: only a new connection finds the new primary.
                    self.close()
                is_cancelled = isinstance(failed, psycopg.errors.QueryCanceled)
                raise (TransactionCancelled if is_cancelled else ConnectionLost)(str(failed)) from failed
        return [_rows(result) for name, result in zip(commands, results, strict=True) if name is None]

    async def _connected(self) -> None:
        if self._libpq is not None and self._libpq.status == pq.ConnStatus.OK:
            return
        self.close()
        try:
            # The connection's own time limit applies to each address of the server.
            async with asyncio.timeout(seconds_left()):
                self._connection = await psycopg.AsyncConnection.connect(self._conninfo())
        except (psycopg.OperationalError, TimeoutError) as error:
            raise ConnectionLost(str(error)) from error
        note_server(self._connection)
        libpq = self._connection.pgconn
        # From here on, the connection is driven by its libpq functions: psycopg names prepared statements by a counter,
        # so that two processes would use the same name for different statements.
        libpq.nonblocking = 1
        libpq.enter_pipeline_mode()
        self._libpq, self._socket = libpq, libpq.socket
        self._readiness = select.poll()
        self._readiness.register(self._socket, select.POLLIN)
        asyncio.get_running_loop().add_reader(self._socket, self._on_readable)

    def _end_late(self) -> None:
        if self._transaction is not None:
            transaction, self._transaction = self._transaction, None
            self._cancelling = asyncio.get_running_loop().create_task(self._cancel(transaction), context=unrelated())

    async def _cancel(self, transaction: "_Transaction") -> None:
        # Otherwise statements that wait for a lock would accumulate in the server, and take effect too late.
        if self._connection is not None:
            with suppress(psycopg.Error):
                await self._connection.cancel_safe(timeout=CANCEL_SECONDS)
        self.close()
        self._end(transaction, ConnectionLost("the database did not answer in time"))

    def close(self) -> None:
        """Close the connection."""
        libpq, self._libpq = self._libpq, None
        self._prepared = set()
        self._transaction = None
        self._limit.stop()
        if libpq is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket)
            loop.remove_writer(self._socket)
            libpq.finish()

    def __del__(self) -> None:
        # The event loop may be closed: psycopg warns of connections that were not closed.
        if self._libpq is not None:
            self._libpq.finish()

    def _flush(self) -> None:
        libpq, loop = self._libpq, asyncio.get_running_loop()
        if libpq is None:
            return
        try:
            is_partial = libpq.flush()
        except psycopg.OperationalError as error:
            self._fail(error)
            return
        if is_partial:
            loop.add_writer(self._socket, self._flush)
        else:
            loop.remove_writer(self._socket)

    def _on_readable(self) -> None:
        # Also called when an idle connection is closed by the server.
        libpq = self._libpq
        # Reads until nothing is left, although most answers need one turn (the check takes 0.5 us): uvloop reports a
        # connection that was reset only once, and the first read may find a last message of the server instead of the
        # reset. The transaction would then wait forever.
        while libpq is not None and self._libpq is libpq:
            try:
                libpq.consume_input()
                self._take_results(libpq)
            except psycopg.OperationalError as error:
                self._fail(error)
                return
            if not self._readiness.poll(0):
                return

    def _take_results(self, libpq: pq.abc.PGconn) -> None:
        while (transaction := self._transaction) is not None and not libpq.is_busy():
            # Each statement's results end with None.
            result = libpq.get_result()
            if result is None:
                # A lost connection returns None without end.
                if libpq.status != pq.ConnStatus.OK:
                    raise psycopg.OperationalError("the connection to the database was lost")
            elif result.status == pq.ExecStatus.PIPELINE_SYNC:
                self._complete(transaction)
            else:
                transaction.results.append(result)

    def _fail(self, error: Exception) -> None:
        transaction = self._transaction
        self.close()
        if transaction is not None:
            lost = ConnectionLost(str(error))
            lost.__cause__ = error
            self._end(transaction, lost)


def _rows(result: pq.abc.PGresult) -> list[Row]:
    if not result.ntuples:
        return []
    columns = range(result.nfields)
    return [tuple(result.get_value(number, column) for column in columns) for number in range(result.ntuples)]
