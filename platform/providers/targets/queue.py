"""The targets of a request: their order, the next one after a failure, and reports to circuit breakers."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus

import httpx2

from core.clock import now
from core.errors import ApiError, Failure, UpstreamTimeout, UpstreamUnavailable, UpstreamUnreachable, retry_headers
from engine import spans
from engine.failed_targets import ANSWER_CUT, ANSWER_STALLED, GENERAL_CODES
from engine.turn import Attempt, Target
from providers.clients import UpstreamFailed, for_client
from providers.failure_details import log_failure
from providers.first_answer import FirstAnswer
from providers.retries import asked_seconds, pause_for_room, quiet_seconds
from providers.targets.breaker.reasons import Reason
from providers.targets.breaker.sharing import loop_breakers
from providers.targets.decision import LONGEST_WAIT, FailedRequest, NextStep, next_step
from tenants.directory import Route, target_loads

_ERRORS: dict[Reason | None, type[ApiError]] = {
    Reason.UNREACHABLE: UpstreamUnreachable,
    Reason.TIMEOUT: UpstreamTimeout,
}
REFUSALS = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})
"""Statuses of a server that does not accept a request with the beginning of its answer."""


def target_of(route: Route) -> Target:
    """Return the identity of a target."""
    return Target(model=route.model, upstream_id=route.upstream.id, upstream_model=route.upstream_model)


class Targets:
    """The targets of one request or run. Later turns begin with the target that has answered."""

    def __init__(self, route: Route) -> None:
        self._routes = list(route.targets)

    def ordered(self) -> list[Route]:
        """Return the targets for a turn. Those whose upstream asks for a long pause come last, the shortest first."""

        def wait(route: Route) -> float:
            seconds = quiet_seconds(route)
            return seconds if seconds > LONGEST_WAIT else 0.0

        return sorted(self._routes, key=wait)

    def stay_with(self, route: Route) -> None:
        """Begin later turns with this target."""
        self._routes = [route, *(target for target in self._routes if target is not route)]

    def drop(self, route: Route) -> None:
        """Do not try this target again, because it did not answer in time. The last target is kept."""
        self._routes = [target for target in self._routes if target is not route] or self._routes


class TargetQueue:
    """The targets that a call can still be sent to, in order. It leaves out those whose circuit breaker is open.

    If none is left, it waits until one of them may be probed or one at its limit has room, unless that is later than
    `deadline` (seconds of `monotonic`). A stream that waits for the `first_answer` also waits then.
    """

    def __init__(self, targets: Sequence[Route], *, deadline: float, first_answer: FirstAnswer | None = None) -> None:
        self._targets = [*targets]
        self._waiting = [*targets]
        self._deadline = deadline
        self._first_answer = first_answer
        # How often targets at their limits have refused this call, and the time of `monotonic` when to ask them again.
        self._full: dict[Target, tuple[int, float]] = {}

    @property
    def seconds(self) -> float:
        """The seconds that are left for repeated requests."""
        return max(0.0, self._deadline - time.monotonic())

    @property
    def has_others(self) -> bool:
        """True if the call can go on at another target without waiting."""
        breakers = loop_breakers()
        return any(breakers.seconds_until_probe(target) == 0 for target in self._waiting)

    async def first(self) -> Route:
        """Return the first target. Raises `UpstreamFailed` if no target takes requests."""
        route = await self._next()
        if route is not None:
            return route
        breakers = loop_breakers()
        nearest = min(self._targets, key=breakers.seconds_until_probe)
        reason = breakers.reason(nearest)
        headers = retry_headers(breakers.seconds_until_probe(nearest))
        kind = _ERRORS.get(reason, UpstreamUnavailable)
        failure = Failure.of(kind(reason and reason.message, headers=headers))
        log_failure(nearest, failure, None)
        raise UpstreamFailed(for_client(nearest, failure))

    async def after(
        self,
        route: Route,
        failure: Failure,
        attempts: Sequence[Attempt],
        *,
        reserve: Callable[[], Awaitable[bool]],
    ) -> Route | None:
        """Return the target to try after all `attempts` at a target have failed; None if the call must not go on.

        `reserve` reserves another request after one that may be charged, and returns false if budgets have no room.
        """
        if route.limits is not None and not attempts and failure.status == HTTPStatus.TOO_MANY_REQUESTS:
            # The request was not sent, because a limit of the target is reached.
            count, _ = self._full.get(target_of(route), (0, 0.0))
            seconds = max(asked_seconds(failure), pause_for_room(count))
            self._full[target_of(route)] = count + 1, time.monotonic() + seconds
            following = await self._next()
            if following is not None and not count:
                note = f"next: {following.upstream.name}"
                name = f"{route.upstream.name} is at its limit"
                spans.record(spans.Activity.ATTEMPT, name, began=now(), state="failed", note=note)
            return following
        status = attempts[-1].status if attempts else None
        failed = FailedRequest(
            failure=failure,
            status=status,
            is_repetition=True,
        )
        match next_step(failed):
            case NextStep.LARGER_TARGET:
                window = route.capabilities.context_window or 0
                self._keep(lambda target: (target.capabilities.context_window or 0) > window)
            case NextStep.GIVE_UP:
                return None
        reason = loop_breakers().reason(route)
        if reason is None or not reason.is_temporary:
            self._keep(lambda target: target is not route)
        if any(attempt.may_be_charged for attempt in attempts) and not (self._targets and await reserve()):
            return None
        following = await self._next()
        if following is not None and attempts:
            last = attempts[-1]
            last.ended = last.ended or now()
            # No upstream's text, which could contain content.
            last.cause = _cause(failure, last)
            note = f"{last.cause}; next: {following.upstream.name}"
            name = f"{route.upstream.name} failed"
            spans.record(spans.Activity.ATTEMPT, name, began=attempts[0].began, state="failed", note=note)
        return following

    @staticmethod
    def note_answer(route: Route, attempts: Sequence[Attempt], failure: Failure | None) -> None:
        """Report the end of an answer to circuit breaker and load; `failure` is None if the answer is complete.

        Requests without an answer, and those that were answered with an error, are reported when they fail.
        """
        status = attempts[-1].status if attempts else None
        if failure is None:
            loop_breakers().succeeded(route)
        elif status is not None and httpx2.codes.is_success(status):
            loop_breakers().failed(route, failure, status=status)
            # An answer that consists of an error has been counted as a fast answer.
            target_loads.forget_durations(route)

    @staticmethod
    def note_silence(route: Route, failure: Failure) -> None:
        """Report a target that has sent nothing for too long to the circuit breaker."""
        loop_breakers().failed(route, failure, has_timed_out=True)

    def again(self, route: Route) -> Route:
        """Return the target, which may be asked once more in another way."""
        self._waiting = [target for target in self._waiting if target is not route]
        return route

    def _keep(self, condition: Callable[[Route], bool]) -> None:
        self._targets = [target for target in self._targets if condition(target)]
        self._waiting = [target for target in self._waiting if condition(target)]

    async def _next(self) -> Route | None:
        breakers = loop_breakers()
        while self._waiting:
            route = self._waiting.pop(0)
            if await breakers.admit(route):
                return route
        # All that are left are open or at their limits: they were skipped, or this call has found them so.
        while self._targets:
            seconds = min(map(self._seconds_until_free, self._targets))
            if seconds >= self.seconds:
                break
            if self._first_answer is not None:
                self._first_answer.postpone(seconds)
            await asyncio.sleep(seconds)
            for target in sorted(self._targets, key=self._seconds_until_free):
                if self._seconds_until_room(target) <= 0 and await breakers.admit(target):
                    return target
        return None

    def _seconds_until_free(self, target: Route) -> float:
        return max(loop_breakers().seconds_until_probe(target), self._seconds_until_room(target))

    def _seconds_until_room(self, target: Route) -> float:
        if not self._full:
            return 0.0
        _, until = self._full.get(target_of(target), (0, 0.0))
        return max(0.0, until - time.monotonic())


def _cause(failure: Failure, last: Attempt) -> str:
    """Return why the last request failed, in few words."""
    if last.timed_out:
        return ANSWER_STALLED if last.status is not None else str(failure.code)
    has_answered = last.status is not None and httpx2.codes.is_success(last.status)
    return ANSWER_CUT if has_answered and failure.code in GENERAL_CODES else str(failure.code)
