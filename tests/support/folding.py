"""Reconstruction of a response from the events of a stream, here and by the SDK.

Deltas are added up and compared with every following `done`, so that clients which read only deltas, only `done` events
or only the last event get the same. This is deliberately independent of the fold in the engine.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import Any

from openai import omit
from openai.lib.responses_websocket import ResponsesWebSocketAccumulator
from openai.lib.streaming.responses._responses import ResponseStreamState

Event = dict[str, Any]
Json = dict[str, Any]
# Text in a part of the item, by event: key of the list, key of the index, key of the text.
_PART_TEXTS = {
    "output_text": ("content", "content_index", "text"),
    "refusal": ("content", "content_index", "refusal"),
    "reasoning_text": ("content", "content_index", "text"),
    "reasoning_summary_text": ("summary", "summary_index", "text"),
}
# Text of the item itself, by event: key of the item.
_ITEM_TEXTS = {
    "function_call_arguments": "arguments",
    "mcp_call_arguments": "arguments",
    "custom_tool_call_input": "input",
    "code_interpreter_call_code": "code",
}
_PARTS = {"content_part": ("content", "content_index"), "reasoning_summary_part": ("summary", "summary_index")}
_PARSED = {"parsed", "parsed_arguments"}
# Keys that the events of an item determine. All others may change between its start and its end.
_EVENT_KEYS = {"type", "id", "call_id", "name", "namespace", "content", "summary", "arguments", "input", "code"}


class Folded:
    """A response reconstructed from events."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.response: Json = {}
        self.items: dict[int, Json] = {}
        for event in events:
            self._apply(copy.deepcopy(event))

    def body(self) -> Json:
        """Return the response of the last event that has one, with the reconstructed output."""
        return {**self.response, "output": [self.items[index] for index in sorted(self.items)]}

    def _apply(self, event: Event) -> None:
        kind, _, what = event["type"].removeprefix("response.").rpartition(".")
        if "response" in event:
            self.response = event["response"]
        elif kind == "output_item":
            self._item(what, event)
        elif kind in _PARTS:
            self._part(what, event, *_PARTS[kind])
        elif kind in _PART_TEXTS:
            where, index, key = _PART_TEXTS[kind]
            self._text(what, event, self._entry(event)[where][event[index]], key)
        elif kind in _ITEM_TEXTS:
            self._text(what, event, self._entry(event), _ITEM_TEXTS[kind])
        elif kind == "output_text.annotation":
            part = self._entry(event)["content"][event["content_index"]]
            assert len(part["annotations"]) == event["annotation_index"]
            part["annotations"].append(event["annotation"])
        elif kind == "shell_call_command":
            self._command(what, event)

    def _entry(self, event: Event) -> Json:
        item = self.items[event["output_index"]]
        assert event.get("item_id", item["id"]) == item["id"]
        return item

    def _item(self, what: str, event: Event) -> None:
        index, item = event["output_index"], event["item"]
        if what == "added":
            assert index not in self.items, f"two items at {index}"
        else:
            built = {key: value for key, value in self.items[index].items() if key in _EVENT_KEYS and value is not None}
            final = _without_additional({key: item.get(key) for key in built})
            assert _without_additional(built) == final, "the finished item differs from its events"
        self.items[index] = item

    def _part(self, what: str, event: Event, where: str, index: str) -> None:
        parts = self._entry(event).setdefault(where, [])
        if what == "added":
            assert len(parts) == event[index], f"part {event[index]} opens after {len(parts)}"
            parts.append(event["part"])
        else:
            final = _without_additional(event["part"])
            assert _without_additional(parts[event[index]]) == final, "the finished part differs from its events"
            parts[event[index]] = event["part"]

    def _text(self, what: str, event: Event, holder: Json, key: str) -> None:
        if what == "delta":
            holder[key] = (holder[key] or "") + event["delta"]
            if "logprobs" in event:
                holder.setdefault("logprobs", []).extend(event["logprobs"])
            return
        assert (holder[key] or "") == event[key], "a text is done as something else than its deltas"
        assert holder.get("logprobs", []) == event.get("logprobs", [])

    def _command(self, what: str, event: Event) -> None:
        commands = self._entry(event)["action"]["commands"]
        if what == "added":
            assert len(commands) == event["command_index"]
            commands.append(event["command"])
        elif what == "delta":
            commands[event["command_index"]] += event["delta"]
        else:
            assert commands[event["command_index"]] == event["command"]


