"""Pauses between the attempts of an upstream request: their length, their deadline, and sharing within a model.

Requests are only repeated before the first byte of their answer: later the client may already have received output.
"""

import asyncio
import random
import time
from collections import OrderedDict
from email.utils import parsedate_to_datetime

from django.conf import settings

from core.clock import now
from core.errors import Failure
from providers.first_answer import FirstAnswer
from tenants.directory import Route

# In seconds. From the third pause on, each is twice as long as the previous pause, up to the longest.
_FIRST, _SECOND, _LONGEST = 0.3, 1.0, 30.0
_FIRST_FOR_ROOM, _LONGEST_FOR_ROOM = 0.25, 1.0
# An upstream may ask a single large request to wait for an hour; other requests must not wait that long.
_LONGEST_SHARED = 60.0
_MAX_SHARED = 10_000
# Ends of the pauses that upstreams have asked for, by upstream and model, in seconds of `monotonic`.
_quiet_until: OrderedDict[tuple[str, str], float] = OrderedDict()


class Retries:
    """The pauses of one upstream call. `patience`: seconds after which no attempt begins; None: the limit for clients.

    A stream that waits for the `first_answer` also waits during the pauses.
    """

    def __init__(self, route: Route, *, patience: float | None = None, first_answer: FirstAnswer | None = None) -> None:
        self._first_answer = first_answer
        self._model = (route.upstream.id, route.upstream_model)
        self._deadline = time.monotonic() + (settings.UPSTREAM_RETRY_SECONDS if patience is None else patience)
        self._pauses = 0

    async def wait_for_others(self) -> None:
        """Wait for the end of a pause that the upstream has imposed on the model, unless the pause is too long."""
        while (until := _quiet_until.get(self._model)) is not None:
            seconds = until - time.monotonic()
            if seconds <= 0:
                _quiet_until.pop(self._model, None)
            if not 0 < seconds <= self._deadline - time.monotonic():
                return
            # Randomized, so that the waiting requests are not repeated at the same moment.
            await self._sleep(seconds * random.uniform(1.0, 1.2))  # noqa: S311

    async def pause(self, failure: Failure) -> bool:
        """Wait before the next attempt, at least as long as the upstream asks for. Return False if this is too long."""
        seconds = max(self.observe(failure), self._next_pause())
        if seconds > self._deadline - time.monotonic():
            return False
        self._pauses += 1
        await self._sleep(seconds)
        return True

    async def wait(self, seconds: float) -> bool:
        """Wait for room at the target. Return False, at once, if that takes too long."""
        if seconds > self._deadline - time.monotonic():
            return False
        # Randomized, for the same reason as above.
        await self._sleep(seconds * random.uniform(1.0, 1.2))  # noqa: S311
        return True

    def observe(self, failure: Failure) -> float:
        """Share the pause that the upstream asks for with other requests to the model. Return its seconds."""
        if asked := asked_seconds(failure):
            self._share(asked)
        return asked

    async def _sleep(self, seconds: float) -> None:
        if self._first_answer is not None:
            self._first_answer.postpone(seconds)
        await asyncio.sleep(seconds)

    def _next_pause(self) -> float:
        if self._pauses == 0:
            return _FIRST
        return min(_LONGEST, _SECOND * 2.0 ** (self._pauses - 1)) * random.uniform(0.9, 1.1)  # noqa: S311

    def _share(self, seconds: float) -> None:
        until = time.monotonic() + min(seconds, _LONGEST_SHARED)
        _quiet_until[self._model] = max(until, _quiet_until.get(self._model, 0.0))
        if len(_quiet_until) > _MAX_SHARED:
            _quiet_until.popitem(last=False)


def quiet_seconds(route: Route) -> float:
    """Return the seconds for which the upstream has asked to send no requests for this model."""
    until = _quiet_until.get((route.upstream.id, route.upstream_model))
    return 0.0 if until is None else until - time.monotonic()


def pause_for_room(refusals: int) -> float:
    """Return the seconds before a target at its limit is asked again, after it has refused this many times.

    When one of its other requests will end is unknown.
    """
    return min(_LONGEST_FOR_ROOM, _FIRST_FOR_ROOM * 2.0**refusals)


def asked_seconds(failure: Failure) -> float:
    """Return the seconds that an upstream asks to wait; 0 if it does not ask for a wait."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = failure.headers.get(name, "")
        try:
            seconds = float(text) * unit
        except ValueError:
            seconds = _seconds_until(text)
        if seconds > 0:
            return seconds
    return 0.0


def _seconds_until(date: str) -> float:
    """Return the seconds until an HTTP date (RFC 9110, section 5.6.7); 0 if it is invalid."""
    try:
        return (parsedate_to_datetime(date) - now()).total_seconds()
    except (TypeError, ValueError):
        # The date is invalid, or has no time zone.
        return 0.0
