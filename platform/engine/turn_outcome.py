"""Outcome of a finished turn: the run continues or ends, or the turn is retried because its answer is not accepted."""

from dataclasses import dataclass

from core.errors import ContextTooLong, Failure, UpstreamError
from core.records import record
from engine import turn_request
from engine.calls.dispatch import ClassifiedCalls, classify
from engine.calls.toolbox import Toolbox
from engine.constraints import json_schema
from engine.constraints.gate import Gate
from engine.state import DiscardedTurn, RunContext, RunState
from engine.turn import Finish, FunctionTool, TurnRequest, TurnResult

# Consecutive turns that may consist only of invalid calls. It stops a model that repeats its mistake long before the
# limit on turns does.
_MAX_UNPRODUCTIVE_TURNS = 2


@dataclass(frozen=True, slots=True)
class ContinueRun:
    """Continue with tool calls that the server runs or refuses.

    The first `accepted_items` items of the turn stay in the output; the others contain refused calls.
    """

    calls: ClassifiedCalls
    accepted_items: int


@dataclass(frozen=True, slots=True)
class RetryTurn:
    """Discard the turn and call the model again."""

    discarded: DiscardedTurn


@dataclass(frozen=True, slots=True)
class CompleteRun:
    """End the run as completed. Calls of client tools may be outstanding."""


@dataclass(frozen=True, slots=True)
class EndIncomplete:
    """End the run as incomplete: a token limit or a content filter cut the answer. `reason` is the API's value."""

    reason: str


@dataclass(frozen=True, slots=True)
class FailRun:
    """End the run as failed. `discarded` is set if the turn's output is the cause; then the output is not shown."""

    failure: Failure
    discarded: DiscardedTurn | None = None


TurnOutcome = ContinueRun | RetryTurn | CompleteRun | EndIncomplete | FailRun


@record
class TurnEvaluator:
    """Evaluates the turns of one run."""

    context: RunContext
    state: RunState
    tools: Toolbox

    async def evaluate(self, result: TurnResult, *, request: TurnRequest, gate: Gate | None) -> TurnOutcome:
        """Return the outcome of a finished turn. `gate` is the gate that its events passed, if any."""
        if result.failure is not None:
            return self._after_failure(result, result.failure)
        match result.finish:
            case Finish.LENGTH:
                return EndIncomplete("max_output_tokens")
            case Finish.CONTENT_FILTER:
                return EndIncomplete("content_filter")
        offered = {tool.name: tool for tool in request.sampling.tools}
        if defect := self._choice_defect(result, offered):
            return self._reject(defect, result, gate)
        calls = await classify(result, offered=offered, context=self.context, state=self.state, tools=self.tools)
        if calls.needs_server:
            return self._limit_failure(calls, result, gate) or self._continue(calls, result, gate, offered)
        # Text next to calls is not the answer yet, so it need not match the format: the answer follows once the client
        # has sent the outputs.
        promised = self.context.sampling.response_format if not result.calls else None
        if defect := await json_schema.defect(result.items, promised):
            return self._reject(defect, result, gate)
        return CompleteRun()

    def _after_failure(self, result: TurnResult, failure: Failure) -> FailRun | RetryTurn:
        # With `truncation: "auto"` an input that the upstream rejects as too long is halved, but only once per run: a
        # second rejection fails it, so that a run cannot retry without end.
        truncates = self.context.parameters.get("truncation") == "auto" and not self.state.input_too_long
        if failure.code == ContextTooLong.default_code and truncates and not result.items:
            return RetryTurn(DiscardedTurn(defect=None))
        return FailRun(failure)

    def _choice_defect(self, result: TurnResult, offered: dict[str, FunctionTool]) -> str | None:
        required = turn_request.required_choice(self.context, self.state)
        called = [call.name for call in result.calls if call.name in offered]
        if required is None:
            return None
        if isinstance(required, FunctionTool):
            # A choice may name a kind of hosted tool ("web_search"), which offers functions of other names.
            matches = any(required.name in {name, self.tools.kind(name)} for name in called)
            return None if matches else f"The model did not call the tool '{required.name}', as `tool_choice` requires."
        return None if called else "The model did not call a tool, as `tool_choice` requires."

    def _reject(self, defect: str, result: TurnResult, gate: Gate | None) -> RetryTurn | FailRun:
        failure = Failure.of(UpstreamError(defect))
        shown = len(result.items) if gate is None else gate.shown
        # Text that was already streamed cannot be taken back, so there is nothing to retry.
        if any(item["type"] != "reasoning" for item in result.items[:shown]):
            return FailRun(failure)
        discarded = DiscardedTurn(defect=defect, items=result.items[shown:])
        # Only one retry in a row: every further one costs a whole turn.
        if self.state.rejected is not None or self._is_last_turn:
            return FailRun(failure, discarded)
        return RetryTurn(discarded)

    def _continue(
        self, calls: ClassifiedCalls, result: TurnResult, gate: Gate | None, offered: dict[str, FunctionTool]
    ) -> ContinueRun:
        refused = {call.item_id for call, _, _ in calls.refused}
        if gate is None or not any(item["id"] in refused for item in result.items):
            return ContinueRun(calls, accepted_items=len(result.items))
        # The gate holds back everything from the first doubtful item on, including valid calls. The client never sees
        # these calls, so they are refused too, and the model repeats them.
        calls.withhold({item["id"] for item in result.items[gate.shown :]}, offered)
        return ContinueRun(calls, accepted_items=gate.shown)

    def _limit_failure(self, calls: ClassifiedCalls, result: TurnResult, gate: Gate | None) -> FailRun | None:
        # Guarantees that every run ends: it has a maximum number of turns, and few of them may be unproductive.
        if self._is_last_turn:
            message = f"The response exceeded the limit of {self.context.max_turns} turns."
            return FailRun(Failure.of(UpstreamError(message)))
        if not calls.makes_progress and self.state.unproductive_turns >= _MAX_UNPRODUCTIVE_TURNS:
            _, _, reason = calls.refused[0]
            message = f"The model repeatedly made invalid tool calls: {reason.removeprefix('error: ')}"
            unseen = result.items[gate.shown :] if gate is not None else []
            return FailRun(Failure.of(UpstreamError(message)), DiscardedTurn(defect=reason, items=unseen))
        return None

    @property
    def _is_last_turn(self) -> bool:
        return self.state.turn + 1 >= self.context.max_turns
