"""Closing of items whose turn or call was interrupted: final body and closing events for each type."""

from collections.abc import Sequence

from engine.converter.segments import part_done
from engine.events.tools import McpCallFailed, McpListToolsFailed
from engine.events.types import (
    Body,
    CustomToolCallInputDone,
    Event,
    FunctionCallArgumentsDone,
    OutputItemAdded,
    OutputItemDone,
)
from engine.state import Fragment

# These item types have no `status`.
_STATELESS = {"mcp_list_tools", "mcp_approval_request", "compaction"}
# These item types have no status `incomplete` in the API.
_FAILED = {"image_generation_call"}
_INTERRUPTED = "The run was stopped before the server answered."


class OpenItem:
    """Tracker of the open item of a hosted tool.

    A turn closes its own items, but the run has to close the items of hosted calls.
    """

    def __init__(self) -> None:
        self.fragment: Fragment | None = None

    def follow(self, events: Sequence[Event]) -> None:
        """Update the open item from events that are being emitted."""
        for event in events:
            match event:
                case OutputItemAdded(output_index=index, item=item):
                    self.fragment = Fragment(output_index=index, body=item, is_open=True)
                case OutputItemDone():
                    self.fragment = None


def close_fragment(fragment: Fragment) -> tuple[Body, list[Event]]:
    """Return the final body of an interrupted item and the events that close it."""
    if not fragment.is_open:
        return fragment.body, []
    kind = fragment.body["type"]
    status = "failed" if kind in _FAILED else "incomplete"
    body = fragment.body if kind in _STATELESS else {**fragment.body, "status": status}
    events: list[Event] = []
    index = fragment.output_index
    if body["type"] == "function_call":
        events.append(
            FunctionCallArgumentsDone(
                item_id=body["id"], output_index=index, name=body["name"], arguments=body["arguments"]
            )
        )
    elif body["type"] == "custom_tool_call":
        events.append(CustomToolCallInputDone(item_id=body["id"], output_index=index, input=body["input"]))
    elif body["type"] == "mcp_call":
        events.append(McpCallFailed(item_id=body["id"], output_index=index))
    elif body["type"] == "mcp_list_tools":
        body = {**body, "error": _INTERRUPTED}
        events.append(McpListToolsFailed(item_id=body["id"], output_index=index))
    elif fragment.open_part is not None:
        events += part_done(body["id"], index, fragment.open_part, body["content"][fragment.open_part])
    elif fragment.open_summary is not None:
        events += part_done(body["id"], index, fragment.open_summary, body["summary"][fragment.open_summary])
    return body, [*events, OutputItemDone(output_index=index, item=body)]