def _without_additional(value: Any) -> Any:
    """Return JSON without the additional fields that an upstream sends in tests, because no delta has them."""
    match value:
        case dict():
            return {key: _without_additional(entry) for key, entry in value.items() if key != "later"}
        case list():
            return [_without_additional(entry) for entry in value]
    return value


def assert_folds_to(events: Sequence[Event], seen: Sequence[Any], stored: Json) -> None:
    """Assert that the events yield the stored response, here and with both methods of the SDK (events in `seen`)."""
    assert Folded(events).body() == stored
    assert_sdk_stream_tells(events, seen, stored)
    assert_sdk_accumulator_tells(events, seen, stored)


def assert_sdk_stream_tells(events: Sequence[Event], seen: Sequence[Any], stored: Json) -> None:
    """Assert that `responses.stream()` accumulates the text and arguments of the stored response from deltas."""
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=omit, text_format=omit)
    snapshots: dict[tuple[int, int | None], str] = {}
    final: Json = {}
    for event, raw in zip(events, seen, strict=True):
        if event["type"] == "error":  # the SDK raises it instead of accumulating it
            continue
        for told in state.handle_event(raw):
            if told.type in {"response.output_text.delta", "response.function_call_arguments.delta"}:
                snapshots[told.output_index, getattr(told, "content_index", None)] = told.snapshot
            elif told.type in {"response.completed", "response.failed", "response.incomplete"}:
                final = told.response.to_dict()
    assert snapshots == {place: text for place, text in _texts(stored) if place in snapshots}
    if final:
        assert _without_parsed(final) == stored


def _texts(stored: Json) -> Iterable[tuple[tuple[int, int | None], str]]:
    for index, item in enumerate(stored["output"]):
        if item["type"] == "function_call":
            yield (index, None), item["arguments"]
        for position, part in enumerate(item["content"] if item["type"] == "message" else []):
            yield (index, position), part.get("text", "")


def _without_parsed(value: Any) -> Any:
    """Remove the keys of parsed content, which the SDK adds."""
    if isinstance(value, dict):
        return {key: _without_parsed(entry) for key, entry in value.items() if key not in _PARSED}
    return [_without_parsed(entry) for entry in value] if isinstance(value, list) else value


def assert_sdk_accumulator_tells(events: Sequence[Event], seen: Sequence[Any], stored: Json) -> None:
    """Assert that the SDK's accumulator yields the response, before and after the terminal event."""
    accumulator = ResponsesWebSocketAccumulator()
    for event, raw in zip(events, seen, strict=True):
        if event["type"] == "error":
            continue
        if event["type"] in {"response.completed", "response.failed", "response.incomplete"}:
            before = accumulator.detailed_snapshot()
            assert [_accumulated(row) for row in before["output"]] == stored["output"]
            accumulator.add_event(raw)
            assert accumulator.get_final_response().to_dict() == stored
            return
        accumulator.add_event(raw)


def _accumulated(row: Json) -> Json:
    """Return an item from the accumulator, which stores message parts and annotations separately."""
    item: Json = row["item"]
    if item["type"] != "message":
        return item
    parts = [entry["part"] for entry in row["content"]]
    for part in parts:
        if "annotations" in part:
            part["annotations"] = [entry["annotation"] for entry in part["annotations"]]
    return {**item, "content": parts}
