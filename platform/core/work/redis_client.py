"""The client of Redis that the code of an event loop shares, and pools whose commands can be cancelled."""

import asyncio
from collections.abc import Iterable
from functools import cache
from typing import Any

import redis.asyncio
from django.conf import settings
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from typing_extensions import override

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
    return redis.asyncio.Redis(connection_pool=with_cancellation(pool))


def with_cancellation(pool: redis.asyncio.ConnectionPool) -> redis.asyncio.ConnectionPool:
    """Return the pool, whose new connections do not swallow the cancellation of a task."""
    connection: Any = pool.connection_class
    pool.connection_class = _cancellable(connection)
    return pool


class _Cancellable(AbstractConnection):
    @override
    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        # The library sends with `asyncio.wait_for`. Before Python 3.12, that swallows a cancellation which arrives
        # together with its result, and a task that was to end would go on.
        task = asyncio.current_task()
        before = task.cancelling() if task is not None else 0
        await super().send_packed_command(command, check_health)
        if task is not None and task.cancelling() > before:
            # Nobody will read the reply.
            await self.disconnect(nowait=True)
            raise asyncio.CancelledError


@cache
def _cancellable(connection: Any) -> Any:
    # There are different classes for TCP, TLS and sockets of the file system.
    return type(f"Cancellable{connection.__name__}", (_Cancellable, connection), {})
