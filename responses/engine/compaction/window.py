"""Fits a conversation into the window of a model: what was said first is left out first.

What a developer or the system said stays, and so does the last word of the user. A call goes with its output, and with
the reasoning that led to it. How many tokens something is, is an estimate.
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
from responses.engine.attachments import Attachments
from responses.engine.compaction import token_estimate
from responses.engine.turn import Sampling

_NOTHING = Sampling()


def is_too_long(
    *,
    window: int | None,
    instructions: str | None,
    items: Sequence[StoredItem],
    sampling: Sampling,
    attachments: Attachments | None = None,
) -> bool:
    """Whether a model cannot read all of this."""
    if window is None:
        return False
    read = token_estimate.input_tokens(
        instructions=instructions, items=items, sampling=sampling, attachments=attachments
    )
    return read > window


def fit(
    items: Sequence[StoredItem],
    *,
    window: int | None,
    instructions: str | None,
    sampling: Sampling,
    halved: bool,
    attachments: Attachments | None = None,
) -> list[StoredItem]:
    """The items that are left when enough was left out, or all that may be. `halved`: whatever the window, half of
    what there is was too much."""
    around = token_estimate.input_tokens(instructions=instructions, items=(), sampling=sampling)
    sizes = [_size(item, attachments) for item in items]
    room = min(
        window - around if window is not None else sum(sizes),
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


def _size(item: StoredItem, attachments: Attachments | None) -> int:
    return token_estimate.input_tokens(instructions=None, items=[item], sampling=_NOTHING, attachments=attachments)


def _units(items: Sequence[StoredItem]) -> list[set[int]]:
    """The positions that may be left out, together where they belong together, in the order of their beginnings."""
    kept = _kept(items)
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
    """What a call and its output have in common, whatever they call it; a search of the server's has no id at all."""
    match item:
        case LocalShellCallOutput() | McpApprovalRequest():
            return item.id
        case McpApprovalResponse():
            return item.approval_request_id
        case ToolSearchCall() | ToolSearchOutput():
            return item.call_id or item.execution
    return getattr(item, "call_id", None)


def _kept(items: Sequence[StoredItem]) -> set[int]:
    users = [position for position, item in enumerate(items) if isinstance(item, InputMessage) and item.role == "user"]
    rules = {p for p, item in enumerate(items) if isinstance(item, InputMessage) and item.role != "user"}
    settings = {p for p, item in enumerate(items) if item.type in {"additional_tools", "configuration_update"}}
    return rules | settings | set(users[-1:])
