"""Events inside the item of a hosted call, before and after the call has its result.

The order is OpenAI's, because client libraries rely on it.
"""

from collections.abc import Callable, Mapping

from engine.events.tools import (
    CodeInterpreterCallCodeDelta,
    CodeInterpreterCallCodeDone,
    CodeInterpreterCallCompleted,
    CodeInterpreterCallInProgress,
    CodeInterpreterCallInterpreting,
    FileSearchCallCompleted,
    FileSearchCallInProgress,
    FileSearchCallSearching,
    HostedToolEvent,
    ImageGenerationCallCompleted,
    ImageGenerationCallGenerating,
    ImageGenerationCallInProgress,
    McpCallArgumentsDelta,
    McpCallArgumentsDone,
    McpCallCompleted,
    McpCallFailed,
    McpCallInProgress,
    McpListToolsCompleted,
    McpListToolsFailed,
    McpListToolsInProgress,
    ShellCallOutputContentDelta,
    ShellCallOutputContentDone,
    WebSearchCallCompleted,
    WebSearchCallInProgress,
    WebSearchCallSearching,
)
from engine.events.types import (
    Body,
    Event,
    OutputItemAdded,
    OutputItemDone,
    ShellCallCommandAdded,
    ShellCallCommandDelta,
    ShellCallCommandDone,
)

# Creates the event of an item, from its id and its output index.
_New = Callable[[str, int], HostedToolEvent]
# Events for the start, the work and the end of a call, by item type.
_STATES: Mapping[str, tuple[_New, _New, _New]] = {
    "web_search_call": (WebSearchCallInProgress, WebSearchCallSearching, WebSearchCallCompleted),
    "file_search_call": (FileSearchCallInProgress, FileSearchCallSearching, FileSearchCallCompleted),
    "code_interpreter_call": (
        CodeInterpreterCallInProgress,
        CodeInterpreterCallInterpreting,
        CodeInterpreterCallCompleted,
    ),
    "image_generation_call": (
        ImageGenerationCallInProgress,
        ImageGenerationCallGenerating,
        ImageGenerationCallCompleted,
    ),
}


def announced(item: Body) -> Body:
    """Return the item as in `output_item.added`, without the input that follows in separate events."""
    match item:
        case {"type": "mcp_call", "arguments": str()}:
            return {**item, "arguments": ""}
        case {"type": "code_interpreter_call", "code": str()}:
            return {**item, "code": ""}
        case {"type": "shell_call", "action": action}:
            return {**item, "action": {**action, "commands": []}}
    return item


def before_result(item: Body, *, output_index: int) -> list[Event]:
    """Return the events that follow `output_item.added`; none for item types without events of their own."""
    name = item["id"]
    events: list[Event] = []
    match item["type"]:
        case "mcp_list_tools":
            events.append(McpListToolsInProgress(name, output_index))
        case "mcp_call":
            events.append(McpCallInProgress(name, output_index))
            if arguments := item["arguments"]:
                events.append(McpCallArgumentsDelta(name, output_index, arguments))
            events.append(McpCallArgumentsDone(name, output_index, arguments))
        case "shell_call":
            for number, text in enumerate(item["action"]["commands"]):
                events.append(ShellCallCommandAdded(output_index, number, ""))
                if text:
                    events.append(ShellCallCommandDelta(output_index, number, text))
                events.append(ShellCallCommandDone(output_index, number, text))
        case kind if kind in _STATES:
            begins, works, _ = _STATES[kind]
            events.append(begins(name, output_index))
            if kind == "code_interpreter_call":
                if code := item.get("code") or "":
                    events.append(CodeInterpreterCallCodeDelta(name, output_index, code))
                events.append(CodeInterpreterCallCodeDone(name, output_index, code))
            events.append(works(name, output_index))
    return events


def after_result(item: Body, *, output_index: int) -> list[Event]:
    """Return the events that precede `output_item.done`."""
    # OpenAI defines no failure event for searches, programs and images, so a failed one has no closing event.
    name, failed = item["id"], item.get("error") is not None
    match item["type"]:
        case "mcp_list_tools":
            return [McpListToolsFailed(name, output_index) if failed else McpListToolsCompleted(name, output_index)]
        case "mcp_call":
            return [McpCallFailed(name, output_index) if failed else McpCallCompleted(name, output_index)]
        case kind if kind in _STATES and item["status"] == "completed":
            _, _, ends = _STATES[kind]
            return [ends(name, output_index)]
    return []


def inside(item: Body, *, output_index: int) -> list[Event]:
    """Return the events between `added` and `done` of an item that arrives complete: a shell's output."""
    if item["type"] != "shell_call_output":
        return []
    events: list[Event] = []
    for number, output in enumerate(item["output"]):
        delta = {"stdout": output["stdout"], "stderr": output["stderr"]}
        events.append(ShellCallOutputContentDelta(item["id"], output_index, number, delta))
        events.append(ShellCallOutputContentDone(item["id"], output_index, number, [output]))
    return events


def whole_item(body: Body, *, output_index: int) -> list[Event]:
    """Return the events of an item that is complete when it is added."""
    opened = {**body, "status": "in_progress"} if "status" in body else body
    within = inside(body, output_index=output_index)
    return [
        OutputItemAdded(output_index=output_index, item={**opened, "output": []} if within else opened),
        *within,
        OutputItemDone(output_index=output_index, item=body),
    ]
