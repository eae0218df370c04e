"""The connection of Celery to Redis, which outlasts a server that refuses commands or is away for long."""

import time
from typing import Any

from celery.app.amqp import AMQP
from kombu import Connection
from kombu.transport.redis import Transport
from redis.exceptions import ResponseError
from typing_extensions import override

_PAUSE_SECONDS = 1.0
# By default kombu waits up to half a minute between two attempts, and so would tasks when the server is back.
_LONGEST_PAUSE_SECONDS = 4.0


class PatientTransport(Transport):
    """A transport that connects again when the server is out of memory or a read-only replica.

    Celery takes such a refusal for an error of the program and ends the worker, which would end its runs.
    """

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
