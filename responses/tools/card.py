"""Cards of tool calls in the transcripts of the console. They are plain data, which the console renders."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """A labelled part of a card. The value is a text, any JSON, or the address of an image."""

    kind: Literal["text", "json", "image"]
    label: str
    value: Any
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Content of a card for a tool call, the output of a tool call, or a setting. `note` follows the title.

    `parts` may also contain display parts of the console, for example for the content parts of an output.
    """

    kind: Literal["call", "answer", "setting"]
    icon: str
    title: str
    parts: Sequence[Any]
    note: str = ""
    server: str = ""


def call_card(icon: str, title: str, *parts: Any, note: str = "", server: str = "") -> Card:
    """Return the card of a call, with its output if the item contains both."""
    return Card(kind="call", icon=icon, title=title, parts=parts, note=note, server=server)


def answer_card(title: str, *parts: Any, icon: str = "output", note: str = "returned") -> Card:
    """Return the card of an output."""
    return Card(kind="answer", icon=icon, title=title, parts=parts, note=note)


def setting_card(title: str, *parts: Any, icon: str = "tune", note: str = "") -> Card:
    """Return the card of an item that is neither a call nor an output."""
    return Card(kind="setting", icon=icon, title=title, parts=parts, note=note)


def text(label: str, value: str | None, detail: str = "") -> list[Part]:
    """Return a list with a text part, or an empty list if the text is empty."""
    return [Part("text", label, value, detail)] if value else []


def lines(label: str, values: Iterable[str | None]) -> list[Part]:
    """Return a list with a text part that has a line for each value that is not empty."""
    return text(label, "\n".join(value for value in values if value))


def json(label: str, value: Any) -> list[Part]:
    """Return a list with a JSON part, or an empty list if the value is empty."""
    return [Part("json", label, value)] if value not in (None, {}, []) else []


def image(url: str | None) -> list[Part]:
    """Return a list with an image part, or an empty list if there is no URL."""
    return [Part("image", "Image", url)] if url else []


def tools(tools: Sequence[Body]) -> list[Part]:
    """Return a list with a part that lists tools."""
    return lines("Tools", map(_tool, tools))


def _tool(tool: Body) -> str:
    name = tool.get("name") or tool.get("server_label") or tool["type"]
    # `allowed_tools` of an MCP server is a list of names or a filter object; only a list can be shown.
    inner = [entry["name"] for entry in tool.get("tools") or ()]
    if isinstance(tool.get("allowed_tools"), list):
        inner = tool["allowed_tools"]
    whole = f"{name} ({', '.join(inner)})" if inner else str(name)
    about = tool.get("description") or tool.get("server_description")
    return f"{whole}: {about}" if about else whole
