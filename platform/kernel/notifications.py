"""Wake-ups between processes: "look again", over Redis' publish and subscribe.

A wake-up says nothing but its channel; what there is to see stands in the database. It may be lost, or come for
nothing. So whoever waits for one looks by itself, too, and more often while `is_connected` is false.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterator
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

logger = logging.getLogger(__name__)
_GATHER_SECONDS = 0.005
_AWAY_SECONDS = 0.5
_SILENCE_SECONDS = 5.0
_TIMEOUT_SECONDS = 2.0
_BLOCKING_SECONDS = 0.5
# Always subscribed to, so that the connection is known to listen.
_PULSE = "wakeups"


@dataclass(eq=False, slots=True)
class Bell:
    """What rings a channel again and again. `is_heard`: the last time, somebody listened."""

    channel: str
    is_heard: bool = False

    def ring(self) -> None:
        """Wake whoever listens to the channel, soon; costs its caller next to nothing and never fails."""
        here().ring(self)


class Wakeups:
    """The wake-ups of one event loop: one connection that listens, and one that rings."""

    def __init__(self, url: str, *, silence_seconds: float = _SILENCE_SECONDS) -> None:
        self.is_connected = False
        self._url = url
        self._silence_seconds = silence_seconds
        self._listeners: dict[str, list[asyncio.Event]] = defaultdict(list)
        self._changed = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None
        self._due: set[Bell] = set()
        self._is_due = asyncio.Event()
        self._ringer: asyncio.Task[None] | None = None

    @contextmanager
    def listening(self, channel: str, wake: asyncio.Event) -> Iterator[None]:
        """Inside of the block the event is set for every ring, and whenever one may have been missed."""
        self._listeners[channel].append(wake)
        self._changed.set()
        if self._listener is None or self._listener.done():
            self._listener = asyncio.get_running_loop().create_task(self._listen())
        try:
            yield
        finally:
            self._listeners[channel].remove(wake)
            if not self._listeners[channel]:
                del self._listeners[channel]
                self._changed.set()

    def ring(self, bell: Bell) -> None:
        """Ring with the next group; rings of one bell that come close together are one."""
        self._due.add(bell)
        self._is_due.set()
        if self._ringer is None or self._ringer.done():
            self._ringer = asyncio.get_running_loop().create_task(self._ring_all())

    # -- listening -----------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while not _is_cancelled():
            try:
                await self._listen_until_broken()
            except (redis.RedisError, OSError) as error:
                if self.is_connected:
                    logger.warning("wake-ups are not heard: %s", error)
            finally:
                self.is_connected = False
                self._wake(*self._listeners)
            await asyncio.sleep(_AWAY_SECONDS)

    async def _listen_until_broken(self) -> None:
        client = _client(self._url, retries=0)
        try:
            async with client.pubsub() as pubsub:
                await pubsub.subscribe(_PULSE)
                subscriber = asyncio.create_task(self._subscribe_as_wanted(pubsub))
                try:
                    await self._hear(pubsub, subscriber)
                finally:
                    subscriber.cancel()
                    await asyncio.gather(subscriber, return_exceptions=True)
        finally:
            await client.aclose()

    async def _subscribe_as_wanted(self, pubsub: Any) -> None:
        known: set[str] = set()
        self._changed.set()
        while not _is_cancelled():
            await self._changed.wait()
            self._changed.clear()
            wanted = set(self._listeners)
            if new := wanted - known:
                await pubsub.subscribe(*new)
            if old := known - wanted:
                await pubsub.unsubscribe(*old)
            known = wanted

    async def _hear(self, pubsub: Any, subscriber: "asyncio.Task[None]") -> None:
        is_asked = False
        while not _is_cancelled() and not subscriber.done():
            message = await pubsub.get_message(timeout=self._silence_seconds)
            if message is None:
                if is_asked:
                    raise redis.ConnectionError("Redis has fallen silent.")
                await pubsub.ping()
            elif message["type"] in {"message", "subscribe"}:
                # From its confirmation on a subscription hears everything; what came before it is looked for.
                self.is_connected = True
                self._wake(message["channel"].decode())
            is_asked = message is None

    def _wake(self, *channels: str) -> None:
        for channel in channels:
            for wake in self._listeners.get(channel, ()):
                wake.set()

    # -- ringing -------------------------------------------------------------------------------------------------------

    async def _ring_all(self) -> None:
        """What cannot be rung is dropped: whoever listens looks by itself."""
        client, is_away = _client(self._url, retries=1), False
        try:
            while not _is_cancelled():
                await self._is_due.wait()
                await asyncio.sleep(_GATHER_SECONDS)
                self._is_due.clear()
                bells, self._due = list(self._due), set()
                error = await _ring(client, bells)
                if error is not None:
                    if not is_away:
                        logger.warning("wake-ups cannot be sent: %s", error)
                    await asyncio.sleep(_AWAY_SECONDS)
                is_away = error is not None
        finally:
            await client.aclose()


def _is_cancelled() -> bool:
    """`asyncio.wait_for`, which the client uses, swallows a cancellation that comes together with its result."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _ring(client: Any, bells: list[Bell]) -> Exception | None:
    """Ring these in one round trip, and note who was heard; returns what went wrong."""
    pipeline = client.pipeline(transaction=False)
    for bell in bells:
        pipeline.publish(bell.channel, b"")
    try:
        heard = await pipeline.execute()
    except (redis.RedisError, OSError) as error:
        for bell in bells:
            bell.is_heard = False
        return error
    for bell, listeners in zip(bells, heard, strict=True):
        bell.is_heard = listeners > 0
    return None


def _client(url: str, *, retries: int) -> Any:
    """A connection that the server has closed meanwhile is opened anew by the one retry."""
    return redis.asyncio.Redis.from_url(
        url,
        socket_connect_timeout=_TIMEOUT_SECONDS,
        socket_timeout=_TIMEOUT_SECONDS,
        retry=Retry(NoBackoff(), retries),
    )


_by_loop: dict[asyncio.AbstractEventLoop, Wakeups] = {}


def here() -> Wakeups:
    """Those of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _by_loop:
        for closed in [known for known in _by_loop if known.is_closed()]:
            del _by_loop[closed]
        _by_loop[loop] = Wakeups(settings.REDIS_URL)
    return _by_loop[loop]


def ring_from_thread(*channels: str) -> None:
    """Wake whoever listens to the channels, from code without an event loop; waits a second for Redis at most."""
    pipeline = _blocking(settings.REDIS_URL).pipeline(transaction=False)
    for channel in channels:
        pipeline.publish(channel, b"")
    try:
        pipeline.execute()
    except redis.RedisError as error:
        logger.warning("a wake-up cannot be sent: %s", error)


@cache
def _blocking(url: str) -> "redis.Redis":
    return redis.Redis.from_url(
        url,
        socket_connect_timeout=_BLOCKING_SECONDS,
        socket_timeout=_BLOCKING_SECONDS,
        retry=redis.retry.Retry(NoBackoff(), 1),
    )
