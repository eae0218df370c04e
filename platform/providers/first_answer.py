"""Wait of a stream for the status line of the upstream's answer to the first request of the run.

A stream that has sent its own status line can only report a failure as an event, after which SDKs do not retry.
"""

import asyncio

# Servers send their status line when they accept a request, or with the first token. Clients should not wait for the
# first token without a sign of life.
SECONDS = 2.0


class FirstAnswer:
    """Wait of one stream for its upstream; `has_begun` is true once the upstream answers."""

    def __init__(self) -> None:
        self.has_begun = False
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + SECONDS
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """End the wait: the upstream answers, or the run has taken effect in another way."""
        self.has_begun = True
        self.give_up()

    def give_up(self) -> None:
        """End the wait without an answer."""
        if not self._over.done():
            self._over.set_result(None)

    def postpone(self, seconds: float) -> None:
        """Extend the wait: the upstream has refused the request, which is repeated after this many seconds."""
        self._until = max(self._until, self._loop.time() + seconds + SECONDS)

    async def wait(self) -> None:
        """Wait until the upstream has begun to answer, or the time for it is over."""
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
