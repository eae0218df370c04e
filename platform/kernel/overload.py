"""Refusal of new work while this process is overloaded: the lag of its event loop, and the requests that wait.

A saturated event loop alone is no overload: a burst of requests is served within seconds. A queue that is long and does
not get shorter is: then every request would wait, and all clients would give up in the end.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import ceil

from django.conf import settings
from prometheus_client import Counter, Histogram, disable_created_metrics

from kernel.asgi import App, Receive, Scope, Send, send_error
from kernel.errors import Overloaded

# The time at which each metric was created tells nothing that the start of the process does not.
disable_created_metrics()  # type: ignore[no-untyped-call]  # in the library
_LAG = Histogram(
    "event_loop_lag_seconds",
    "How late the event loop runs a timer.",
    buckets=(0.001, 0.005, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
)
_REJECTED = Counter("overload_rejections_total", "Requests that were refused with server_is_overloaded.")
# Often enough to notice an overload within its first second.
_BEAT_SECONDS = 0.1
# The lag of a burst goes up and down; that of an overloaded process stays.
_STANDING_SECONDS = 1.0
# Spread, so that the refused clients do not come back at the same moment.
_RETRY_SECONDS = (1.0, 3.0)


class _Work:
    """A request that waits until its run has started."""

    is_waiting = True


class Admission:
    """Count of the requests that wait in this process, and the decision to accept another one."""

    def __init__(self) -> None:
        self._waiting = 0
        self._is_overloaded = False
        self._last_prompt = 0.0
        self._lag = 0.0
        self._beating: asyncio.Task[None] | None = None
        self._current: ContextVar[_Work | None] = ContextVar("_current", default=None)

    def start(self) -> None:
        """Measure the lag of the running event loop from now on."""
        self._beating = asyncio.get_running_loop().create_task(self._beat())

    @contextmanager
    def work(self) -> Iterator[None]:
        """Count a request while it waits. Raises `Overloaded` instead if the process is overloaded."""
        if self._must_refuse():
            _REJECTED.inc()
            seconds = random.uniform(*_RETRY_SECONDS)  # noqa: S311 - no secret
            headers = {"retry-after": str(ceil(seconds)), "retry-after-ms": str(int(1000 * seconds))}
            raise Overloaded("The server is currently overloaded. Please try again later.", headers=headers)
        work = _Work()
        self._waiting += 1
        token = self._current.set(work)
        try:
            yield
        finally:
            self._current.reset(token)
            self._end(work)

    def started(self) -> None:
        """Note that the current request waits for its model only, if at all."""
        if (work := self._current.get()) is not None:
            self._end(work)

    def _end(self, work: _Work) -> None:
        if work.is_waiting:
            work.is_waiting = False
            self._waiting -= 1

    def _must_refuse(self) -> bool:
        limit, lag = settings.OVERLOAD_REQUESTS, settings.OVERLOAD_LAG_MS / 1000
        if not self._is_overloaded:
            is_standing = asyncio.get_running_loop().time() - self._last_prompt >= _STANDING_SECONDS
            self._is_overloaded = self._waiting >= limit and (is_standing or not lag)
        # Half of both limits, so that it does not change with every request.
        elif self._waiting <= limit // 2 or self._lag < lag / 2:
            self._is_overloaded = False
        return self._is_overloaded

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _BEAT_SECONDS
            await asyncio.sleep(_BEAT_SECONDS)
            now = loop.time()
            self._lag = max(0.0, now - due)
            _LAG.observe(self._lag)
            if self._lag < settings.OVERLOAD_LAG_MS / 1000:
                self._last_prompt = now


admission = Admission()


def with_admission(app: App, *, is_work: Callable[[Scope], bool]) -> App:
    """Wrap an app so that requests with new work are refused while the process is overloaded."""

    async def admitted(scope: Scope, receive: Receive, send: Send) -> None:
        if not is_work(scope):
            await app(scope, receive, send)
            return
        try:
            with admission.work():
                await app(scope, receive, send)
        except Overloaded as error:
            await send_error(error, send)

    return admitted
