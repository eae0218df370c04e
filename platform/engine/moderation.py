"""Check of a run's output before the run ends. Output that the check may block is held back until after the check."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

from core.clock import unix
from core.errors import Failure
from engine import spans
from engine.events.response_body import Ending, closing, failed
from engine.events.types import Body, Event
from engine.state import OutputItem, RunState
from engine.steps import ContextCompacted, Emitted, RunEnded, RunSuspended, Step, TurnDiscarded, TurnEnded, TurnRecord

ModerationResult = dict[str, Any]
"""JSON of a `moderation_result`, or of an `error` if the model gave no result. Each checker adds its own fields."""


class OutputCheck(Protocol):
    """A check of a run's output."""

    @property
    def holds_output_back(self) -> bool:
        """True if output is sent only after it was checked."""
        ...

    async def check_output(self, bodies: Sequence[Body]) -> ModerationResult:
        """Check output items. Never raises."""
        ...

    def public_result(self, result: ModerationResult) -> dict[str, ModerationResult] | None:
        """Return `Response.moderation`, or None if the request did not ask for it."""
        ...

    def failure_for(self, result: ModerationResult) -> Failure | None:
        """Return the reason why the output must not be sent, or None if it may be sent."""
        ...


class EndRun(Protocol):
    """Function that ends a run. The body of the response is built from the run's state."""

    def __call__(self, ending: Ending, *, at: datetime, turn: TurnRecord | None) -> RunEnded: ...


class ModerationGate:
    """Gate that passes on the steps of a run after their output was checked."""

    def __init__(self, checks: OutputCheck, state: RunState, *, end: EndRun, now: Callable[[], datetime]) -> None:
        self._checks = checks
        self._state = state
        self._end = end
        self._now = now
        self._held: list[Event] = []

    async def check(self, step: Step) -> Step | None:
        """Return the step, or None if it is held back. A blocked step is replaced by the end of the run."""
        match step:
            case Emitted(events) if self._checks.holds_output_back:
                # Released together with the step that ends the turn, after the check.
                self._held += events
                return None
            case TurnEnded() | TurnDiscarded() if self._checks.holds_output_back:
                found = await self._check_output([item.body for item in step.items])
                if (failure := self._checks.failure_for(found)) is not None:
                    return self._withhold(self._failed(failure, found), step.items, step.turn, at=self._now())
                return replace(step, events=[*self._release(), *step.events])
            case ContextCompacted() | RunSuspended():
                # There is nothing to check: a compaction item is encrypted notes for the model, not output, and the
                # turn of a suspended run was checked. Another process continues the run without the events held here.
                return replace(step, events=[*self._release(), *step.events])
            case RunEnded():
                return await self.check_end(step)
        return step

    def interrupt(self, end: RunEnded) -> RunEnded:
        """Return the end of an interrupted run without output that was not checked."""
        if end.turn is None:
            # The held events show the progress of hosted calls. Their items are not output of the model.
            self._held = []
        return self._withhold(end.ending, end.items, end.turn, at=end.ended_at) if self._held else end

    async def check_end(self, end: RunEnded) -> RunEnded:
        """Return the end of the run with the result of the check, or a failed end if the output is blocked."""
        if end.ending.status not in {"completed", "incomplete"}:
            # A failed or cancelled run has no answer to check. Events that are still held are dropped.
            return self.interrupt(end)
        found = await self._check_output(self._state.bodies())
        # The client waits for the check, so the run ends after it.
        ended_at = self._now()
        if (failure := self._checks.failure_for(found)) is not None:
            return self._withhold(self._failed(failure, found), end.items, end.turn, at=ended_at)
        # The closing events were built before the result was known. They are replaced by events that report the result.
        completed_at = None if end.ending.completed_at is None else unix(ended_at)
        ending = end.ending._replace(moderation=self._checks.public_result(found), completed_at=completed_at)
        body = {**end.response, "completed_at": completed_at}
        if ending.moderation is not None:
            body["moderation"] = ending.moderation
        before = end.events[: len(end.events) - len(closing(end.ending, end.response))]
        events = [*self._release(), *before, *closing(ending, body)]
        return replace(end, ending=ending, ended_at=ended_at, response=body, events=events)

    async def _check_output(self, bodies: Sequence[Body]) -> ModerationResult:
        with spans.span(spans.Activity.GUARDRAIL, "Output"):
            return await self._checks.check_output(bodies)

    def _failed(self, failure: Failure, found: ModerationResult) -> Ending:
        return failed(failure)._replace(moderation=self._checks.public_result(found))

    def _release(self) -> list[Event]:
        held, self._held = self._held, []
        return held

    def _withhold(
        self, ending: Ending, items: Sequence[OutputItem], turn: TurnRecord | None, *, at: datetime
    ) -> RunEnded:
        # The response has no output of the blocked turn. The turn's usage is kept: its tokens were spent.
        self._held = []
        state = self._state
        state.output = [item for item in state.output if not any(item is withheld for withheld in items)]
        state.pending = []
        return self._end(ending, at=at, turn=turn)
