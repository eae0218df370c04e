"""Pair tool calls with their outputs: every output needs its call, and every client tool call needs its output.

Models reject unpaired calls and outputs, often with error messages that do not name the cause.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from conversations.items import (
    ApplyPatchCall,
    ApplyPatchCallOutput,
    Compaction,
    ComputerCall,
    ComputerCallOutput,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    LocalShellCall,
    LocalShellCallOutput,
    McpApprovalRequest,
    McpApprovalResponse,
    ShellCall,
    ShellCallOutput,
    StoredItem,
    ToolSearchCall,
    ToolSearchOutput,
    plain_text,
)
from core.clock import now
from core.errors import ToolCallMismatch
from engine.events.types import Body
from responses.runs.store import CallUpdate

# Names of calls as in OpenAI's error messages, which add "output" to name the output.
_LABELS: dict[type[Any], str] = {
    FunctionCall: "function call",
    CustomToolCall: "custom tool call",
    ComputerCall: "computer call",
    ShellCall: "shell call",
    LocalShellCall: "local shell call",
    ApplyPatchCall: "apply patch call",
    ToolSearchCall: "tool search call",
}
_CALL_OF_OUTPUT: dict[type[Any], type[Any]] = {
    FunctionCallOutput: FunctionCall,
    CustomToolCallOutput: CustomToolCall,
    ComputerCallOutput: ComputerCall,
    ShellCallOutput: ShellCall,
    LocalShellCallOutput: LocalShellCall,
    ApplyPatchCallOutput: ApplyPatchCall,
    ToolSearchOutput: ToolSearchCall,
}
_Key = tuple[type[Any], str | None]
_OUTPUT_TYPES = frozenset(cls.model_fields["type"].default for cls in _CALL_OF_OUTPUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutput:
    """The output of a tool call as a client sent it."""

    call_id: str
    failed: bool
    text: str


def check(items: Iterable[StoredItem]) -> None:
    """Raise `ToolCallMismatch` for the first output without an earlier call, or the first call without an output."""
    seen: dict[_Key, str | None] = {}
    waiting: dict[_Key, StoredItem] = {}
    requests: set[str | None] = set()
    for item in items:
        match item:
            case McpApprovalRequest():
                requests.add(item.id)
            case McpApprovalResponse() if item.approval_request_id not in requests:
                name = item.approval_request_id
                raise ToolCallMismatch(
                    f"No approval request found for approval response with approval_request_id {name}."
                )
            case _ if type(item) in _LABELS:
                key = type(item), _call_id(item)
                # If a client sends the same item twice, it is the same call. But the same call id in another item is a
                # new call, because some models begin to number their calls from the start in each turn.
                if key not in seen or item.id is None or seen[key] != item.id:
                    waiting[key] = item
                seen[key] = item.id
            case _ if (call := _CALL_OF_OUTPUT.get(type(item))) is not None and _is_client_call(item):
                key = call, _call_id(item)
                if key not in seen:
                    raise ToolCallMismatch(f"No tool call found for {_LABELS[call]} output with call_id {key[1]}.")
                waiting.pop(key, None)
    for (call, call_id), item in waiting.items():
        if _is_client_call(item) and not getattr(item, "async_", None):
            raise ToolCallMismatch(f"No tool output found for {_LABELS[call]} {call_id}.")


def without_orphans(items: Sequence[StoredItem], *, settled: int) -> list[StoredItem]:
    """Return the items of a chain without calls or outputs whose counterpart was deleted together with its response.

    Removes outputs without a call and, among the first `settled` items, calls without an output. These items had their
    counterpart when they were created, so a response must have been deleted since then.
    """
    waiting: dict[_Key, int] = {}
    seen: set[_Key] = set()
    requests: set[str | None] = set()
    gone: set[int] = set()
    is_complete = True
    for index, item in enumerate(items):
        match item:
            case Compaction():
                # The calls of later outputs may be part of the compacted items, which are encrypted.
                is_complete = False
            case McpApprovalRequest():
                requests.add(item.id)
            case McpApprovalResponse() if is_complete and item.approval_request_id not in requests:
                gone.add(index)
            case _ if type(item) in _LABELS:
                key = type(item), _call_id(item)
                seen.add(key)
                if _is_client_call(item) and not getattr(item, "async_", None):
                    waiting[key] = index
            case _ if (call := _CALL_OF_OUTPUT.get(type(item))) is not None and _is_client_call(item):
                key = call, _call_id(item)
                waiting.pop(key, None)
                if is_complete and key not in seen:
                    gone.add(index)
    gone.update(index for index in waiting.values() if index < settled)
    return [item for index, item in enumerate(items) if index not in gone]


def call_output(body: dict[str, Any]) -> CallOutput | None:
    """Return the tool call output in an input item, or None for any other item."""
    if body["type"] not in _OUTPUT_TYPES:
        return None
    call_id = body["id"] if body["type"] == "local_shell_call_output" else body["call_id"]
    if call_id is None:
        return None
    return CallOutput(call_id=call_id, failed=body["status"] == "failed", text=plain_text(body))


def answered_calls(items: Iterable[Body], *, response_id: str | None) -> Sequence[CallUpdate]:
    """Return updates of an earlier response's calls, which end because these items contain their outputs."""
    if response_id is None:
        return ()
    at = now()
    return [
        CallUpdate(
            response_id=response_id,
            call_id=output.call_id,
            status="failed" if output.failed else "completed",
            ended_at=at,
            output=output.text,
        )
        for item in items
        if (output := call_output(item)) is not None
    ]


def _call_id(item: Any) -> str | None:
    # The output of a local shell call has no `call_id`: its own id names the call.
    found: str | None = item.id if isinstance(item, LocalShellCallOutput) else item.call_id
    return found


def _is_client_call(item: StoredItem) -> bool:
    # Hosted calls contain their output in the call item, or have no output, so they are not paired.
    match item:
        case ToolSearchCall() | ToolSearchOutput():
            return item.execution == "client"
        case ShellCall(environment=environment):
            return environment is None or environment.type == "local"
    return True
