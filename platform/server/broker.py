"""The connection of Celery to Redis, which outlasts a server that refuses commands or is away for long."""

import time
from typing import Any

from celery.app.amqp import AMQP
from kombu import Connection
from kombu.transport.redis import Channel, Transport
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from typing_extensions import override

_PAUSE_SECONDS = 1.0
# By default kombu waits up to half a minute between two attempts, and so would tasks when the server is back.
_LONGEST_PAUSE_SECONDS = 4.0


class PatientChannel(Channel):
    """A channel whose use after the connection was lost is an error of the connection.

    Tasks that were executing then are confirmed or put back too late. kombu would fail on the address of the server,
    which it has forgotten, and Celery ends the worker with an error that it does not know, which would end its runs.
    """

    # kombu's types lack the method.
    def _connparams(self, *args: Any, **options: Any) -> Any:
        if self.connection is None or self.connection.client is None:
            raise RedisConnectionError("the connection to Redis was lost")
        return super()._connparams(*args, **options)  # type: ignore[misc]


class PatientTransport(Transport):
    """A transport that connects again when the server is out of memory or a read-only replica.

    Celery takes such a refusal for an error of the program and ends the worker, which would end its runs.
    """

    Channel = PatientChannel
    connection_errors = (*Transport.connection_errors, ResponseError)

    @override
    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        try:
            super().register_with_event_loop(connection, loop)
        except ResponseError:
            # Celery tries again at once.
            time.sleep(_PAUSE_SECONDS)
            raise


class PatientConnection(Connection):
    """A connection that is tried again every few seconds, however long the server has been away."""

    @override
    def ensure_connection(self, *args: Any, **options: Any) -> Any:
        return super().ensure_connection(*args, **{"interval_max": _LONGEST_PAUSE_SECONDS, **options})


class PatientAmqp(AMQP):
    """Lets Celery use these connections."""

    Connection = PatientConnection
