"""The parts of a message as a page shows them: images and files are described, and never loaded."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernel.console import Shown, pretty, shown, size

_DATA_URL = re.compile(r"data:([^;,]*)(;base64)?,")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of a message: text with what it cites, a refusal, or an image or a file."""

    kind: str
    body: Shown
    cited: Sequence[str] = ()


def read_part(part: dict[str, Any]) -> Part:
    """A part of a message's content."""
    match part["type"]:
        case "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text":
            return Part(kind="text", body=shown(part["text"]), cited=_cited(part.get("annotations") or ()))
        case "refusal":
            return Part(kind="refusal", body=shown(part["refusal"]))
        case "input_image" | "computer_screenshot":
            return Part(kind="image", body=Shown(source(part)))
        case "input_file":
            return Part(kind="file", body=Shown(source(part)))
    return Part(kind="json", body=pretty(part))


def source(part: dict[str, Any]) -> str:
    """Where an image or a file comes from, as text; what is brought along is only measured."""
    what = "file" if part["type"] == "input_file" else "image"
    named = f"{part['filename']}, " if part.get("filename") else ""
    found = part.get("file_id") or part.get("file_url") or part.get("image_url")
    if found and not _DATA_URL.match(found):
        return named + shown(found).text
    return named + measured(found or part.get("file_data") or "", what)


def measured(data: str, what: str) -> str:
    """The size of bytes that are brought along, and of which type they are."""
    head = _DATA_URL.match(data)
    length = len(data) - (head.end() if head else 0)
    in_base64 = head is None or head[2]
    kind = (head[1] if head else "") or "unknown type"
    return f"data {what}, {kind}, {size(length * 3 // 4 if in_base64 else length)}"


def _cited(annotations: Sequence[dict[str, Any]]) -> list[str]:
    """What a text cites, each source once."""
    found = (note.get("url") or note.get("filename") or note.get("file_id") or "" for note in annotations)
    return list(dict.fromkeys(filter(None, found)))
