"""Notifications between processes: "the rows of this channel have changed", over Redis' PUBLISH and SUBSCRIBE.

The change itself is in the database. A message may also contain it, so that listeners need not read the database.
Notifications and messages may be lost, and they may be sent without a change. Therefore listeners also poll the
database, more often while `is_connected` is false.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import redis
import redis.asyncio
import redis.retry
from django.conf import settings
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from core.db import wait_limit
from core.per_loop import PerLoop
from core.telemetry import metrics
from core.work.redis_client import with_cancellation

logger = logging.getLogger(__name__)
# Notifications of this period share one round trip: runs flush their logs at the same points in time.
_GATHER_SECONDS = 0.002
_RECONNECT_SECONDS = 0.5
# A connection can break without a packet that says so; after this long without a message it is probed with PING.
_SILENCE_SECONDS = 5.0
_TIMEOUT_SECONDS = 2.0
# Callers without an event loop block a thread, so they wait less.
_BLOCKING_TIMEOUT_SECONDS = 0.5
# Every connection subscribes to this channel first: its confirmation proves that the connection receives messages.
_PROBE_CHANNEL = "wakeups"
_ERRORS = metrics.REDIS_ERRORS.labels("notifications")


@dataclass(eq=False, slots=True)
class Notifier:
    """Sender for one channel.

    `has_listeners`: the latest notification that could be sent reached at least one subscriber. `on_listener` is called
    when that becomes true.
    """

    channel: str
    on_listener: Callable[[], None] = lambda: None
    has_listeners: bool = False

    def notify(self, message: bytes = b"") -> None:
        """Notify the channel's listeners within milliseconds; returns immediately and never fails."""
        loop_notifications().notify(self, message)


@dataclass(eq=False, frozen=True, slots=True)
class _Listener:
    wake: asyncio.Event
    receive: Callable[[bytes], None] | None


