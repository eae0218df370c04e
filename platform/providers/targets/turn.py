"""Turns of a model with several targets: if a target fails, the next one answers or continues the answer."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from django.conf import settings

from conversations.items import plain_text
from engine.compaction.token_estimate import tokens
from engine.continuation import Diverged, TurnOutput
from engine.events.types import Event
from engine.turn import Attempt, Finish, LanguageModel, TurnRequest, TurnResult
from providers.clients import UpstreamFailed
from providers.failure_details import log_failure
from providers.targets.queue import REFUSALS, TargetQueue, Targets, target_of
from providers.targets.time_limits import TooSilent, limited
from providers.upstream import UpstreamModel, UpstreamTurn
from tenants.capabilities import AssistantPrefix
from tenants.directory import Route


def model_of(route: Route) -> LanguageModel:
    """Return the model behind a route, with failover if there are several targets."""
    return FailoverModel(UpstreamModel(route)) if route.others else UpstreamModel(route)


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
    cut after output was sent is continued by the next target if its text allows it (`engine.continuation`). Otherwise
    the turn fails, and in the background it is repeated after the items that were sent.
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
            is_limited = has_others and (self._request.may_repeat or self._request.reserve_again is not None)
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
                failure = result.failure
                following, rest = await self._after(queue, route, request, (result, rest), attempts[began:])
                if following is None:
                    log_failure(route, failure, attempts[-1] if len(attempts) > began else None)
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
        queue: TargetQueue,
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
            following = await queue.after(route, result.failure, tried, reserve=self._reserve_again)
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

    async def _reserve_again(self) -> bool:
        request = self._request
        if request.may_repeat:
            return True
        return request.reserve_again is not None and await request.reserve_again(self._output.open_text)

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
