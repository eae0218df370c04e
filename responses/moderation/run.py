"""A run whose output is checked before it ends, and held back until then if a check may block it."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime

from typing_extensions import override

from kernel.errors import Failure
from responses.engine.calls.port import Toolbox
from responses.engine.events.response_body import Ending
from responses.engine.events.terminal import closing, failed
from responses.engine.events.types import Event
from responses.engine.loop import Run
from responses.engine.state import OutputItem, RunContext, RunState
from responses.engine.steps import ContextCompacted, Emitted, RunEnded, Step, TurnDiscarded, TurnEnded, TurnRecord
from responses.engine.turn import LanguageModel
from responses.moderation.checks import ModerationResult, OutputCheck


class ModeratedRun(Run):
    """The run of a request with `moderation`, or of a team with a guardrail."""

    def __init__(
        self,
        context: RunContext,
        state: RunState,
        *,
        model: LanguageModel,
        tools: Toolbox,
        now: Callable[[], datetime],
        checks: OutputCheck,
    ) -> None:
        super().__init__(context, state, model=model, tools=tools, now=now)
        self._checks = checks
        self._held: list[Event] = []

    @override
    async def steps(self) -> AsyncGenerator[Step, None]:
        async with aclosing(super().steps()) as steps:
            async for step in steps:
                match step:
                    case Emitted(events) if self._checks.holds_output_back:
                        # Released together with the step that ends the turn, after the check.
                        self._held += events
                    case TurnEnded() | TurnDiscarded() if self._checks.holds_output_back:
                        found = await self._checks.check_output([item.body for item in step.items])
                        if (failure := self._checks.failure_for(found)) is not None:
                            yield self._withheld(self._failed(failure, found), step.items, step.turn, at=self._now())
                            return
                        yield replace(step, events=[*self._release(), *step.events])
                    case ContextCompacted():
                        # A compaction item is encrypted notes for the model, not output: there is nothing to check.
                        yield replace(step, events=[*self._release(), *step.events])
                    case RunEnded():
                        yield await self._check_end(step)
                    case _:
                        yield step

    @override
    def interrupt(self, ending: Ending) -> RunEnded:
        end = super().interrupt(ending)
        return self._withheld(ending, end.items, end.turn, at=end.ended_at) if self._held else end

    async def _check_end(self, end: RunEnded) -> RunEnded:
        if end.ending.status not in {"completed", "incomplete"}:
            # A failed or cancelled run has no answer to check. Events that are still held are dropped.
            return self._withheld(end.ending, end.items, end.turn, at=end.ended_at) if self._held else end
        found = await self._checks.check_output(self._state.bodies())
        if (failure := self._checks.failure_for(found)) is not None:
            return self._withheld(self._failed(failure, found), end.items, end.turn, at=end.ended_at)
        # The closing events were built before the result was known; they are replaced by ones that report it.
        ending = end.ending._replace(moderation=self._checks.public_result(found))
        body = end.response if ending.moderation is None else {**end.response, "moderation": ending.moderation}
        before = end.events[: len(end.events) - len(closing(end.ending, end.response))]
        events = [*self._release(), *before, *closing(ending, body)]
        return replace(end, ending=ending, response=body, events=events)

    def _failed(self, failure: Failure, found: ModerationResult) -> Ending:
        return failed(failure)._replace(moderation=self._checks.public_result(found))

    def _release(self) -> list[Event]:
        held, self._held = self._held, []
        return held

    def _withheld(
        self, ending: Ending, items: Sequence[OutputItem], turn: TurnRecord | None, *, at: datetime
    ) -> RunEnded:
        # The response keeps nothing of the blocked turn. Its usage stays: the tokens were spent all the same.
        self._held = []
        state = self._state
        state.output = [item for item in state.output if not any(item is withheld for withheld in items)]
        state.pending = []
        return self._end(ending, at=at, turn=turn)
