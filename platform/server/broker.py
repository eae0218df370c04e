"""Celery's connection to Redis, which survives a server that refuses commands or is unreachable for long."""

import time
from typing import Any

from celery.app.amqp import AMQP
from kombu import Connection
from kombu.transport.redis import Channel, Transport
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from typing_extensions import override

_PAUSE_SECONDS = 1.0
# kombu's default of up to half a minute between two attempts would also delay tasks once the server is back.
_LONGEST_PAUSE_SECONDS = 4.0


class PatientChannel(Channel):
    """A channel that raises a connection error when it is used after the connection was lost.

    Celery acknowledges or requeues the tasks that were executing at that moment through the old channel. Without this
    class kombu would raise an unrelated exception, because it has forgotten the server's address. Celery ends the
    worker on such an exception, and all runs of the worker with it.
    """

    # kombu's types lack the method.
    def _connparams(self, *args: Any, **options: Any) -> Any:
        if self.connection is None or self.connection.client is None:
            raise RedisConnectionError("the connection to Redis was lost")
        return super()._connparams(*args, **options)  # type: ignore[misc]


class PatientTransport(Transport):
    """A transport that reconnects when the server is out of memory or a read-only replica.

    Celery treats such a refusal as a programming error and ends the worker, and all runs of the worker with it.
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
    """A connection that retries every few seconds, however long the server has been unreachable."""

    @override
    def ensure_connection(self, *args: Any, **options: Any) -> Any:
        return super().ensure_connection(*args, **{"interval_max": _LONGEST_PAUSE_SECONDS, **options})


class PatientAmqp(AMQP):
    """Makes Celery use `PatientConnection`."""

    Connection = PatientConnection