class Notifications:
    """Notifications of one event loop: one connection that listens and one that sends."""

    def __init__(self, url: str, *, silence_seconds: float = _SILENCE_SECONDS) -> None:
        self.is_connected = False
        self._has_heard = False
        self._url = url
        self._silence_seconds = silence_seconds
        self._listeners: dict[str, list[_Listener]] = defaultdict(list)
        self._channels_changed = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None
        # In the order of sending. Equal notifications are sent once.
        self._pending: dict[tuple[Notifier, bytes], None] = {}
        self._has_pending = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None

    @contextmanager
    def listening(
        self, channel: str, wake: asyncio.Event, receive: Callable[[bytes], None] | None = None
    ) -> Iterator[None]:
        """Set `wake` for every notification inside the block, and whenever one may have been missed.

        Messages are passed to `receive` instead, if it is given.
        """
        listener = _Listener(wake, receive)
        self._listeners[channel].append(listener)
        self._channels_changed.set()
        if self._listener is None or self._listener.done():
            self._listener = asyncio.get_running_loop().create_task(self._listen(), context=wait_limit.unrelated())
        try:
            yield
        finally:
            self._listeners[channel].remove(listener)
            if not self._listeners[channel]:
                del self._listeners[channel]
                self._channels_changed.set()

    def notify(self, notifier: Notifier, message: bytes = b"") -> None:
        """Send a notification with the next group. Equal notifications in a group are sent once."""
        self._pending[notifier, message] = None
        self._has_pending.set()
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._send(), context=wait_limit.unrelated())

    # -- listening -----------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            try:
                await self._listen_until_broken()
            except* (redis.RedisError, OSError) as errors:
                _ERRORS.inc()
                # Logged once per outage, not once per attempt to reconnect.
                if self.is_connected:
                    logger.warning("notifications cannot be received: %s", errors.exceptions[0])
            finally:
                self.is_connected = False
                # Notifications may be lost from here on, so every listener reads the database once.
                for channel in self._listeners:
                    self._deliver(channel, b"")
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _listen_until_broken(self) -> None:
        # No retries: a silently reopened connection would have lost its subscriptions without waking the listeners.
        client = _client(self._url, retries=0)
        try:
            async with client.pubsub() as pubsub:
                await pubsub.subscribe(_PROBE_CHANNEL)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._keep_subscribed(pubsub))
                    tasks.create_task(self._probe(pubsub))
                    await self._receive(pubsub)
        finally:
            await client.aclose()

    async def _keep_subscribed(self, pubsub: Any) -> None:
        subscribed: set[str] = set()
        self._channels_changed.set()
        while True:
            await self._channels_changed.wait()
            self._channels_changed.clear()
            wanted = set(self._listeners)
            if added := wanted - subscribed:
                await pubsub.subscribe(*added)
            if removed := subscribed - wanted:
                await pubsub.unsubscribe(*removed)
            subscribed = wanted

    async def _receive(self, pubsub: Any) -> None:
        while True:
            # Without a timeout, which would cost as much as the rest: `_probe` notices a broken connection.
            message = await pubsub.get_message(timeout=None)
            self._has_heard = True
            if message and message["type"] in {"message", "subscribe"}:
                # A subscription misses no message after its confirmation. The confirmation also wakes the listeners,
                # which read the database once for earlier changes.
                self.is_connected = True
                data = message["data"] if message["type"] == "message" else b""
                self._deliver(message["channel"].decode(), data)

    async def _probe(self, pubsub: Any) -> None:
        """Raise `ConnectionError` if a connection without messages does not answer a PING."""
        while True:
            self._has_heard = False
            await asyncio.sleep(self._silence_seconds)
            if not self._has_heard:
                await pubsub.ping()
                await asyncio.sleep(self._silence_seconds)
                if not self._has_heard:
                    raise redis.ConnectionError("Redis did not respond to PING.")

    def _deliver(self, channel: str, message: bytes) -> None:
        for listener in self._listeners.get(channel, ()):
            if message and listener.receive is not None:
                try:
                    listener.receive(message)
                except Exception:
                    # A message that this version does not understand must not end the connection of all listeners.
                    logger.exception("cannot parse notification", extra={"channel": channel})
                    listener.wake.set()
            else:
                listener.wake.set()

    # -- sending -------------------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        client, is_away = _client(self._url, retries=1), False
        try:
            while True:
                await self._has_pending.wait()
                await asyncio.sleep(_GATHER_SECONDS)
                self._has_pending.clear()
                pending, self._pending = self._pending, {}
                # Notifications that cannot be sent are dropped: listeners poll the database anyway.
                pipeline = client.pipeline(transaction=False)
                for notifier, message in pending:
                    pipeline.publish(notifier.channel, message)
                try:
                    receivers = await pipeline.execute()
                except (redis.RedisError, OSError) as error:
                    _ERRORS.inc()
                    if not is_away:
                        logger.warning("notifications cannot be sent: %s", error)
                    is_away = True
                    await asyncio.sleep(_RECONNECT_SECONDS)
                    continue
                is_away = False
                for (notifier, _), count in zip(pending, receivers, strict=True):
                    had_listeners, notifier.has_listeners = notifier.has_listeners, count > 0
                    if notifier.has_listeners and not had_listeners:
                        notifier.on_listener()
        finally:
            await client.aclose()


def _client(url: str, *, retries: int) -> Any:
    # One retry is enough to reopen a connection that the server has closed while it was idle.
    pool = redis.asyncio.ConnectionPool.from_url(
        url,
        socket_connect_timeout=_TIMEOUT_SECONDS,
        socket_timeout=_TIMEOUT_SECONDS,
        retry=Retry(NoBackoff(), retries),
    )
    return redis.asyncio.Redis.from_pool(with_cancellation(pool))


async def wait_within(wake: asyncio.Event, seconds: float | None) -> bool:
    """Wait for an event and return whether it was set within the time; None is no limit."""
    try:
        async with asyncio.timeout(seconds):
            await wake.wait()
    except TimeoutError:
        return False
    return True


@PerLoop
def loop_notifications() -> Notifications:
    """Return the notifications of the running event loop."""
    return Notifications(settings.REDIS_URL)


def notify_from_thread(*channels: str) -> None:
    """Notify the listeners of channels from code without an event loop; blocks for at most a second."""
    pipeline = _shared_client(settings.REDIS_URL).pipeline(transaction=False)
    for channel in channels:
        pipeline.publish(channel, b"")
    try:
        pipeline.execute()
    except redis.RedisError as error:
        _ERRORS.inc()
        logger.warning("a notification cannot be sent: %s", error)


def blocking_client(url: str, *, seconds: float = _BLOCKING_TIMEOUT_SECONDS, retries: int = 1) -> "redis.Redis":
    """Return a client for code without an event loop. By default, it gives up within a second."""
    retry = redis.retry.Retry(NoBackoff(), retries)
    return redis.Redis.from_url(url, socket_connect_timeout=seconds, socket_timeout=seconds, retry=retry)


_shared_client = cache(blocking_client)
