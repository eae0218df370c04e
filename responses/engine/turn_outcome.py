"""What a finished turn comes to: the run goes on, ends, or asks once more because the answer cannot be accepted."""

from dataclasses import dataclass

from kernel.errors import Failure
from responses.engine import turn_request
from responses.engine.calls.dispatch import ClassifiedCalls, classify
from responses.engine.calls.port import Toolbox
from responses.engine.constraints import json_schema
from responses.engine.constraints.gate import Gate
from responses.engine.state import DiscardedTurn, RunContext, RunState
from responses.engine.turn import Finish, FunctionTool, TurnRequest, TurnResult

# So many turns in a row may do nothing but call what does not exist, or is wrong.
_FUTILE_TURNS = 2
TOO_LONG = "context_length_exceeded"


@dataclass(frozen=True, slots=True)
class ContinueRun:
    """There are calls that we make, or answer. `kept`: so many items of the turn stay, the others hold wrong calls."""

    calls: ClassifiedCalls
    kept: int


@dataclass(frozen=True, slots=True)
class RetryTurn:
    """The turn is discarded."""

    discarded: DiscardedTurn


@dataclass(frozen=True, slots=True)
class CompleteRun:
    """Nothing is left to do for us; calls to the client's functions may be outstanding."""


@dataclass(frozen=True, slots=True)
class EndIncomplete:
    """A limit or a filter cut the answer."""

    reason: str


@dataclass(frozen=True, slots=True)
class FailRun:
    """The run cannot go on. `discarded`: because of what the turn brought, which is not shown."""

    failure: Failure
    discarded: DiscardedTurn | None = None


TurnOutcome = ContinueRun | RetryTurn | CompleteRun | EndIncomplete | FailRun


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEvaluator:
    """Judges the turns of one run."""

    context: RunContext
    state: RunState
    tools: Toolbox

    async def evaluate(self, result: TurnResult, *, request: TurnRequest, gate: Gate | None) -> TurnOutcome:
        """What this turn comes to."""
        if result.failure is not None:
            return self._failed(result, result.failure)
        match result.finish:
            case Finish.LENGTH:
                return EndIncomplete("max_output_tokens")
            case Finish.CONTENT_FILTER:
                return EndIncomplete("content_filter")
        offered = {tool.name: tool for tool in request.sampling.tools}
        if wrong := self._choice_defect(result, offered):
            return self._rejected(wrong, result, gate)
        calls = await classify(result, offered=offered, context=self.context, state=self.state, tools=self.tools)
        if calls.needs_server:
            return self._bounded(calls, result, gate) or self._go_on(calls, result, gate, offered)
        # Words beside calls are no answer yet: it comes when the client has answered the calls.
        promised = self.context.sampling.response_format if not result.calls else None
        if wrong := await json_schema.defect(result.items, promised):
            return self._rejected(wrong, result, gate)
        return CompleteRun()

    def _failed(self, result: TurnResult, failure: Failure) -> FailRun | RetryTurn:
        """An input that is too long for the upstream is cut, once and where the client wants that."""
        cuts = self.context.parameters.get("truncation") == "auto" and not self.state.input_too_long
        if failure.code == TOO_LONG and cuts and not result.items:
            return RetryTurn(DiscardedTurn(defect=None))
        return FailRun(failure)

    def _choice_defect(self, result: TurnResult, offered: dict[str, FunctionTool]) -> str | None:
        due = turn_request.required_choice(self.context, self.state)
        called = [call.name for call in result.calls if call.name in offered]
        if due is None:
            return None
        if isinstance(due, FunctionTool):
            right = any(due.name in {name, self.tools.kind(name)} for name in called)
            return None if right else f"The model did not call the tool '{due.name}', which it had to."
        return None if called else "The model did not call a tool, though it had to."

    def _rejected(self, wrong: str, result: TurnResult, gate: Gate | None) -> RetryTurn | FailRun:
        """Once in a row the model is told, and asked again; what was told already cannot be taken back."""
        failure = Failure(code="server_error", message=wrong)
        if gate is None or any(item["type"] == "message" for item in result.items[: gate.shown]):
            return FailRun(failure)
        discarded = DiscardedTurn(defect=wrong, items=result.items[gate.shown :])
        if self.state.rejected is not None or self._is_last_turn:
            return FailRun(failure, discarded)
        return RetryTurn(discarded)

    def _go_on(
        self, calls: ClassifiedCalls, result: TurnResult, gate: Gate | None, offered: dict[str, FunctionTool]
    ) -> ContinueRun:
        refused = {call.item_id for call, _, _ in calls.refused}
        if gate is None or not any(item["id"] in refused for item in result.items):
            return ContinueRun(calls, kept=len(result.items))
        calls.withhold({item["id"] for item in result.items[gate.shown :]}, offered)
        return ContinueRun(calls, kept=gate.shown)

    def _bounded(self, calls: ClassifiedCalls, result: TurnResult, gate: Gate | None) -> FailRun | None:
        """Every run ends: so many turns it may take, and so many of them without getting anywhere."""
        if self._is_last_turn:
            message = f"The run was stopped after {self.context.max_turns} turns."
            return FailRun(Failure(code="server_error", message=message))
        if not calls.makes_progress and self.state.unproductive_turns >= _FUTILE_TURNS:
            _, _, reason = calls.refused[0]
            message = f"The model did not stop making calls that cannot be made: {reason.removeprefix('error: ')}"
            unseen = result.items[gate.shown :] if gate is not None else []
            return FailRun(Failure(code="server_error", message=message), DiscardedTurn(defect=reason, items=unseen))
        return None

    @property
    def _is_last_turn(self) -> bool:
        return self.state.turn + 1 >= self.context.max_turns
