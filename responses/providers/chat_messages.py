"""Items → the messages of a chat completion.

A lone text part becomes a plain string, calls in a row become one assistant message, each output a `tool` message.
"""

from collections.abc import Iterable
from typing import Any

from conversations.items import (
    AssistantMessage,
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputMessage,
    InputPart,
    InputText,
    OutputText,
    Reasoning,
    StoredItem,
)
from kernel.errors import UnsupportedValue

Message = dict[str, Any]


def messages(instructions: str | None, items: Iterable[StoredItem]) -> list[Message]:
    """The conversation as an upstream reads it."""
    written: list[Message] = []
    if instructions:
        written.append({"role": "system", "content": instructions})
    for item in items:
        match item:
            case InputMessage():
                written.append({"role": _role(item.role), "content": _content(item.parts())})
            case AssistantMessage():
                written.append(_assistant(item))
            case FunctionCall():
                _add_call(written, item)
            case FunctionCallOutput():
                written += _tool(item)
            case Reasoning():
                # Chat completions have no place for it; models that want it back are a setting of the model.
                continue
    return written


def _role(role: str) -> str:
    """`developer` is OpenAI's newer name, which many servers do not know."""
    return "system" if role == "developer" else role


def _content(parts: list[InputPart]) -> str | list[Message]:
    if len(parts) == 1 and isinstance(parts[0], InputText):
        return parts[0].text
    return [_part(part) for part in parts]


def _part(part: InputPart) -> Message:
    if isinstance(part, InputText):
        return {"type": "text", "text": part.text}
    if isinstance(part, InputFile) or part.image_url is None:
        raise UnsupportedValue("Files as input are not supported by this server.", param="input")
    image: Message = {"url": part.image_url}
    if part.detail is not None:
        image["detail"] = part.detail
    return {"type": "image_url", "image_url": image}


def _assistant(item: AssistantMessage) -> Message:
    text = "".join(part.text for part in item.parts() if isinstance(part, OutputText))
    refusal = "".join(part.refusal for part in item.parts() if not isinstance(part, OutputText))
    message: Message = {"role": "assistant", "content": text or (None if refusal else "")}
    if refusal:
        message["refusal"] = refusal
    return message


def _add_call(written: list[Message], item: FunctionCall) -> None:
    """A call joins the assistant message before it: a model says its words and its calls in one turn."""
    if not written or written[-1]["role"] != "assistant":
        written.append({"role": "assistant", "content": None})
    function = {"name": item.name, "arguments": item.arguments}
    calls = written[-1].setdefault("tool_calls", [])
    calls.append({"id": item.call_id, "type": "function", "function": function})
    written[-1]["content"] = written[-1]["content"] or None


def _tool(item: FunctionCallOutput) -> list[Message]:
    """Tool messages carry text only; images follow as a message of the user."""
    if isinstance(item.output, str):
        return [{"role": "tool", "tool_call_id": item.call_id, "content": item.output}]
    text = "\n".join(part.text for part in item.output if isinstance(part, InputText))
    images = [part for part in item.output if isinstance(part, InputImage)]
    answer: list[Message] = [{"role": "tool", "tool_call_id": item.call_id, "content": text}]
    if images:
        answer.append({"role": "user", "content": [_part(image) for image in images]})
    return answer
