"""Calls and the outputs that answer them: every output answers a call, and every call that the client was to run has
its output. Models refuse anything else with obscure words."""

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
from kernel.errors import ToolCallMismatch

# In OpenAI's words; an output is called "… output".
_WORDS: dict[type[Any], str] = {
    FunctionCall: "function call",
    CustomToolCall: "custom tool call",
    ComputerCall: "computer call",
    ShellCall: "shell call",
    LocalShellCall: "local shell call",
    ApplyPatchCall: "apply patch call",
    ToolSearchCall: "tool search call",
}
_ANSWERS: dict[type[Any], type[Any]] = {
    FunctionCallOutput: FunctionCall,
    CustomToolCallOutput: CustomToolCall,
    ComputerCallOutput: ComputerCall,
    ShellCallOutput: ShellCall,
    LocalShellCallOutput: LocalShellCall,
    ApplyPatchCallOutput: ApplyPatchCall,
    ToolSearchOutput: ToolSearchCall,
}
_Key = tuple[type[Any], str | None]
_OUTPUT_TYPES = frozenset(cls.model_fields["type"].default for cls in _ANSWERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutput:
    """What a client says became of a call."""

    call_id: str
    failed: bool
    text: str


def check(items: Iterable[StoredItem]) -> None:
    """Raise `ToolCallMismatch` for the first output without its call before it, or the first call without an output."""
    seen: dict[_Key, str | None] = {}
    waiting: dict[_Key, StoredItem] = {}
    requests: set[str | None] = set()
    for item in items:
        match item:
            case McpApprovalRequest():
                requests.add(item.id)
            case McpApprovalResponse() if item.approval_request_id not in requests:
                name = item.approval_request_id
                message = f"No approval request found for approval response with approval_request_id {name}."
                raise ToolCallMismatch(message)
            case _ if type(item) in _WORDS:
                key = type(item), _call_id(item)
                # A client may repeat a call. Another call may have its id: some models count anew in each turn.
                if key not in seen or item.id is None or seen[key] != item.id:
                    waiting[key] = item
                seen[key] = item.id
            case _ if (call := _ANSWERS.get(type(item))) is not None and _is_the_clients(item):
                key = call, _call_id(item)
                if key not in seen:
                    raise ToolCallMismatch(f"No tool call found for {_WORDS[call]} output with call_id {key[1]}.")
                waiting.pop(key, None)
    for (call, call_id), item in waiting.items():
        if _is_the_clients(item) and not getattr(item, "async_", None):
            raise ToolCallMismatch(f"No tool output found for {_WORDS[call]} {call_id}.")


def without_orphans(items: Sequence[StoredItem], *, settled: int) -> list[StoredItem]:
    """The items of a chain without those whose other half was deleted with a response between them: outputs that answer
    no call, and among the first `settled`, calls that nothing answers. The request that brought them was whole.

    A compaction item may hold the calls of outputs behind it, out of sight.
    """
    waiting: dict[_Key, int] = {}
    seen: set[_Key] = set()
    requests: set[str | None] = set()
    gone: set[int] = set()
    is_whole = True
    for index, item in enumerate(items):
        match item:
            case Compaction():
                is_whole = False
            case McpApprovalRequest():
                requests.add(item.id)
            case McpApprovalResponse() if is_whole and item.approval_request_id not in requests:
                gone.add(index)
            case _ if type(item) in _WORDS:
                key = type(item), _call_id(item)
                seen.add(key)
                if _is_the_clients(item) and not getattr(item, "async_", None):
                    waiting[key] = index
            case _ if (call := _ANSWERS.get(type(item))) is not None and _is_the_clients(item):
                key = call, _call_id(item)
                waiting.pop(key, None)
                if is_whole and key not in seen:
                    gone.add(index)
    gone.update(index for index in waiting.values() if index < settled)
    return [item for index, item in enumerate(items) if index not in gone]


def call_output(body: dict[str, Any]) -> CallOutput | None:
    """What an item of the input answers; None for everything but outputs."""
    if body["type"] not in _OUTPUT_TYPES:
        return None
    call_id = body["id"] if body["type"] == "local_shell_call_output" else body["call_id"]
    if call_id is None:
        return None
    return CallOutput(call_id=call_id, failed=body["status"] == "failed", text=plain_text(body))


def _call_id(item: Any) -> str | None:
    """A local shell's output names its call by its own id."""
    found: str | None = item.id if isinstance(item, LocalShellCallOutput) else item.call_id
    return found


def _is_the_clients(item: StoredItem) -> bool:
    """Whether the client runs such a call. What the server runs has its output elsewhere, or none."""
    match item:
        case ToolSearchCall() | ToolSearchOutput():
            return item.execution == "client"
        case ShellCall(environment=environment):
            return environment is None or environment.type == "local"
    return True
