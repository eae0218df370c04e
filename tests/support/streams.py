"""What holds for every stream: its numbers, its grammar, and that it tells what is stored.

The grammar stands here a second time, on purpose: it is the specification's, not the engine's.
"""

import re
from typing import Any

from responses.engine.fold import Fold

Event = dict[str, Any]
TERMINAL = {"response.completed", "response.incomplete", "response.failed"}
_TEXT = r"(output_text\.delta )*(output_text\.annotation\.added )*output_text\.done "
_REFUSAL = r"(refusal\.delta )*refusal\.done "
_SUMMARY = (
    r"reasoning_summary_part\.added (reasoning_summary_text\.delta )*"
    r"reasoning_summary_text\.done reasoning_summary_part\.done "
)
_REASONING = r"content_part\.added (reasoning_text\.delta )*reasoning_text\.done content_part\.done "
_ITEMS = {
    "message": rf"(content_part\.added ({_TEXT}|{_REFUSAL})content_part\.done )+",
    "function_call": r"(function_call_arguments\.delta )*function_call_arguments\.done ",
    "function_call_output": "",
    "custom_tool_call": r"(custom_tool_call_input\.delta )*custom_tool_call_input\.done ",
    "reasoning": rf"({_SUMMARY})*({_REASONING})*",
}


def types(events: list[Event]) -> list[str]:
    """The events' types."""
    return [event["type"] for event in events]


def assert_stream_equals_stored(events: list[Event], stored: dict[str, Any]) -> None:
    """The stream is well formed, and folded it is its terminal response, which is what can be retrieved."""
    assert_well_formed(events)
    terminal = events[-1]["response"]
    assert Fold(events).output == terminal["output"]
    assert stored == terminal


def assert_well_formed(events: list[Event]) -> None:
    """Numbers without gaps, `created` first, one terminal event, and items as the grammar has them."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert types(events)[:2] == ["response.created", "response.in_progress"]
    assert [kind for kind in types(events) if kind in TERMINAL] == [events[-1]["type"]]
    body = events[2:-1]
    if events[-1]["type"] == "response.failed":
        assert body.pop()["type"] == "error"
    assert_items(body)
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1


def assert_items(events: list[Event]) -> None:
    """Items one after the other, each opened, filled by its own grammar, and closed as what it was opened as."""
    position = 0
    while events:
        assert events[0]["type"] == "response.output_item.added", events[0]
        end = next((i for i, event in enumerate(events) if event["type"] == "response.output_item.done"), None)
        assert end is not None, "an item was never closed"
        item, events = events[: end + 1], events[end + 1 :]
        assert {event["output_index"] for event in item} == {position}
        _assert_item(item)
        position += 1


def _assert_item(events: list[Event]) -> None:
    opened, closed = events[0]["item"], events[-1]["item"]
    assert (opened["id"], opened["type"]) == (closed["id"], closed["type"])
    assert (opened["status"], opened.get("call_id")) == ("in_progress", closed.get("call_id"))
    inside = events[1:-1]
    assert {event["item_id"] for event in inside} <= {opened["id"]}
    line = "".join(event["type"].removeprefix("response.") + " " for event in inside)
    assert re.fullmatch(_ITEMS[opened["type"]], line), f"{opened['type']}: {line}"
