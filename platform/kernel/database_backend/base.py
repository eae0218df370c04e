"""The class that Django loads for this `ENGINE`."""

from typing import Any

from django.db.backends.postgresql import base
from typing_extensions import override

from kernel.database import is_closed_by_server


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection from the pool that was not closed while nobody used it.

    The pool has a check of its own (`CONN_HEALTH_CHECKS`), and waits after each broken connection that it finds: 1, 2
    and 4 s. After a restart of the database, which breaks all of them, a request waited for ten seconds and failed.
    """

    @override
    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        connection = super().get_new_connection(conn_params)
        if self.pool is None:
            return connection
        # More are not idle. A server that closes each new connection would keep the caller here forever.
        for _ in range(self.pool.max_size):
            if not is_closed_by_server(connection):
                break
            connection.close()
            # The pool opens another one in its place.
            self.pool.putconn(connection)
            connection = super().get_new_connection(conn_params)
        return connection
