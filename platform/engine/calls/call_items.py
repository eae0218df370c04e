"""Final items of hosted calls, and the events that show them.

The items are determined as soon as a call is sent to its tool, and again when it has returned. A run that ends before
it can close the item of a call therefore needs neither the tool nor its process to record what the call did.
"""

from collections.abc import Container

from conversations.items import HOSTED_CALLS, UPSTREAM_CALL_ID, project
from core.ids import new_id
from engine.calls.item_events import after_result, announced, before_result, whole_item
from engine.calls.outcomes import OUTCOME_UNKNOWN, ToolResult
from engine.calls.toolbox import HostedTool
from engine.events.types import Body, Event, OutputItemAdded, OutputItemDone
from engine.state import OutputItem, PendingCall
from engine.turn import Call

# These item types have no status `incomplete` in the API.
_WITHOUT_INCOMPLETE = frozenset({"image_generation_call"})
# Fields that have a value only after the call.
_RESULT_FIELDS = frozenset({"output", "outputs", "result", "error"})


def final_items(tool: HostedTool, call: Call, first: Body, result: ToolResult) -> tuple[Body, ...]:
    """Return the items of a call with this result, as they are stored. `first` is its first item without output."""
    closed, *more = tool.close_items(first, call, result)
    if result.error == OUTCOME_UNKNOWN and closed["type"] not in _WITHOUT_INCOMPLETE:
        closed = {**closed, "status": "incomplete"}
    if closed["type"] in HOSTED_CALLS:
        closed = {UPSTREAM_CALL_ID: call.call_id, **closed}
    return closed, *more


def close(items: tuple[Body, ...], *, output_index: int, include: frozenset[str]) -> list[Event]:
    """Return the events that close the open item of a call, and those of the items that follow it."""
    closed, *more = items
    shown = project(closed, include)
    events = [*after_result(closed, output_index=output_index), OutputItemDone(output_index=output_index, item=shown)]
    for index, body in enumerate(more, start=output_index + 1):
        events += whole_item(project(body, include), output_index=index)
    return events


def opened(closed: Body) -> Body:
    """Return the item of a call as it was before its result, from its final item."""
    return {
        **{name: None if name in _RESULT_FIELDS else value for name, value in closed.items()},
        "status": "in_progress",
    }


def show(
    pending: PendingCall, *, output_index: int, include: frozenset[str], taken: Container[str]
) -> tuple[list[Event], list[OutputItem]]:
    """Return the events and the items of a call whose item was not opened before the end of the run.

    `taken` are the ids of the items in the output. One of them may be the item of this call: a resumed run closes the
    items that its previous process left open.
    """
    closed, *more = pending.items
    if closed["id"] in taken:
        closed = {**closed, "id": new_id(closed["id"].partition("_")[0])}
    shown = project(closed, include)
    first = opened(shown)
    events: list[Event] = [OutputItemAdded(output_index=output_index, item=announced(first))]
    events += before_result(first, output_index=output_index)
    events += close((closed, *more), output_index=output_index, include=include)
    return events, [OutputItem(body=body) for body in (closed, *more)]
