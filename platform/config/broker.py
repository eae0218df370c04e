"""The connection of Celery to Redis, which outlasts a server that refuses commands."""

import time
from typing import Any

from kombu.transport.redis import Transport
from redis.exceptions import ResponseError
from typing_extensions import override

_PAUSE_SECONDS = 1.0


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
