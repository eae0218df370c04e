"""Connections to the database, and the errors of a database that cannot serve at the moment."""

import select
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

import psycopg
from django.db import DEFAULT_DB_ALIAS, InterfaceError, OperationalError, connections
from django.db import Error as DatabaseError
from psycopg.abc import RV, PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from typing_extensions import override

from core.db.wait_limit import Wait, seconds_left

# Connection parameters of Django that libpq does not have.
_OF_CURSORS = ("context", "cursor_factory", "prepare_threshold")
_INTERVAL_SECONDS = 0.1
# Bounded, because a server that does not answer does not react to the request to cancel a statement either.
CANCEL_SECONDS = 1.0
"""The time that a server has to cancel a statement whose caller no longer waits."""
READ_ONLY = psycopg.errors.ReadOnlySqlTransaction


class PlatformConnection(psycopg.Connection[Any]):
    """A connection that stops waiting at the time limit of the request, and is not kept if its server is read-only.

    It is closed in both cases, so that the pool replaces it. If there are several servers, the last one that accepted a
    connection is tried first.
    """

    @classmethod
    @override
    def connect(cls, conninfo: str = "", **parameters: Any) -> Self:
        given = {**conninfo_to_dict(conninfo), **parameters}
        connection = super().connect(conninfo, **{**parameters, **_last_server_first(given)})
        note_server(connection)
        return connection

    @override
    def wait(self, gen: PQGen[RV], interval: float = _INTERVAL_SECONDS, timeout: float | None = None) -> RV:
        limit = seconds_left() if timeout is None else timeout
        with Wait():
            return self._wait(gen, interval, limit, is_limited=timeout is None)

    def _wait(self, gen: PQGen[RV], interval: float, limit: float | None, *, is_limited: bool) -> RV:
        if is_limited and limit == 0:
            # The statement is not sent: nothing would read its result.
            self.close()
            raise psycopg.OperationalError("the request has waited for the database for too long")
        try:
            return super().wait(gen, interval, timeout=limit)
        except READ_ONLY:
            # After a failover, this server is a standby: only a new connection finds the new primary.
            self.close()
            raise
        except psycopg.errors._WaitTimeout as error:  # noqa: SLF001 - psycopg has no public name for it
            if not is_limited:
                raise
            # Without the cancellation, statements that wait for a lock would accumulate in the server.
            with suppress(psycopg.Error):
                self.cancel_safe(timeout=CANCEL_SECONDS)
            self.close()
            raise psycopg.OperationalError(f"the database did not answer within {limit:.3g} seconds") from error


_Server = tuple[str, str]
_last_server: _Server | None = None


def note_server(connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> None:
    """Record the host and port of a new connection, so that the next connection tries this server first."""
    global _last_server  # noqa: PLW0603 - what one thread has learned is true for the others
    _last_server = (connection.info.host, str(connection.info.port))


def _last_server_first(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return hosts and ports of a connection to several servers, with the server of the last connection first."""
    hosts, ports = (str(parameters.get(name) or "").split(",") for name in ("host", "port"))
    servers: list[_Server] = list(zip(hosts, ports, strict=False))
    if _last_server not in servers or not len(hosts) == len(ports) > 1:
        return {}
    servers.sort(key=lambda server: server != _last_server)
    return {"host": ",".join(host for host, _ in servers), "port": ",".join(port for _, port in servers)}


def database_conninfo(alias: str = DEFAULT_DB_ALIAS) -> str:
    """Return libpq's connection string for one of Django's databases."""
    parameters = connections[alias].get_connection_params()
    of_libpq = {name: value for name, value in parameters.items() if name not in _OF_CURSORS}
    return make_conninfo(**of_libpq | _last_server_first(of_libpq))


def is_closed_by_server(connection: psycopg.Connection[Any]) -> bool:
    """Return true if an idle connection can no longer be used; sends nothing and takes a few microseconds.

    A server that sends a message without a query is usually closing the connection, for example because of a restart.
    """
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def is_unavailable(error: BaseException | None) -> bool:
    """Return true for an error of the database after which another attempt may succeed soon.

    The database cannot be reached, is stopping, read-only or full, does not answer in time, or has ended a transaction
    because of other transactions.
    """
    if isinstance(error, OperationalError | InterfaceError | psycopg.OperationalError | psycopg.InterfaceError):
        return True
    return isinstance(error, READ_ONLY) or (isinstance(error, DatabaseError) and isinstance(error.__cause__, READ_ONLY))
