"""The class that Django loads for this `ENGINE`."""

from typing import Any

from django.db.backends.postgresql import base
from django.db.backends.postgresql.psycopg_any import IsolationLevel
from typing_extensions import override

from core.db.database import is_closed_by_server
from core.db.wait_limit import Wait, seconds_left


class DatabaseWrapper(base.DatabaseWrapper):
    """Wrapper of a connection from the pool. Replaces a connection that was closed while it was idle.

    The pool's own check (`CONN_HEALTH_CHECKS`) waits after each broken connection that it finds: 1, 2 and 4 s. A
    restart of the database breaks all connections: a request then waited ten seconds and failed.
    """

    @override
    def ensure_connection(self) -> None:
        # Called before each transaction and statement. A thread may keep its connection for hours between two of them.
        # Connections without a pool, such as the one of `migrate`, are never replaced: they may have locks or settings
        # that would be lost.
        is_kept = self.connection is not None and self.pool is not None
        if is_kept and self.autocommit and not self.in_atomic_block and is_closed_by_server(self.connection):
            self.close()
        super().ensure_connection()

    @override
    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        if self.pool is None:
            return super().get_new_connection(conn_params)
        # Replaces Django's method, which waits for the pool's own timeout, however little time the request has left.
        self.isolation_level = IsolationLevel.READ_COMMITTED
        self.pool.open()
        with Wait():
            return self._unbroken_connection()

    def _unbroken_connection(self) -> Any:
        connection = self._pooled_connection()
        # At most `max_size` can be idle. A server that closes each new connection would keep the caller here forever.
        for _ in range(self.pool.max_size):
            if not is_closed_by_server(connection):
                break
            connection.close()
            # The pool opens another connection in its place.
            self.pool.putconn(connection)
            connection = self._pooled_connection()
        return connection

    def _pooled_connection(self) -> Any:
        left = seconds_left()
        return self.pool.getconn(self.pool.timeout if left is None else min(self.pool.timeout, left))
