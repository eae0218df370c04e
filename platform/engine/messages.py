"""Input and output of a model as messages with channels and recipients, in the format of vLLM's Responses API.

This is only a view: messages are neither stored nor sent to models. Reasoning has the channel `analysis`, calls have
the channel `commentary` and the tool as recipient, answers have the channel `final`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from engine.calls.client_tools import called_name
from engine.events.types import Body
from engine.turn import FunctionTool

Message = dict[str, Any]
FUNCTIONS = "functions."
"""Prefix of the names of client tools."""
PYTHON = "python"
"""Recipient of code interpreter calls."""
LEGEND = "Channels of the messages: analysis is reasoning, commentary is tool calls, final is answers."
"""System message of the view when the request has none. It is not sent to the model."""
TOOLS_TITLE = "# Tools"
"""Heading of the list of functions in the developer message."""
_ANSWERS = "_output"
_HEADS = {"id", "type", "status", "call_id"}


def input_messages(*, instructions: str | None, items: Iterable[Body], tools: Sequence[FunctionTool]) -> list[Message]:
    """Return the input as messages: a system message, a developer message if it has any content, and the rest."""
    system = [_text(instructions)] if instructions else []
    developer: list[Body] = []
    others: list[Message] = []
    for message in item_messages(items):
        match message["role"]:
            case "system":
                system += message["content"]
            case "developer":
                developer += message["content"]
            case _:
                others.append(message)
    if tools:
        described = [
            [f"## {FUNCTIONS}{tool.name}", tool.description, _json(tool.parameters) if tool.parameters else None]
            for tool in tools
        ]
        developer.append(_text("\n\n".join([TOOLS_TITLE, *("\n".join(filter(None, lines)) for lines in described)])))
    opening = [_message("system", system or [_text(LEGEND)])]
    return opening + ([_message("developer", developer)] if developer else []) + others


def item_messages(items: Iterable[Body]) -> list[Message]:
    """Return the items as messages. A call with its result becomes two messages, a setting none."""
    # Recipients of calls by call id, since an output only has the call id.
    names: dict[str, str] = {}
    messages: list[Message] = []
    for item in items:
        kind, call_id = item["type"], item.get("call_id") or item.get("id") or ""
        if kind == "message":
            message = _message(item["role"], _parts(item["content"]))
            if item["role"] == "assistant":
                message["channel"] = "commentary" if item.get("phase") == "commentary" else "final"
            messages.append(message)
        elif kind == "reasoning":
            # Encrypted reasoning is not shown.
            if parts := [_text(part["text"]) for part in item.get("content") or item["summary"]]:
                messages.append({**_message("assistant", parts), "channel": "analysis"})
        elif kind in {"mcp_call", "code_interpreter_call"}:
            messages += _hosted_call(item)
        elif kind.endswith("_call"):
            names[call_id] = _recipient(item)
            text = item.get("arguments", item.get("input"))
            if not isinstance(text, str):
                text = _json({key: value for key, value in item.items() if key not in _HEADS})
            messages.append(_call(names[call_id], text, call_id=call_id))
        elif kind.endswith(_ANSWERS):
            name = names.get(call_id, kind.removesuffix(f"_call{_ANSWERS}"))
            messages.append(_answer(name, _parts(item.get("output", item.get("tools"))), call_id=call_id))
    return messages


def _hosted_call(item: Body) -> list[Message]:
    if item["type"] == "code_interpreter_call":
        name, text, result = PYTHON, item.get("code") or "", item.get("outputs")
        if result is not None:
            result = "\n".join(
                output["logs"] if output["type"] == "logs" else f"[image: {output['url']}]" for output in result
            )
    else:
        is_python = item["server_label"] == "code_interpreter"
        name, text = PYTHON if is_python else f"{item['server_label']}.{item['name']}", item["arguments"]
        result = item.get("output") if item.get("error") is None else item["error"]
    call = _call(name, text, call_id=item["id"])
    return [call] if result is None else [call, _answer(name, _parts(result), call_id=item["id"])]


def _recipient(item: Body) -> str:
    if item["type"] in {"function_call", "custom_tool_call"}:
        return FUNCTIONS + called_name(item.get("namespace"), item["name"])
    return str(item["type"].removesuffix("_call"))


def _call(recipient: str, text: str, *, call_id: str) -> Message:
    message = _message("assistant", [_text(text)])
    return {**message, "channel": "commentary", "recipient": recipient, "call_id": call_id}


def _answer(name: str, parts: list[Body], *, call_id: str) -> Message:
    message = {"role": "tool", "name": name, "author": {"role": "tool", "name": name}, "content": parts}
    return {**message, "channel": "commentary", "recipient": "assistant", "call_id": call_id}


def _message(role: str, parts: list[Body]) -> Message:
    return {"role": role, "author": {"role": role}, "content": parts}


def _parts(content: Any) -> list[Body]:
    if isinstance(content, str):
        return [_text(content)]
    if isinstance(content, list) and all(isinstance(part, dict) and "type" in part for part in content):
        return [_text(_part_text(part)) for part in content]
    if isinstance(content, dict) and content.get("type") == "computer_screenshot":
        return [_text(_part_text(content))]
    return [_text(_json(content))]


def _part_text(part: Mapping[str, Any]) -> str:
    match part["type"]:
        case "input_text" | "output_text":
            return str(part["text"])
        case "refusal":
            return str(part["refusal"])
        case "input_image" | "computer_screenshot":
            return f"[image{_place(part, 'file_id', 'image_url')}]"
        case "input_file":
            return f"[file{_place(part, 'filename', 'file_id', 'file_url')}]"
    return _json(part)


def _place(part: Mapping[str, Any], *names: str) -> str:
    # A data URL is left out, because it contains all bytes of the file.
    found = next((part[name] for name in names if part.get(name)), "")
    return f": {found}" if found and not found.startswith("data:") else ""


def _text(text: str) -> Body:
    return {"type": "text", "text": text}


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
