"""Refusal of new work that would wait too long for its start.

How long a new request will wait follows from Little's law: the number of requests that wait, divided by the rate at
which they have started in the last seconds. Wherever they wait (event loop, threads, database), the estimate contains
it. A request that waits for its model has started, so slow models do not count.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar, Token

from django.conf import settings
from prometheus_client import Counter, Histogram, disable_created_metrics

from kernel.asgi import App, Receive, Scope, Send
from kernel.errors import Overloaded, retry_headers
from kernel.request_bodies import REJECTED

# The time at which each metric was created tells nothing that the start of the process does not.
disable_created_metrics()  # type: ignore[no-untyped-call]  # in the library
_LAG = Histogram(
    "event_loop_lag_seconds",
    "How late the event loop runs a timer.",
    buckets=(0.001, 0.005, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
)
_REFUSALS = Counter("overload_rejections_total", "Requests that were refused with server_is_overloaded.")
_BEAT_SECONDS = 0.1
# Over this time, starts are counted, and a queue must have been too long: it contains the commits of several batches,
# and a burst of a thousand connections has been accepted by then.
_WINDOW_SECONDS = 2.0
# Without a refusal. If an overload ended with its queue, each of its waves would count as a burst: at twice the
# capacity of the mixed load, up to 455 requests waited where 94 were the limit; with this, 70 where 64 were.
_CALM_SECONDS = 10.0
# Spread, so that the refused clients do not come back at the same moment.
_RETRY_SECONDS = (1.0, 3.0)


class _Work:
    """A request that waits until its run has started, or until the end of the block."""

    # Not a generator of `contextlib`, which takes 0.3 KB more per open stream.
    __slots__ = ("_admission", "_token", "is_waiting")

    def __init__(self, admission: "Admission") -> None:
        self._admission = admission
        self.is_waiting = True

    def __enter__(self) -> None:
        self._token = self._admission.begin(self)

    def __exit__(self, *_: object) -> None:
        self._admission.end(self, self._token)


class Admission:
    """Count of the requests that wait in this process, and the decision to accept another one."""

    def __init__(self) -> None:
        self._waiting = 0
        self._most_waiting = 0
        self._ended = 0
        # The time of each beat in the window, with the number of requests whose wait had ended until then.
        self._beats: deque[tuple[float, int]] = deque()
        self._last_short, self._last_refusal = 0.0, -_CALM_SECONDS
        self._is_overloaded = False
        self._beating: asyncio.Task[None] | None = None
        self._current: ContextVar[_Work | None] = ContextVar("_current", default=None)

    def start(self) -> None:
        """Measure the running event loop from now on."""
        self._beating = asyncio.get_running_loop().create_task(self._beat())

    @property
    def is_full(self) -> bool:
        """Return true if a new request would wait too long."""
        return self._is_overloaded and self._waiting >= self._most_waiting

    def check(self) -> None:
        """Raise `Overloaded` if a new request would wait too long."""
        if self.is_full:
            raise self.refusal()

    def refusal(self) -> Overloaded:
        """Return the error of a request that is refused because of `is_full`, and count it."""
        self._last_refusal = asyncio.get_running_loop().time()
        _REFUSALS.inc()
        headers = retry_headers(random.uniform(*_RETRY_SECONDS))  # noqa: S311 - no secret
        return Overloaded("The server is currently overloaded. Please try again later.", headers=headers)

    def waiting(self) -> _Work:
        """Count a request until its run has started, or else until the end: `with admission.waiting()`."""
        return _Work(self)

    def begin(self, work: _Work) -> "Token[_Work | None]":
        """Count a request; for `waiting`."""
        self._waiting += 1
        return self._current.set(work)

    def end(self, work: _Work, token: "Token[_Work | None]") -> None:
        """Count a request no longer; for `waiting`."""
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
            self._ended += 1

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _BEAT_SECONDS
            await asyncio.sleep(_BEAT_SECONDS)
            now = loop.time()
            _LAG.observe(max(0.0, now - due))
            self._update(now)

    def _update(self, now: float) -> None:
        self._beats.append((now, self._ended))
        while now - self._beats[0][0] > _WINDOW_SECONDS and len(self._beats) > 2:
            self._beats.popleft()
        began, ended = self._beats[0]
        rate = (self._ended - ended) / max(now - began, _BEAT_SECONDS)
        self._most_waiting = max(settings.OVERLOAD_MIN_REQUESTS, int(rate * settings.OVERLOAD_DELAY_MS / 1000))
        if self._waiting < self._most_waiting:
            self._last_short = now
        is_standing = now - self._last_short > _WINDOW_SECONDS
        self._is_overloaded = is_standing or now - self._last_refusal < _CALM_SECONDS


admission = Admission()


def with_refusal(guard: App, *, is_work: Callable[[Scope], bool]) -> App:
    """Wrap a `BodyGuard` so that it refuses requests with new work while they would wait too long.

    Before their body and key are read; the guard sends the error such that clients receive it while they are sending.
    """

    def refusing(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if admission.is_full and is_work(scope) and REJECTED not in scope:
            scope[REJECTED] = admission.refusal()
        return guard(scope, receive, send)

    return refusing


def counted(app: App) -> App:
    """Wrap an app so that its requests count as waiting until their run has started."""

    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        with admission.waiting():
            await app(scope, receive, send)

    return waiting
