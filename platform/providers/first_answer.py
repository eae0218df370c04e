"""Wait of a stream, before its own status line is sent, for the upstream's answer to the run's first request.

A stream that has sent its own status line can only report a failure as an event, after which SDKs do not retry.
"""

import asyncio

# Servers send their status line when they accept a request, or with the first token. Clients should not wait for the
# first token without a sign of life.
SECONDS = 2.0


class FirstAnswer:
    """Wait of one stream for its upstream. `has_begun` is true after the upstream has begun to answer."""

    def __init__(self) -> None:
        self.has_begun = False
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + SECONDS
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """End the wait, because the upstream answers or the run has had an effect in another way."""
        self.has_begun = True
        self.give_up()

    def give_up(self) -> None:
        """End the wait without an answer."""
        if not self._over.done():
            self._over.set_result(None)

    def postpone(self, seconds: float) -> None:
        """Extend the wait, because the upstream has refused the request, and it is repeated after this many seconds."""
        self._until = max(self._until, self._loop.time() + seconds + SECONDS)

    async def wait(self) -> None:
        """Wait until the upstream has begun to answer, at most until the time limit."""
        self._timer = self._loop.call_at(self._until, self._check)
        try:
            await self._over
        finally:
            self._timer.cancel()

    def _check(self) -> None:
        if self._until > self._loop.time():
            self._timer = self._loop.call_at(self._until, self._check)
        else:
            self.give_up()
