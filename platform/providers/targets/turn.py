"""Turns of a model with several targets: if a target fails, the next one answers or continues the answer."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from http import HTTPStatus

import httpx2
from django.conf import settings

from conversations.items import plain_text
from core.clock import now
from core.errors import Failure, UpstreamUnavailable, retry_headers
from engine import spans
from engine.compaction.token_estimate import tokens
from engine.continuation import Diverged, TurnOutput
from engine.events.types import Event
from engine.turn import Attempt, Finish, Target, TurnRequest, TurnResult
from providers.clients import UpstreamFailed
from providers.first_answer import FirstAnswer
from providers.retries import quiet_seconds
from providers.targets.breaker.sharing import loop_breakers
from providers.targets.decision import LONGEST_WAIT, FailedRequest, NextStep, next_step
from providers.targets.time_limits import TooSilent, limited
from providers.upstream import UpstreamModel, UpstreamTurn
from tenants.capabilities import AssistantPrefix
from tenants.directory import Route, target_loads

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

    If none is left, it waits until one of them may be probed, unless that is later than `deadline` (seconds of
    `monotonic`). A stream that waits for the `first_answer` also waits then.
    """

    def __init__(self, targets: Sequence[Route], *, deadline: float, first_answer: FirstAnswer | None = None) -> None:
        self._targets = [*targets]
        self._waiting = [*targets]
        self._deadline = deadline
        self._first_answer = first_answer

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
        raise UpstreamFailed(Failure.of(UpstreamUnavailable(reason and reason.message, headers=headers)))

    async def after(
        self, route: Route, failure: Failure, attempts: Sequence[Attempt], *, may_repeat: bool
    ) -> Route | None:
        """Return the target to try after all `attempts` at a target have failed; None if the call must not go on."""
        status = attempts[-1].status if attempts else None
        failed = FailedRequest(
            failure=failure,
            status=status,
            is_repetition=True,
            may_repeat=may_repeat or not any(attempt.may_be_charged for attempt in attempts),
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
        following = await self._next()
        if following is not None and attempts:
            last = attempts[-1]
            last.ended = last.ended or now()
            # No upstream's text, which could contain content.
            note = f"{failure.code}; next: {following.upstream.name}"
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
        # All that are left are open: they were skipped, or their failure in this call has opened them.
        while self._targets:
            seconds = min(breakers.seconds_until_probe(target) for target in self._targets)
            if seconds >= self.seconds:
                break
            if self._first_answer is not None:
                self._first_answer.postpone(seconds)
            await asyncio.sleep(seconds)
            for target in sorted(self._targets, key=breakers.seconds_until_probe):
                if await breakers.admit(target):
                    return target
        return None


class FailoverModel:
    """Implementation of `LanguageModel` for a route with several targets. `model` has the options of their calls."""

    def __init__(self, model: UpstreamModel) -> None:
        self.model = model
        self.targets = Targets(model.route)

    def open(self, request: TurnRequest) -> "FailoverTurn":
        """Start a turn. The request is sent when its events are iterated."""
        return FailoverTurn(self, request)


class FailoverTurn:
    """One call of the model: a turn at one target after the other, until one has answered or none is left.

    The time for repeated requests, which begins with the first request, is shared by all targets. Each target gets a
    first request even after this time: the targets before it may have used it up by not answering. An answer that was
    cut after output was sent is continued by the next target if its text allows it (`engine.continuation`). In the
    background, where nobody waits, the turn is otherwise repeated after the items that were sent.
    """

    def __init__(self, model: FailoverModel, request: TurnRequest) -> None:
        self._model = model
        self._request = request
        self._attempts: list[Attempt] = []
        self._turn: UpstreamTurn | None = None
        self._output = TurnOutput(request)
        self._result = TurnResult(finish=Finish.INTERRUPTED, attempts=())
        self._refuses_prefix: Route | None = None
        # The events that close open items, and the result, while no target is asked.
        self._rest: tuple[list[Event], TurnResult] = ([], self._result)

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """Send the request and yield the events of the targets that answer."""
        options, targets, attempts, output = self._model.model, self._model.targets, self._attempts, self._output
        patience = settings.UPSTREAM_RETRY_SECONDS if options.patience is None else options.patience
        queue = TargetQueue(targets.ordered(), deadline=time.monotonic() + patience, first_answer=options.first_answer)
        try:
            following: Route | None = await queue.first()
        except UpstreamFailed as failed:
            self._result = TurnResult(finish=Finish.ERROR, failure=failed.failure, attempts=())
            return
        while following is not None:
            route, began, has_others = following, len(attempts), queue.has_others
            request = self._request_for(route)
            self._turn = turn = self._open(route, request, queue.seconds, has_others=has_others)
            is_limited = has_others and self._request.may_repeat
            try:
                reads = turn.events()
                async with aclosing(limited(reads, attempts) if is_limited else reads) as reads:
                    async for events in reads:
                        if shown := output.read(events):
                            yield shown
                result, rest = turn.result(), turn.closing
                queue.note_answer(route, attempts[began:], result.failure)
                if result.failure is None:
                    rest, self._result = output.complete(result)
            except (TooSilent, Diverged) as error:
                rest, result = turn.interrupt()
                # Of the answer that was cut, as the client did not ask for another text.
                failure = error.failure if isinstance(error, TooSilent) else self._result.failure
                result = replace(result, failure=failure, finish=Finish.ERROR)
                if isinstance(error, TooSilent):
                    queue.note_silence(route, error.failure)
                    targets.drop(route)
                else:
                    queue.note_answer(route, (), None)
            if result.failure is None:
                following = None
                targets.stay_with(route)
                self._turn, self._rest = None, ([], self._result)
            else:
                following, rest = await self._after(queue, route, request, (result, rest), attempts[began:])
            if rest:
                yield rest

    def _request_for(self, route: Route) -> TurnRequest:
        """Return the request for a target, which may contain the beginning of its answer."""
        kind = AssistantPrefix.NONE if route is self._refuses_prefix else route.capabilities.assistant_prefix
        return self._output.begin(
            takes_prefix=bool(kind) and not route.upstream.speaks_responses,
            repeats_prefix=kind == AssistantPrefix.REPEATED_PREFIX,
        )

    async def _after(
        self,
        queue: "TargetQueue",
        route: Route,
        request: TurnRequest,
        ended: tuple[TurnResult, list[Event]],
        tried: Sequence[Attempt],
    ) -> tuple[Route | None, list[Event]]:
        """Return the next target, None if there is none, and the events to send before it.

        `ended` are the result and the closing events of an answer that has failed or was cut.
        """
        output, first_answer, (result, closing) = self._output, self._model.model.first_answer, ended
        if tried and tried[-1].timed_out:
            self._model.targets.drop(route)
        self._turn, self._rest = None, output.interrupt(result, closing)
        events, self._result = self._rest
        following = None
        if request.answer_prefix and tried and tried[-1].status in REFUSALS:
            # The server may not accept a prefix. It repeats the answer from its beginning instead.
            self._refuses_prefix = following = queue.again(route)
        elif result.failure is not None and (output.can_continue() or self._is_in_background):
            following = await queue.after(route, result.failure, tried, may_repeat=self._request.may_repeat)
        if following is None:
            return None, events
        if tried:
            tried[-1].usage, tried[-1].output_tokens = result.usage, tokens(*map(plain_text, result.items))
        if first_answer is not None:
            # A stream waits for the answer of the next target as well.
            first_answer.postpone(0)
        events = output.cut(result, closing) if output.can_continue() else output.abandon(result, closing)
        self._rest = output.interrupt(replace(result, items=[]), [])
        return following, events

    @property
    def _is_in_background(self) -> bool:
        # Only calls of background runs have a time for repetitions of their own.
        return self._model.model.patience is not None

    def _open(self, route: Route, request: TurnRequest, patience: float, *, has_others: bool) -> UpstreamTurn:
        model = replace(
            self._model.model,
            route=route,
            patience=patience,
            target=target_of(route),
            has_others=has_others,
        )
        # Streamed, so that a server that does not begin to answer is noticed.
        request = replace(request, model=route.upstream_model, streamed=request.streamed or has_others)
        return UpstreamTurn(model, request, self._attempts)

    def result(self) -> TurnResult:
        """Return the result of the turn."""
        return self._result

    def interrupt(self) -> tuple[list[Event], TurnResult]:
        """Return the events that close open items, and the partial result."""
        if self._turn is None:
            return self._rest
        closing, result = self._turn.interrupt()
        return self._output.interrupt(result, closing)
