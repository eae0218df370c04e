"""Calls whose answers are forwarded unchanged: of several targets, the first that answers gives the whole answer."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import Protocol, TypeVar

from django.conf import settings

from core.records import record
from engine.turn import Attempt
from providers.clients import PostOptions, UpstreamFailed
from providers.failure_details import log_failure
from providers.http_client import Answer
from providers.targets.queue import TargetQueue, Targets, target_of
from providers.targets.time_limits import TooSilent, first_token_limit
from tenants.directory import Route

Begun = TypeVar("Begun")


class Send(Protocol):
    """Function that sends the request to a target."""

    def __call__(self, target: Route, options: PostOptions) -> AbstractAsyncContextManager[Answer]:
        """Return the answer on entering."""


def options_for(target: Route, *, may_repeat: bool, patience: float, has_others: bool) -> PostOptions:
    """Return the options of a request to one of several targets."""
    return PostOptions(may_repeat=may_repeat, patience=patience, target=target_of(target), has_others=has_others)


def route_of(attempt: Attempt, targets: Iterable[Route]) -> Route:
    """Return the target of an attempt."""
    return next(route for route in targets if target_of(route) == attempt.target)


@record
class ForwardedCall:
    """A request that can be sent to any target of a route. `send` adds each HTTP request to `attempts`.

    Without `may_repeat`, budgets cover only one request for which an upstream may charge. Before the next target gets
    another one, `reserve_again` reserves it; it returns false if the budgets have no room. `begins_soon`: a target that
    sends nothing within the time of a first token is left for the next one.
    """

    route: Route
    send: Send
    attempts: list[Attempt]
    reserve_again: Callable[[], Awaitable[bool]]
    may_repeat: bool = True
    begins_soon: bool = False
    patience: float | None = None

    @asynccontextmanager
    async def answered(self, begin: Callable[[Answer], Awaitable[Begun]]) -> AsyncIterator[Begun]:
        """Provide what `begin` returns for the first target whose answer begins. Raises the last `UpstreamFailed`.

        `begin` reads an answer until the client can get something of it. Later failures are those of the block.
        """
        patience = settings.UPSTREAM_RETRY_SECONDS if self.patience is None else self.patience
        queue = TargetQueue(Targets(self.route).ordered(), deadline=time.monotonic() + patience)
        following: Route | None = await queue.first()
        while following is not None:
            route, first, has_begun, is_noted = following, len(self.attempts), False, False
            try:
                async with AsyncExitStack() as stack:
                    try:
                        begun = await self._begin(stack, route, queue, begin)
                    except TooSilent as silent:
                        queue.note_silence(route, silent.failure)
                        is_noted = True
                        raise
                    has_begun = True
                    yield begun
            except UpstreamFailed as failed:
                attempts = self.attempts[first:]
                if not is_noted:
                    queue.note_answer(route, attempts, failed.failure)
                following = None
                if not has_begun:
                    following = await queue.after(route, failed.failure, attempts, reserve=self.reserve_again)
                if following is None:
                    log_failure(route, failed.failure, attempts[-1] if attempts else None)
                    raise
            else:
                queue.note_answer(route, self.attempts[first:], None)
                return

    async def _begin(
        self, stack: AsyncExitStack, route: Route, queue: TargetQueue, begin: Callable[[Answer], Awaitable[Begun]]
    ) -> Begun:
        has_others = queue.has_others
        is_limited = self.begins_soon and has_others
        async with first_token_limit(self.attempts) if is_limited else nullcontext():
            options = options_for(route, may_repeat=self.may_repeat, patience=queue.seconds, has_others=has_others)
            return await begin(await stack.enter_async_context(self.send(route, options)))
