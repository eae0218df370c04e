"""What items are made of, as a page shows it: texts, JSON, and images and files, which come from here or not at all."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.safestring import SafeString

from console.markdown import host_of, render
from console.widgets import SHOWN_CHARACTERS, Shown, shown, size
from tenants.console.content_access import HIDDEN

_DATA_URL = re.compile(r"data:([^;,]*)(;base64)?,")
MEDIA = ("image", "file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """What a text rests on; `url` only where it leads somewhere else, to `host`."""

    name: str
    url: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPart:
    """A part of an item under its heading.

    `kind` is text, json, markdown, refusal, image, file or, for whom may not read it, hidden. `detail` belongs to the
    heading and quotes content. `raw` is JSON as it came. `source` is where an image or a file is from: bytes that it
    brought along, an id or an address. `url` leads to it here, or to the rest of a long text.
    """

    kind: str = "text"
    label: str = ""
    detail: str = ""
    text: str = ""
    raw: str = ""
    source: str = ""
    citations: Sequence[Citation] = ()
    url: str = ""
    is_image: bool = False
    length: int | None = None

    @property
    def host(self) -> str:
        """Whence an image or a file would have to be loaded; empty for one that is here."""
        return host_of(self.source) if self.source and not _DATA_URL.match(self.source) else ""

    @property
    def body(self) -> Shown:
        """The beginning of the text."""
        return shown(self.text)

    @property
    def html(self) -> SafeString:
        """The text as Markdown."""
        return render(self.text)

    @property
    def is_long(self) -> bool:
        """Whether a page shows no more than its beginning."""
        return len(self.text) > SHOWN_CHARACTERS

    @property
    def weight(self) -> int:
        """Its size in bytes."""
        if self.length is not None:
            return self.length
        if (data := parse_data_url(self.source)) is not None:
            return len(data.payload) * 3 // 4 if data.is_base64 else len(data.payload)
        return len((self.raw or self.text).encode(errors="replace"))

    @property
    def size(self) -> str:
        """Its size in words."""
        return size(self.weight)

    def without_content(self) -> "ItemPart":
        """For somebody who may not read it: that it is there, and how much it is."""
        return ItemPart(kind="hidden", label=self.label, text=HIDDEN, length=self.weight)


def read_part(part: dict[str, Any]) -> ItemPart:
    """A part of a message's content."""
    match part["type"]:
        case "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text":
            return ItemPart(kind="markdown", text=part["text"], citations=_citations(part.get("annotations") or ()))
        case "refusal":
            return ItemPart(kind="refusal", label="Refusal", text=part["refusal"])
        case "input_image" | "computer_screenshot" | "input_file":
            return media_part(part)
    return json_part("", part)


def text_part(label: str, text: str, detail: str = "") -> ItemPart:
    """A text as it is."""
    return ItemPart(label=label, text=text, detail=detail)


def json_part(label: str, value: Any) -> ItemPart:
    """A JSON value, or a string that may hold one, indented; a long one as it came."""
    if not isinstance(value, str):
        return ItemPart(kind="json", label=label, text=_indented(value))
    if len(value) > SHOWN_CHARACTERS:
        return ItemPart(label=label, text=value)
    try:
        text = _indented(json.loads(value))
    except (ValueError, RecursionError):
        return ItemPart(label=label, text=value)
    return ItemPart(kind="json", label=label, text=text, raw="" if text == value else value)


def _indented(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def media_part(part: dict[str, Any], label: str = "") -> ItemPart:
    """An image or a file, described; where it can be looked at, `placed` says."""
    kind = "file" if part["type"] == "input_file" else "image"
    found = part.get("file_id") or part.get("file_url") or part.get("image_url") or ""
    if not found and (data := part.get("file_data")):
        found = data if _DATA_URL.match(data) else f"data:application/octet-stream;base64,{data}"
    return ItemPart(kind=kind, label=label, text=describe_source(part), source=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataUrl:
    """What a data URL holds: its type as it says, and the bytes as they are written."""

    type: str
    is_base64: bool
    payload: str


def parse_data_url(source: str) -> DataUrl | None:
    """What a data URL holds; None for another address."""
    head = _DATA_URL.match(source)
    if head is None:
        return None
    return DataUrl(type=head[1].lower(), is_base64=bool(head[2]), payload=source[head.end() :])


def describe_source(part: dict[str, Any]) -> str:
    """Where an image or a file comes from, as text; what is brought along is only measured."""
    what = "file" if part["type"] == "input_file" else "image"
    named = f"{part['filename']}, " if part.get("filename") else ""
    found = part.get("file_id") or part.get("file_url") or part.get("image_url")
    if found and not _DATA_URL.match(found):
        return named + shown(found).text
    return named + describe_data(found or part.get("file_data") or "", what)


def describe_data(data: str, what: str) -> str:
    """The size of bytes that are brought along, and of which type they are."""
    head = _DATA_URL.match(data)
    length = len(data) - (head.end() if head else 0)
    in_base64 = head is None or head[2]
    kind = (head[1] if head else "") or "unknown type"
    return f"data {what}, {kind}, {size(length * 3 // 4 if in_base64 else length)}"


def _citations(annotations: Sequence[dict[str, Any]]) -> list[Citation]:
    """What a text cites, each source once."""
    found: dict[str, Citation] = {}
    for note in annotations:
        url = note.get("url") or ""
        name = note.get("title") or url or note.get("filename") or note.get("file_id") or ""
        host = host_of(url) if url else ""
        found.setdefault(url or name, Citation(name=name, url=url if host else "", host=host))
    return [citation for key, citation in found.items() if key]
