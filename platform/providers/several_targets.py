"""Turns of a model with several targets: if a target fails, the next one answers or continues the answer."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from http import HTTPStatus

from django.conf import settings

from conversations.items import plain_text
from core.clock import now
from core.errors import Failure
from engine import spans
from engine.compaction.token_estimate import tokens
from engine.continuation import Diverged, TurnOutput
from engine.events.types import Event
from engine.turn import Attempt, Finish, Target, TurnRequest, TurnResult
from providers.failover import LONGEST_WAIT, FailedRequest, NextStep, next_step
from providers.retries import quiet_seconds
from providers.time_limits import TooSilent, limited
from providers.upstream import UpstreamModel, UpstreamTurn
from tenants.capabilities import AssistantPrefix
from tenants.directory import Route

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


def next_targets(
    route: Route, failure: Failure, attempts: Sequence[Attempt], waiting: Sequence[Route], *, may_repeat: bool
) -> Sequence[Route]:
    """Return the targets that can be tried after all `attempts` at a target have failed; none if it must not go on."""
    failed = FailedRequest(
        failure=failure,
        status=attempts[-1].status if attempts else None,
        is_repetition=True,
        may_repeat=may_repeat or not any(attempt.may_be_charged for attempt in attempts),
    )
    match next_step(failed):
        case NextStep.LARGER_TARGET:
            window = route.capabilities.context_window or 0
            waiting = [target for target in waiting if (target.capabilities.context_window or 0) > window]
        case NextStep.GIVE_UP:
            waiting = ()
    if waiting and attempts:
        last = attempts[-1]
        last.ended = last.ended or now()
        # No upstream's text, which could contain content.
        note = f"{failure.code}; next: {waiting[0].upstream.name}"
        name = f"{route.upstream.name} failed"
        spans.record(spans.Activity.ATTEMPT, name, began=attempts[0].began, state="failed", note=note)
    return waiting


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

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """Send the request and yield the events of the targets that answer."""
        options, targets, attempts, output = self._model.model, self._model.targets, self._attempts, self._output
        patience = settings.UPSTREAM_RETRY_SECONDS if options.patience is None else options.patience
        deadline = time.monotonic() + patience
        waiting: Sequence[Route] = targets.ordered()
        refuses_prefix = None
        while waiting:
            route, *waiting = waiting
            began, may_continue = len(attempts), bool(waiting) and self._request.may_repeat
            kind = AssistantPrefix.NONE if route is refuses_prefix else route.capabilities.assistant_prefix
            request = output.begin(
                takes_prefix=bool(kind) and not route.upstream.speaks_responses,
                repeats_prefix=kind == AssistantPrefix.REPEATED_PREFIX,
            )
            self._turn = turn = self._open(route, request, deadline - time.monotonic(), has_others=bool(waiting))
            failure: Failure | None = None
            try:
                reads = turn.events()
                async with aclosing(limited(reads, attempts) if may_continue else reads) as reads:
                    async for events in reads:
                        if shown := output.read(events):
                            yield shown
                result, closing = turn.result(), turn.closing
                if result.failure is None:
                    closing, self._result = output.complete(result)
                    self._turn = None
                    targets.stay_with(route)
                    if closing:
                        yield closing
                    return
            except TooSilent as silent:
                closing, result = turn.interrupt()
                failure = silent.failure
            except Diverged:
                closing, result = turn.interrupt()
                failure = self._result.failure
            if failure is not None:
                result = replace(result, failure=failure, finish=Finish.ERROR)
            if attempts and attempts[-1].timed_out:
                targets.drop(route)
            tried = attempts[began:]
            if request.answer_prefix and tried and tried[-1].status in REFUSALS:
                refuses_prefix, waiting = route, [route, *waiting]
            else:
                waiting = self._next(route, result, tried, waiting)
            events, self._result = output.interrupt(result, closing)
            self._turn = None
            if waiting:
                events = output.cut(result, closing) if output.can_continue() else output.abandon(result, closing)
                if tried:
                    tried[-1].usage, tried[-1].output_tokens = result.usage, tokens(*map(plain_text, result.items))
                if options.first_answer is not None:
                    # A stream waits for the answer of the next target as well.
                    options.first_answer.postpone(0)
            if events:
                yield events

    def _next(
        self, route: Route, result: TurnResult, tried: Sequence[Attempt], waiting: Sequence[Route]
    ) -> Sequence[Route]:
        """Return the targets that can be tried after an answer that has failed or was cut."""
        if result.failure is None or not (self._output.can_continue() or self._is_in_background):
            return ()
        return next_targets(route, result.failure, tried, waiting, may_repeat=self._request.may_repeat)

    @property
    def _is_in_background(self) -> bool:
        # Only calls of background runs have a time for repetitions of their own.
        return self._model.model.patience is not None

    def _open(self, route: Route, request: TurnRequest, patience: float, *, has_others: bool) -> UpstreamTurn:
        model = replace(
            self._model.model,
            route=route,
            patience=max(0.0, patience),
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
            return self._output.interrupt(replace(self._result, items=[]), [])
        closing, result = self._turn.interrupt()
        return self._output.interrupt(result, closing)
