"""Requests to a target with limits: admission, the wait for room, and the release at the end of the answer."""

import asyncio
import itertools
import logging
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

import redis
from django.conf import settings
from typing_extensions import override

from core.db import wait_limit
from core.errors import Failure, RateLimited, retry_headers
from core.ids import new_id
from core.json.large_work import off_loop
from core.per_loop import PerLoop
from core.telemetry import metrics
from engine.compaction import token_estimate
from engine.turn import Attempt, TurnRequest
from limits import targets as shared_limits
from limits.targets import Admission
from providers.http_client import Answer
from providers.retries import Retries, pause_for_room
from providers.targets.local_limits import LocalLimits
from tenants.directory import Route, TargetLimits

logger = logging.getLogger(__name__)
_ERRORS = metrics.REDIS_ERRORS.labels("targets")
# A request waits at most this long for Redis.
_PATIENCE_SECONDS = 1.0
# After an error, the process decides alone for this long: otherwise every request would wait for a Redis that hangs.
_PAUSE_SECONDS = 1.0


class _LoopLeases:
    """The open leases of an event loop, and the limits as its process sees them."""

    def __init__(self) -> None:
        self.local = LocalLimits()
        # A lease that was lost without being released is not renewed.
        self._open: weakref.WeakSet[TargetLease] = weakref.WeakSet()
        self._renewal: asyncio.Task[None] | None = None
        self._alone_until = 0.0

    async def reserve(self, lease: "TargetLease", tokens: int) -> Admission:
        """Take a request, its tokens and its lease. Without Redis, this process decides alone."""
        limits = lease.limits
        if time.monotonic() >= self._alone_until:
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    admission = await shared_limits.reserve(limits, lease_id=lease.id, tokens=tokens)
            except (redis.RedisError, OSError) as error:
                _ERRORS.inc()
                logger.warning("the limits of targets are not shared: %s", error)
                self._alone_until = time.monotonic() + _PAUSE_SECONDS
            else:
                if not admission.refused_by:
                    self.local.note(limits, lease_id=lease.id, tokens=tokens)
                return admission
        return self.local.reserve(limits, lease_id=lease.id, tokens=tokens)

    def keep(self, lease: "TargetLease") -> None:
        """Renew a lease until it is released."""
        self._open.add(lease)
        if self._renewal is None or self._renewal.done():
            loop = asyncio.get_running_loop()
            self._renewal = loop.create_task(self._renew(), context=wait_limit.unrelated())

    def release(self, lease: "TargetLease") -> None:
        """Release a lease, which may never have been taken."""
        self._open.discard(lease)
        self.local.release(lease.limits, lease.id)
        if lease.limits.concurrent_requests is not None:
            shared_limits.release_soon(lease.limits, lease.id)

    async def _renew(self) -> None:
        while self._open:
            # Three renewals may fail before a lease expires.
            await asyncio.sleep(settings.LEASE_SECONDS / 4)
            by_target: dict[TargetLimits, list[str]] = {}
            for lease in [*self._open]:
                by_target.setdefault(lease.limits, []).append(lease.id)
            for limits, lease_ids in by_target.items():
                shared_limits.renew_soon(limits, lease_ids)


_leases = PerLoop(_LoopLeases)


class TargetLease:
    """A request to a target with limits, with its repetitions. `counted`: see `PostOptions`."""

    def __init__(
        self, route: Route, limits: TargetLimits, counted: TurnRequest | Callable[[], int] | None = None
    ) -> None:
        self.id = new_id("lease")
        self.limits = limits
        self._route = route
        self._counted = counted if limits.tokens_per_minute is not None else None
        self._admission: Admission | None = None

    async def admit(self, retries: Retries, *, waits: bool) -> Failure | None:
        """Take room for a further HTTP request. Return the failure if there is none, with `waits` not in time either.

        The tokens are taken only once: a request that is repeated has not used them.
        """
        counted, self._counted = self._counted, None
        if isinstance(counted, TurnRequest):
            counted = partial(_input_tokens, counted)
        tokens = 0 if counted is None else max(1, await off_loop(counted))
        for refusals in itertools.count():
            admission = await _leases().reserve(self, tokens)
            if not admission.refused_by:
                break
            if not refusals:
                metrics.count_target_limit(
                    upstream=self._route.upstream.name, model=self._route.model, limit=admission.refused_by
                )
            seconds = admission.wait_seconds or pause_for_room(refusals)
            if not waits or not await retries.wait(seconds):
                return Failure.of(RateLimited(_REACHED, headers=retry_headers(seconds)))
        if self._admission is None:
            self._admission = admission
        if self.limits.concurrent_requests is not None:
            _leases().keep(self)
        return None

    def settle(self, tokens: int) -> None:
        """Count the tokens that the request has used instead of the estimate. Only the first call has an effect."""
        admission, self._admission = self._admission, None
        if admission is None or self.limits.tokens_per_minute is None or tokens == admission.tokens:
            return
        _leases().local.settle(self.limits, taken=admission.tokens, used=tokens)
        if admission.at:
            shared_limits.settle_soon(self.limits, admission, tokens=tokens)

    def release(self) -> None:
        """End the request: another one may be sent."""
        _leases().release(self)


def _input_tokens(request: TurnRequest) -> int:
    return token_estimate.input_tokens(
        instructions=request.instructions,
        items=request.items,
        sampling=request.sampling,
        attachments=request.attachments,
    )


_REACHED = "The model's server has reached its limit of requests. Please try again later."


class LeasedAnswer(AbstractAsyncContextManager[Answer]):
    """An open answer whose request holds a lease. `attempts` are those of the call, to which its requests are added."""

    __slots__ = ("_answer", "_attempts", "_began", "_lease")

    def __init__(
        self, answer: AbstractAsyncContextManager[Answer], lease: TargetLease, attempts: Sequence[Attempt]
    ) -> None:
        self._answer = answer
        self._lease = lease
        self._attempts = attempts
        self._began = len(attempts)

    @override
    async def __aenter__(self) -> Answer:
        try:
            return await self._answer.__aenter__()
        except BaseException:
            self._lease.release()
            if not any(attempt.may_be_charged for attempt in self._attempts[self._began :]):
                self._lease.settle(0)
            raise

    @override
    async def __aexit__(self, *error: object) -> None:
        try:
            await self._answer.__aexit__(*error)  # type: ignore[arg-type]
        finally:
            self._lease.release()
