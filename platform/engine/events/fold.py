"""Fold of an event log into the output of a response, for followers of a stream and for resumed runs.

It works on serialized events, because the log contains them in this form.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from engine.events.types import Body
from engine.state import Fragment


def read_frames(frames: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield the events of a part of the log, each as the sent bytes and as the decoded object."""
    for frame in frames.split(b"\n\n"):
        _, found, data = frame.partition(b"\ndata: ")
        if found:
            yield frame + b"\n\n", orjson.loads(data)


class Fold:
    """Output that results from the events applied so far."""

    def __init__(self, events: Iterable[dict[str, Any]] = ()) -> None:
        self.response: Body | None = None
        self.items: dict[int, Body] = {}
        # Open items by index, each with the part that is being written: a content part or a part of the summary.
        self._open: dict[int, tuple[str, int] | None] = {}
        for event in events:
            self.apply(event)

    @property
    def output(self) -> list[Body]:
        """Items in output order."""
        return [self.items[index] for index in sorted(self.items)]

    @property
    def fragments(self) -> list[Fragment]:
        """Every item as a fragment, as if its turn had been cut here."""
        fragments = []
        for index, body in sorted(self.items.items()):
            where, part = self._open.get(index) or ("", None)
            fragments.append(
                Fragment(
                    output_index=index,
                    body=body,
                    is_open=index in self._open,
                    open_part=part if where == "content" else None,
                    open_summary=part if where == "summary" else None,
                )
            )
        return fragments

    def apply(self, event: dict[str, Any]) -> None:
        """Apply one event."""
        kind = event["type"].removeprefix("response.")
        if "response" in event:
            self.response = event["response"]
        elif kind == "output_item.added":
            self.items[event["output_index"]] = event["item"]
            self._open[event["output_index"]] = None
        elif kind == "output_item.done":
            self.items[event["output_index"]] = event["item"]
            self._open.pop(event["output_index"], None)
        elif "output_index" in event:
            self._inside(kind, event)

    def _inside(self, kind: str, event: dict[str, Any]) -> None:
        index = event["output_index"]
        item = self.items[index]
        match kind:
            case "content_part.added":
                # Reasoning items are added without `content`.
                item.setdefault("content", []).append(event["part"])
                self._open[index] = ("content", event["content_index"])
            case "content_part.done":
                item["content"][event["content_index"]] = event["part"]
                self._open[index] = None
            case "reasoning_summary_part.added":
                item["summary"].append(event["part"])
                self._open[index] = ("summary", event["summary_index"])
            case "reasoning_summary_part.done":
                item["summary"][event["summary_index"]] = event["part"]
                self._open[index] = None
            case "output_text.annotation.added":
                item["content"][event["content_index"]]["annotations"].append(event["annotation"])
            case "shell_call_command.added":
                item["action"]["commands"].append(event["command"])
            case _ if "delta" in event:
                _grow(item, kind, event)


def _grow(item: Body, kind: str, event: dict[str, Any]) -> None:
    match kind:
        case "output_text.delta" | "reasoning_text.delta":
            part = item["content"][event["content_index"]]
            part["text"] += event["delta"]
            if event.get("logprobs"):
                part["logprobs"] += event["logprobs"]
        case "refusal.delta":
            item["content"][event["content_index"]]["refusal"] += event["delta"]
        case "reasoning_summary_text.delta":
            item["summary"][event["summary_index"]]["text"] += event["delta"]
        case "function_call_arguments.delta" | "mcp_call_arguments.delta":
            item["arguments"] += event["delta"]
        case "code_interpreter_call_code.delta":
            item["code"] += event["delta"]
        case "custom_tool_call_input.delta":
            item["input"] += event["delta"]
        case "shell_call_command.delta":
            item["action"]["commands"][event["command_index"]] += event["delta"]
