"""Turns of a model with several targets: if a target fails before the turn has any output, the next target is tried."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from django.conf import settings

from core.clock import now
from core.errors import Failure
from engine import spans
from engine.events.types import Event
from engine.turn import Attempt, Finish, Target, TurnRequest, TurnResult
from providers.failover import LONGEST_WAIT, FailedRequest, NextStep, next_step
from providers.retries import quiet_seconds
from providers.upstream import UpstreamModel, UpstreamTurn
from tenants.directory import Route


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
    """One call of the model: a turn at one target after the other, until one has output or none is left.

    The time for repeated requests, which begins with the first request, is shared by all targets. Each target gets a
    first request even after this time: the targets before it may have used it up by not answering.
    """

    def __init__(self, model: FailoverModel, request: TurnRequest) -> None:
        self._model = model
        self._request = request
        self._attempts: list[Attempt] = []
        self._turn: UpstreamTurn | None = None
        self._result = TurnResult(finish=Finish.INTERRUPTED, attempts=())

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """Send the request and yield the events of the target that answers."""
        options, targets, attempts = self._model.model, self._model.targets, self._attempts
        patience = settings.UPSTREAM_RETRY_SECONDS if options.patience is None else options.patience
        deadline = time.monotonic() + patience
        waiting: Sequence[Route] = targets.ordered()
        while waiting:
            route, *waiting = waiting
            began, has_output = len(attempts), False
            self._turn = turn = self._open(route, deadline - time.monotonic(), has_others=bool(waiting))
            async with aclosing(turn.events()) as reads:
                async for events in reads:
                    has_output = has_output or bool(events)
                    yield events
            self._result = result = turn.result()
            if attempts and attempts[-1].timed_out:
                targets.drop(route)
            if result.failure is None or has_output:
                targets.stay_with(route)
                return
            tried = attempts[began:]
            waiting = next_targets(route, result.failure, tried, waiting, may_repeat=self._request.may_repeat)
            if waiting and tried:
                tried[-1].usage = result.usage
            if waiting and options.first_answer is not None:
                # A stream waits for the answer of the next target as well.
                options.first_answer.postpone(0)

    def _open(self, route: Route, patience: float, *, has_others: bool) -> UpstreamTurn:
        model = replace(
            self._model.model,
            route=route,
            patience=max(0.0, patience),
            target=target_of(route),
            has_others=has_others,
        )
        return UpstreamTurn(model, replace(self._request, model=route.upstream_model), self._attempts)

    def result(self) -> TurnResult:
        """Return the result of the turn at the last target."""
        return self._result

    def interrupt(self) -> tuple[list[Event], TurnResult]:
        """Return the events that close open items, and the partial result."""
        return ([], self._result) if self._turn is None else self._turn.interrupt()
