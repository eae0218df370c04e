"""Truncation: fits a conversation into the context window of a model by dropping the oldest items first.

Messages of developers and the system are kept, and so is the user's last message. A call is dropped together with its
output and the reasoning before it. Sizes are estimates.
"""

from collections.abc import Sequence

from conversations.items import (
    InputMessage,
    LocalShellCallOutput,
    McpApprovalRequest,
    McpApprovalResponse,
    Reasoning,
    StoredItem,
    ToolSearchCall,
    ToolSearchOutput,
)
from engine.attachments import Attachments
from engine.compaction import token_estimate
from engine.turn import Sampling

_NOTHING = Sampling()


def is_too_long(
    *,
    window: int | None,
    instructions: str | None,
    items: Sequence[StoredItem],
    sampling: Sampling,
    attachments: Attachments | None = None,
) -> bool:
    """Return True if the estimated input exceeds the context window (tokens; None: unknown)."""
    if window is None:
        return False
    input_tokens = token_estimate.input_tokens(
        instructions=instructions, items=items, sampling=sampling, attachments=attachments
    )
    return input_tokens > window


def fit(
    items: Sequence[StoredItem],
    *,
    window: int | None,
    instructions: str | None,
    sampling: Sampling,
    halved: bool,
    attachments: Attachments | None = None,
) -> list[StoredItem]:
    """Return the items that fit. Items that must not be dropped are returned even if they do not fit.

    `halved`: keep at most half of the items' size, because the upstream has rejected the whole input as too long.
    """
    overhead = token_estimate.input_tokens(instructions=instructions, items=(), sampling=sampling)
    sizes = [
        token_estimate.input_tokens(instructions=None, items=[item], sampling=_NOTHING, attachments=attachments)
        for item in items
    ]
    room = min(
        window - overhead if window is not None else sum(sizes),
        sum(sizes) // 2 if halved else sum(sizes),
    )
    left = sum(sizes)
    dropped: set[int] = set()
    for unit in _units(items):
        if left <= room:
            break
        dropped |= unit
        left -= sum(sizes[position] for position in unit)
    return [item for position, item in enumerate(items) if position not in dropped]


def _units(items: Sequence[StoredItem]) -> list[set[int]]:
    # Sets of positions that may only be dropped together, in the order of their first position. Upstreams reject calls
    # without outputs, outputs without calls, and reasoning without the call that follows it.
    users = [position for position, item in enumerate(items) if isinstance(item, InputMessage) and item.role == "user"]
    rules = {p for p, item in enumerate(items) if isinstance(item, InputMessage) and item.role != "user"}
    settings = {p for p, item in enumerate(items) if item.type in {"additional_tools", "configuration_update"}}
    kept = rules | settings | set(users[-1:])
    units: list[set[int]] = []
    of_call: dict[str, set[int]] = {}
    reasoning: set[int] = set()
    for position, item in enumerate(items):
        if position in kept:
            continue
        if isinstance(item, Reasoning):
            reasoning.add(position)
            continue
        call_id = _call_id(item)
        if call_id is not None and call_id in of_call:
            of_call[call_id].add(position)
            continue
        unit = reasoning | {position}
        reasoning = set()
        units.append(unit)
        if call_id is not None:
            of_call[call_id] = unit
    return units


def _call_id(item: StoredItem) -> str | None:
    # The id that a call and its output share. Hosted tool searches have no id, so their `execution` is used.
    match item:
        case LocalShellCallOutput() | McpApprovalRequest():
            return item.id
        case McpApprovalResponse():
            return item.approval_request_id
        case ToolSearchCall() | ToolSearchOutput():
            return item.call_id or item.execution
    return getattr(item, "call_id", None) if "call_id" in type(item).model_fields else None
