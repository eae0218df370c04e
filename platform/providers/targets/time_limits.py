"""Time limits of an answer that another target could give: for its first token, and for a pause in the middle of it."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any, TypeVar

from django.conf import settings

from core.clock import now
from engine.turn import Attempt
from providers.clients import STALLED, UpstreamFailed, to_failure
from providers.http_client import NoAnswer

Read = TypeVar("Read", bound=list[Any])


class TooSilent(UpstreamFailed):
    """A target has sent nothing of its answer for too long."""

    def __init__(self, *, has_begun: bool) -> None:
        super().__init__(STALLED if has_begun else to_failure(NoAnswer()))


def first_token_limit(attempts: list[Attempt]) -> AbstractAsyncContextManager[None]:
    """Limit the time of a block to that of a first token. The block raises `TooSilent`."""
    until = asyncio.get_running_loop().time() + settings.UPSTREAM_FIRST_TOKEN_SECONDS
    return _limit(until, attempts, has_begun=False)


async def limited(reads: AsyncGenerator[Read, None], attempts: list[Attempt]) -> AsyncGenerator[Read, None]:
    """Yield the reads of an answer; closes them at the end. Raises `TooSilent`.

    A read without content does not count: servers send comments while a request waits. The time until the consumer
    continues does not count either. The last of `attempts` is marked as timed out.
    """
    loop, has_begun = asyncio.get_running_loop(), False
    async with aclosing(reads):
        until = loop.time() + settings.UPSTREAM_FIRST_TOKEN_SECONDS
        while True:
            async with _limit(until, attempts, has_begun=has_begun):
                read = await anext(reads, None)
            if read is None:
                return
            yield read
            if read:
                has_begun, until = True, loop.time() + settings.UPSTREAM_STALL_SECONDS


@asynccontextmanager
async def _limit(until: float, attempts: list[Attempt], *, has_begun: bool) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout_at(until) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        # No request was sent if the target had asked for a pause. Then the last one is that of another target.
        if attempts and attempts[-1].ended is None:
            attempts[-1].ended, attempts[-1].timed_out = now(), True
        raise TooSilent(has_begun=has_begun) from None
