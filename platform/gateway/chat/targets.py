"""The targets of a chat completion: the target that is asked, and the beginning of its answer that it gets."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from django.conf import settings

from engine.failed_targets import stored_failures
from engine.turn import Attempt
from gateway.chat.continued_chunks import ChunkContinuation, SentChunks
from providers.clients import UpstreamFailed
from providers.dialects import with_prefix
from providers.failure_details import log_failure
from providers.target_headers import add_target_headers
from providers.targets.queue import REFUSALS, TargetQueue, Targets
from providers.targets.time_limits import TooSilent
from responses.runs.usage_records import RoutedCall
from tenants.capabilities import AssistantPrefix
from tenants.directory import Route


class CompletionTargets:
    """The targets of one chat completion. `route` is the target that the next request is sent to.

    With a single target, `queue` is None and nothing else is used.
    """

    def __init__(self, routed: RoutedCall) -> None:
        self.route = routed.route
        self.queue: TargetQueue | None = None
        self.prefix = ""
        """The beginning of the answer that the present target gets."""
        routed.on_answer = add_target_headers
        self._routed = routed
        self._refuses_prefix: Route | None = None
        # The number of requests before the first to the present target.
        self._began = 0

    async def choose(self) -> None:
        """Choose the first target if there are several and none is chosen. Raises `UpstreamFailed`."""
        if self._routed.targets and self.queue is None:
            deadline = time.monotonic() + settings.UPSTREAM_RETRY_SECONDS
            queue = TargetQueue(Targets(self._routed.route).ordered(), deadline=deadline)
            self.route = await queue.first()
            self.queue = queue

    @property
    def attempts(self) -> list[Attempt]:
        """The HTTP requests of the call."""
        return self._routed.attempts

    @property
    def has_others(self) -> bool:
        """True if another target can answer if the present one does not."""
        return self.queue is not None and self.queue.has_others

    @property
    def _tried(self) -> Sequence[Attempt]:
        return self.attempts[self._began :]

    def continuation(self, sent: SentChunks) -> ChunkContinuation | None:
        """Prepare the request to the present target for the rest of what was sent. None if nothing was sent."""
        kind, text = self.route.capabilities.assistant_prefix, sent.text
        takes_prefix = bool(kind and text) and self.route is not self._refuses_prefix
        self.prefix = text if takes_prefix else ""
        if sent.is_empty:
            return None
        return ChunkContinuation(sent, repeats=not takes_prefix or kind == AssistantPrefix.REPEATED_PREFIX)

    def with_prefix(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the request with the beginning of the answer."""
        return with_prefix(values, self.prefix, route=self.route) if self.prefix else values

    async def fails_over(
        self, failed: UpstreamFailed, *, sent_text: str = "", can_continue: bool = True, is_answered: bool = False
    ) -> bool:
        """Go on to the next target after an answer that has failed or was cut. False if there is none.

        `sent_text` is the text that was sent to the client. The next target may get it as the beginning of its answer.
        `is_answered`: the target works, but its answer is not the continuation of the one that `failed`.
        """
        if (queue := self.queue) is None:
            return False
        route, tried = self.route, self._tried
        if not await self._goes_on(queue, failed, sent_text, can_continue=can_continue, is_answered=is_answered):
            log_failure(route, failed.failure, tried[-1] if tried else None)
            return False
        self._began = len(self.attempts)
        return True

    async def _goes_on(
        self, queue: TargetQueue, failed: UpstreamFailed, sent_text: str, *, can_continue: bool, is_answered: bool
    ) -> bool:
        if isinstance(failed, TooSilent) and not is_answered:
            queue.note_silence(self.route, failed.failure)
        else:
            queue.note_answer(self.route, self._tried, None if is_answered else failed.failure)
        if not can_continue:
            return False
        if self.prefix and self._tried and self._tried[-1].status in REFUSALS:
            # The server may not accept a prefix. It repeats the answer from its beginning instead.
            self._refuses_prefix = self.route
            queue.again(self.route)
        else:
            reserve = partial(self._routed.reserve_again, sent_text)
            following = await queue.after(self.route, failed.failure, self._tried, reserve=reserve)
            if following is None:
                return False
            self.route = following
        return True

    def succeeded(self) -> None:
        """Report a complete answer."""
        if self.queue is not None:
            self.queue.note_answer(self.route, self.attempts, None)

    def failures(self, *, has_failed: bool) -> list[dict[str, Any]] | None:
        """Return the targets that failed, as usage records store them. `has_failed`: the last one has failed, too."""
        if self.queue is None:
            return None
        routed = self._routed
        return stored_failures(
            self.attempts,
            upstream=lambda attempt: routed.route_of(attempt).upstream.name,
            began=routed.began,
            has_failed=has_failed,
        )
