"""Call dispatch: decides for each call of a turn whether the server runs it, the client runs it, or it is refused."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

import orjson

from conversations.items import UPSTREAM_CALL_ID
from engine.calls.client_tools import shape_defect
from engine.calls.outcomes import Execute, Refuse, RequireApproval
from engine.calls.toolbox import Toolbox
from engine.constraints.grammar import text_defect
from engine.converter.calls import CUSTOM_INPUT
from engine.events.types import Body
from engine.state import ContextInsertion, RunContext, RunState, call_with_output
from engine.steps import CallRecord, CallState
from engine.turn import Call, CallForm, FunctionTool, TurnResult

_CLIENT_KIND = "function"
_WITHHELD = "error: this call was not made because another call of the same turn is invalid; make both again"


@dataclass(slots=True)
class ClassifiedCalls:
    """Calls of a turn, grouped by their handling, each group in call order.

    Entries of `hosted` contain the kind of tool, entries of `awaiting_approval` the kind and the approval request,
    entries of `refused` the kind and the reason, which the model reads as the output.
    """

    hosted: list[tuple[Call, str]] = field(default_factory=list)
    awaiting_approval: list[tuple[Call, str, RequireApproval]] = field(default_factory=list)
    refused: list[tuple[Call, str, str]] = field(default_factory=list)
    for_client: list[Call] = field(default_factory=list)

    @property
    def needs_server(self) -> bool:
        """True if the server has to handle at least one of the calls."""
        return bool(self.hosted or self.awaiting_approval or self.refused)

    @property
    def makes_progress(self) -> bool:
        """True if at least one call is valid."""
        return bool(self.hosted or self.awaiting_approval or self.for_client)

    @property
    def approval_requests(self) -> list[Body]:
        """Approval request items, in the order of the calls."""
        return [{**ask.item, UPSTREAM_CALL_ID: call.call_id} for call, _, ask in self.awaiting_approval]

    def withhold(self, item_ids: Container[str], offered: Mapping[str, FunctionTool]) -> None:
        """Refuse the client's calls among these items. The items were dropped because another call was invalid."""
        for call in [call for call in self.for_client if call.item_id in item_ids]:
            self.for_client.remove(call)
            self.refused.append((_as_upstream_call(call, offered.get(call.name)), _CLIENT_KIND, _WITHHELD))

    def records(self, *, turn: int, after: int) -> list[CallRecord]:
        """Return the calls as records. Refused calls are inserted after the first `after` items of the output."""
        return [
            *(CallRecord(call=call, turn=turn, kind=kind, state="pending") for call, kind in self.hosted),
            *(
                CallRecord(call=call, turn=turn, kind=kind, state="asked", ask=ask)
                for call, kind, ask in self.awaiting_approval
            ),
            *(
                CallRecord(call=call, turn=turn, kind=kind, state="refused", answer=reason, after=after)
                for call, kind, reason in self.refused
            ),
            *(CallRecord(call=call, turn=turn, kind=_CLIENT_KIND, state="waiting") for call in self.for_client),
        ]


async def classify(
    result: TurnResult, *, offered: Mapping[str, FunctionTool], context: RunContext, state: RunState, tools: Toolbox
) -> ClassifiedCalls:
    """Classify the calls of a finished turn. `offered` are the functions of its request by name.

    `max_tool_calls` limits the hosted calls of the whole run, as in OpenAI's API.
    """
    limit = context.parameters.get("max_tool_calls")
    shown = {item["id"] for item in result.items}
    found = ClassifiedCalls()
    for call in result.calls:
        tool = tools.find(call.name)
        if tool is None:
            # Not hosted: the client runs it, provided that the turn has an item for it.
            defect = await _client_defect(call, offered.get(call.name), is_shown=call.item_id in shown)
            if defect is None:
                found.for_client.append(call)
            else:
                found.refused.append(
                    (_as_upstream_call(call, offered.get(call.name)), _CLIENT_KIND, f"error: {defect}")
                )
        elif limit is not None and state.hosted_calls + len(found.hosted) >= limit:
            # Refused instead of failing the run: the model can still answer with the results that it has.
            reason = f"error: this call was not made; the limit of {limit} tool calls is reached"
            found.refused.append((call, tool.kind, reason))
        else:
            match tool.decide(call):
                case Execute():
                    found.hosted.append((call, tool.kind))
                case RequireApproval() as ask:
                    found.awaiting_approval.append((call, tool.kind, ask))
                case Refuse(reason):
                    found.refused.append((call, tool.kind, reason))
    return found


def _as_upstream_call(call: Call, tool: FunctionTool | None) -> Call:
    # The refused call is sent back to the upstream, which knows custom tools only as functions with JSON arguments.
    if tool is None or tool.form is not CallForm.CUSTOM:
        return call
    return replace(call, arguments=orjson.dumps({CUSTOM_INPUT: call.arguments}).decode())


async def _client_defect(call: Call, tool: FunctionTool | None, *, is_shown: bool) -> str | None:
    if tool is not None and (defect := shape_defect(tool, call.arguments)) is not None:
        return defect
    if tool is not None and tool.grammar is not None:
        defect = await text_defect(tool.grammar, call.arguments)
        return f"The input of '{tool.name}' does not match its grammar: {defect}." if defect else None
    return None if is_shown else f"There is no tool named {call.name!r}."


def unexecuted(calls: Sequence[Call], *, turn: int, tools: Toolbox) -> list[CallRecord]:
    """Return call records for the last turn of a run. Only calls for the client can still be run after it."""
    records = []
    for call in calls:
        kind = tools.kind(call.name)
        state: CallState = "waiting" if kind is None else "refused"
        records.append(CallRecord(call=call, turn=turn, kind=kind or _CLIENT_KIND, state=state))
    return records


def refusal_insertion(record: CallRecord) -> ContextInsertion | None:
    """Return the insertion that shows a refused call to the model; None for any other call."""
    if record.answer is None:
        return None
    call = record.call
    return call_with_output(
        after=record.after,
        call_id=call.call_id,
        name=call.name,
        arguments=call.arguments,
        output=record.answer,
    )
