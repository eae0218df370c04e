"""Rules for every stream: sequence numbers, order of events, equality with the stored response.

The order of events is deliberately defined independently of the engine.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from tests.support.folding import Folded, assert_folds_to
from tests.support.validation import check_event

Event = dict[str, Any]
Retrieve = Callable[[str], dict[str, Any] | None]
"""Returns a stored response by id, or None if it does not exist for the caller."""

TERMINAL = {"response.completed", "response.incomplete", "response.failed"}
_TEXT = r"(output_text\.delta )*(output_text\.annotation\.added )*output_text\.done "
_REFUSAL = r"(refusal\.delta )*refusal\.done "
_REASONING = r"content_part\.added (reasoning_text\.delta )*reasoning_text\.done content_part\.done "
_SUMMARY = (
    r"reasoning_summary_part\.added (reasoning_summary_text\.delta )*"
    r"reasoning_summary_text\.done reasoning_summary_part\.done "
)
_ARGUMENTS = r"(mcp_call_arguments\.delta )*mcp_call_arguments\.done "
_CODE = r"(code_interpreter_call_code\.delta )*code_interpreter_call_code\.done "
_COMMAND = r"shell_call_command\.added (shell_call_command\.delta )*shell_call_command\.done "
_OUTPUT = r"(shell_call_output_content\.delta )*shell_call_output_content\.done "
_ITEMS = {
    "message": rf"(content_part\.added ({_TEXT}|{_REFUSAL})content_part\.done )+",
    "function_call": r"(function_call_arguments\.delta )*function_call_arguments\.done ",
    # The last summary was made by the platform from the reasoning.
    "reasoning": rf"({_SUMMARY})*({_REASONING})*({_SUMMARY})?",
    "custom_tool_call": r"(custom_tool_call_input\.delta )*custom_tool_call_input\.done ",
    "mcp_list_tools": r"mcp_list_tools\.in_progress (mcp_list_tools\.(completed|failed) )?",
    "mcp_call": rf"mcp_call\.in_progress {_ARGUMENTS}(mcp_call\.(completed|failed) )?",
    "web_search_call": r"web_search_call\.in_progress (web_search_call\.searching )?(web_search_call\.completed )?",
    "file_search_call": r"file_search_call\.in_progress (file_search_call\.searching )?(file_search_call\.completed )?",
    "code_interpreter_call": (
        rf"code_interpreter_call\.in_progress {_CODE}"
        r"(code_interpreter_call\.interpreting )?(code_interpreter_call\.completed )?"
    ),
    "image_generation_call": (
        r"image_generation_call\.in_progress (image_generation_call\.generating )?"
        r"(image_generation_call\.partial_image )*(image_generation_call\.completed )?"
    ),
    "compaction": r"(compaction\.compacting )?",
    "shell_call": rf"({_COMMAND})*",
    "shell_call_output": rf"({_OUTPUT})*",
}
"""Events inside an item by its type; other types have none. Truncated items lack the last ones."""


def types(events: Sequence[Event]) -> list[str]:
    """Return the types of the events."""
    return [event["type"] for event in events]


def check_stream(events: Sequence[Event], seen: Sequence[Any], retrieve: Retrieve) -> None:
    """Check a complete stream. `seen` are its events as parsed by the SDK.

    If a stream starts after 0, only its sequence numbers and its last response are checked.
    """
    if not events or "sequence_number" not in events[-1]:
        return  # an error without a response, or an error because the log cannot be read
    first = events[0]["sequence_number"]
    assert [event["sequence_number"] for event in events] == list(range(first, first + len(events)))
    ended = events[-1]["type"] in TERMINAL
    if first == 0:
        terminal = events[-1]["response"] if ended else None
        stored = retrieve(events[0]["response"]["id"])
        if terminal is None:
            if stored and stored["status"] == "cancelled":
                _check_cancelled(events, stored)
        else:
            assert_well_formed(events)
            assert_folds_to(events, seen, terminal)
            assert stored is None or stored == terminal
    elif ended:
        stored = retrieve(events[-1]["response"]["id"])
        assert stored is None or stored == events[-1]["response"]


def _check_cancelled(events: Sequence[Event], stored: Event) -> None:
    # There is no event for a cancelled run. Its stream closes open items and ends.
    assert types(events)[0] == "response.created"
    assert_items([event for event in events if "output_index" in event])
    assert Folded(events).body()["output"] == stored["output"]


def assert_stream_equals_stored(events: Sequence[Event], stored: dict[str, Any]) -> None:
    """Assert that the stream is well formed and yields its terminal response, which equals the stored one.

    `Api` and `Socket` do this automatically.
    """
    check_stream(events, [check_event(event) for event in events], lambda _: stored)
    assert events[-1]["response"] == stored


def assert_well_formed(events: Sequence[Event]) -> None:
    """Assert consecutive numbers, `created` first, one terminal event that matches the status, and valid items."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    opening = ["response.created", "response.in_progress"]
    if events[0]["response"]["status"] == "queued":
        opening.insert(1, "response.queued")
    assert types(events)[: len(opening)] == opening
    for event in events[: len(opening)]:
        assert (event["response"]["output"], event["response"]["usage"]) == ([], None)
    assert [kind for kind in types(events) if kind in TERMINAL] == [events[-1]["type"]]
    assert events[-1]["type"] == f"response.{events[-1]['response']['status']}"
    body = list(events[len(opening) : -1])
    if events[-1]["type"] == "response.failed":
        assert body.pop()["type"] == "error"
    assert_items(body)
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1


def assert_items(events: Sequence[Event]) -> None:
    """Assert that items follow each other, each with the events of its type between its start and end."""
    position = 0
    while events:
        assert events[0]["type"] == "response.output_item.added", events[0]
        end = next((i for i, event in enumerate(events) if event["type"] == "response.output_item.done"), None)
        assert end is not None, "an item was never closed"
        item, events = events[: end + 1], events[end + 1 :]
        assert {event["output_index"] for event in item} == {position}
        _assert_item(item)
        position += 1


def _assert_item(events: Sequence[Event]) -> None:
    opened, closed = events[0]["item"], events[-1]["item"]
    assert (opened["id"], opened["type"]) == (closed["id"], closed["type"])
    # The SDK's types of some outputs have no status in progress.
    status = {"program_output": "incomplete", "apply_patch_call_output": "completed"}.get(opened["type"], "in_progress")
    assert (opened.get("status", status), opened.get("call_id")) == (status, closed.get("call_id"))
    inside = events[1:-1]
    # The events of shell calls have only the index of their item.
    assert {event["item_id"] for event in inside if "item_id" in event} <= {opened["id"]}
    line = "".join(event["type"].removeprefix("response.") + " " for event in inside)
    assert re.fullmatch(_ITEMS.get(opened["type"], ""), line), f"{opened['type']}: {line}"
