"""The client of Redis that the code of an event loop shares, for single commands."""

from typing import Any

import redis.asyncio
from django.conf import settings
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from core.per_loop import PerLoop

TIMEOUT_SECONDS = 2.0
"""Seconds to wait for Redis. Not less: the event loop of a busy process may be late by a second."""
_CONNECTIONS = 8


@PerLoop
def loop_client() -> Any:
    """Return the client of the running event loop."""
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        settings.REDIS_URL,
        max_connections=_CONNECTIONS,
        timeout=TIMEOUT_SECONDS,
        socket_connect_timeout=TIMEOUT_SECONDS,
        socket_timeout=TIMEOUT_SECONDS,
        # No retries here: callers know which commands may be repeated.
        retry=Retry(NoBackoff(), 0),
    )
    return redis.asyncio.Redis(connection_pool=pool)
