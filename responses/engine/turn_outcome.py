"""What a finished turn comes to: the run goes on, ends, or asks once more because the answer cannot be accepted."""

from dataclasses import dataclass

from kernel.errors import Failure
from responses.engine import turn_request
from responses.engine.calls.dispatch import Sorted, sort_out
from responses.engine.calls.port import Toolbox
from responses.engine.constraints import json_schema
from responses.engine.constraints.gate import Gate
from responses.engine.state import Discarded, RunContext, RunState
from responses.engine.turn import Finish, FunctionTool, TurnRequest, TurnResult

# So many turns in a row may do nothing but call what does not exist, or is wrong.
_FUTILE_TURNS = 2
TOO_LONG = "context_length_exceeded"


@dataclass(frozen=True, slots=True)
class GoOn:
    """There are calls that we make, or answer. `kept`: so many items of the turn stay, the others hold wrong calls."""

    calls: Sorted
    kept: int


@dataclass(frozen=True, slots=True)
class AskAgain:
    """The turn is discarded."""

    discarded: Discarded


@dataclass(frozen=True, slots=True)
class Finished:
    """Nothing is left to do for us; calls to the client's functions may be outstanding."""


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A limit or a filter cut the answer."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The run cannot go on. `discarded`: because of what the turn brought, which is not shown."""

    failure: Failure
    discarded: Discarded | None = None


Verdict = GoOn | AskAgain | Finished | Incomplete | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Court:
    """Judges the turns of one run."""

    context: RunContext
    state: RunState
    tools: Toolbox

    async def judge(self, result: TurnResult, *, request: TurnRequest, gate: Gate | None) -> Verdict:
        """What this turn comes to."""
        if result.failure is not None:
            return self._failed(result, result.failure)
        match result.finish:
            case Finish.LENGTH:
                return Incomplete("max_output_tokens")
            case Finish.CONTENT_FILTER:
                return Incomplete("content_filter")
        offered = {tool.name: tool for tool in request.sampling.tools}
        if wrong := self._choice_defect(result, offered):
            return self._rejected(wrong, result, gate)
        calls = await sort_out(result, offered=offered, context=self.context, state=self.state, tools=self.tools)
        if calls.concern_us:
            return self._bounded(calls, result, gate) or self._go_on(calls, result, gate, offered)
        # Words beside calls are no answer yet: it comes when the client has answered the calls.
        promised = self.context.sampling.response_format if not result.calls else None
        if wrong := await json_schema.defect(result.items, promised):
            return self._rejected(wrong, result, gate)
        return Finished()

    def _failed(self, result: TurnResult, failure: Failure) -> Failed | AskAgain:
        """An input that is too long for the upstream is cut, once and where the client wants that."""
        cuts = self.context.parameters.get("truncation") == "auto" and not self.state.shortened
        if failure.code == TOO_LONG and cuts and not result.items:
            return AskAgain(Discarded(defect=None))
        return Failed(failure)

    def _choice_defect(self, result: TurnResult, offered: dict[str, FunctionTool]) -> str | None:
        due = turn_request.due(self.context, self.state)
        called = [call.name for call in result.calls if call.name in offered]
        if due is None:
            return None
        if isinstance(due, FunctionTool):
            right = any(due.name in {name, self.tools.kind(name)} for name in called)
            return None if right else f"The model did not call the tool '{due.name}', which it had to."
        return None if called else "The model did not call a tool, though it had to."

    def _rejected(self, wrong: str, result: TurnResult, gate: Gate | None) -> AskAgain | Failed:
        """Once in a row the model is told, and asked again; what was told already cannot be taken back."""
        failure = Failure(code="server_error", message=wrong)
        if gate is None or any(item["type"] == "message" for item in result.items[: gate.shown]):
            return Failed(failure)
        discarded = Discarded(defect=wrong, items=result.items[gate.shown :])
        if self.state.repairs is not None or self._is_last_turn:
            return Failed(failure, discarded)
        return AskAgain(discarded)

    def _go_on(self, calls: Sorted, result: TurnResult, gate: Gate | None, offered: dict[str, FunctionTool]) -> GoOn:
        refused = {call.item_id for call, _, _ in calls.refused}
        if gate is None or not any(item["id"] in refused for item in result.items):
            return GoOn(calls, kept=len(result.items))
        calls.withhold({item["id"] for item in result.items[gate.shown :]}, offered)
        return GoOn(calls, kept=gate.shown)

    def _bounded(self, calls: Sorted, result: TurnResult, gate: Gate | None) -> Failed | None:
        """Every run ends: so many turns it may take, and so many of them without getting anywhere."""
        if self._is_last_turn:
            message = f"The run was stopped after {self.context.max_turns} turns."
            return Failed(Failure(code="server_error", message=message))
        if not calls.gets_on and self.state.futile_turns >= _FUTILE_TURNS:
            _, _, reason = calls.refused[0]
            message = f"The model did not stop making calls that cannot be made: {reason.removeprefix('error: ')}"
            unseen = result.items[gate.shown :] if gate is not None else []
            return Failed(Failure(code="server_error", message=message), Discarded(defect=reason, items=unseen))
        return None

    @property
    def _is_last_turn(self) -> bool:
        return self.state.turn + 1 >= self.context.max_turns
