"""Who makes the calls that a turn asked for: we, the client, somebody once it is approved of, or nobody."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

import orjson

from responses.engine.calls.client_tools import shape_defect
from responses.engine.calls.outcomes import Execute, Refuse, RequireApproval
from responses.engine.calls.port import Toolbox
from responses.engine.chat.call_segments import CUSTOM_INPUT
from responses.engine.constraints.grammar import text_defect
from responses.engine.events.types import Body
from responses.engine.state import ContextInsertion, RunContext, RunState, call_with_output
from responses.engine.steps import CallRecord, CallState
from responses.engine.turn import Call, CallForm, FunctionTool, TurnResult

_CLIENT_KIND = "function"
_WITHHELD = "error: this call was not made, since another one beside it is wrong; make both again"


@dataclass(slots=True)
class ClassifiedCalls:
    """The calls of a turn in their order; each list has a word on every call that it holds."""

    hosted: list[tuple[Call, str]] = field(default_factory=list)
    awaiting_approval: list[tuple[Call, str, RequireApproval]] = field(default_factory=list)
    refused: list[tuple[Call, str, str]] = field(default_factory=list)
    for_client: list[Call] = field(default_factory=list)

    @property
    def needs_server(self) -> bool:
        """Whether there is more to do than to hand the calls to the client."""
        return bool(self.hosted or self.awaiting_approval or self.refused)

    @property
    def makes_progress(self) -> bool:
        """Whether anybody makes a call."""
        return bool(self.hosted or self.awaiting_approval or self.for_client)

    @property
    def approval_requests(self) -> list[Body]:
        """The items that ask for approval."""
        return [ask.item for _, _, ask in self.awaiting_approval]

    def withhold(self, item_ids: Container[str], offered: Mapping[str, FunctionTool]) -> None:
        """The client does not get to see these items, since a call among them is wrong: the others go with it."""
        for call in [call for call in self.for_client if call.item_id in item_ids]:
            self.for_client.remove(call)
            self.refused.append((_as_upstream_call(call, offered.get(call.name)), _CLIENT_KIND, _WITHHELD))

    def records(self, *, turn: int, after: int) -> list[CallRecord]:
        """The calls as they are stored; answers of refused ones stand behind `after` items of the output."""
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
    """Sort the calls of a finished turn: the client makes those that the turn has shown it.

    `max_tool_calls` counts those that we make, over the whole run.
    """
    limit = context.parameters.get("max_tool_calls")
    shown = {item["id"] for item in result.items}
    found = ClassifiedCalls()
    for call in result.calls:
        kind = tools.kind(call.name)
        if kind is None:
            wrong = await _client_defect(call, offered.get(call.name), is_shown=call.item_id in shown)
            if wrong is None:
                found.for_client.append(call)
            else:
                found.refused.append((_as_upstream_call(call, offered.get(call.name)), _CLIENT_KIND, f"error: {wrong}"))
        elif limit is not None and state.hosted_calls + len(found.hosted) >= limit:
            reason = f"error: this call was not made; no more than {limit} calls of tools are allowed here"
            found.refused.append((call, kind, reason))
        else:
            _decide(call, kind, tools, found)
    return found


def _as_upstream_call(call: Call, tool: FunctionTool | None) -> Call:
    """A call as the upstream made it: of custom tools it knows functions only, whose arguments are JSON."""
    if tool is None or tool.form is not CallForm.CUSTOM:
        return call
    return replace(call, arguments=orjson.dumps({CUSTOM_INPUT: call.arguments}).decode())


async def _client_defect(call: Call, tool: FunctionTool | None, *, is_shown: bool) -> str | None:
    """Why the client does not get to make a call."""
    if tool is not None and (wrong := shape_defect(tool, call.arguments)) is not None:
        return wrong
    if tool is not None and tool.grammar is not None:
        wrong = await text_defect(tool.grammar, call.arguments)
        return f"The input of '{tool.name}' breaks its grammar: {wrong}." if wrong else None
    return None if is_shown else f"There is no tool named {call.name!r}."


def _decide(call: Call, kind: str, tools: Toolbox, found: ClassifiedCalls) -> None:
    match tools.decide(call):
        case Execute():
            found.hosted.append((call, kind))
        case RequireApproval() as ask:
            found.awaiting_approval.append((call, kind, ask))
        case Refuse(reason):
            found.refused.append((call, kind, reason))


def unexecuted(calls: Sequence[Call], *, turn: int, tools: Toolbox) -> list[CallRecord]:
    """The calls of the last turn of a run: whoever would make them, it is not us."""
    records = []
    for call in calls:
        kind = tools.kind(call.name)
        state: CallState = "waiting" if kind is None else "refused"
        records.append(CallRecord(call=call, turn=turn, kind=kind or _CLIENT_KIND, state=state))
    return records


def refusal_insertion(record: CallRecord) -> ContextInsertion | None:
    """What the model reads of a call that nobody makes."""
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
