"""Display parts of items: text, JSON, images and files.

Images and files are loaded only from this platform, because a page must not reveal its viewer to other hosts.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.utils.safestring import SafeString

from console.markdown import host_of, render
from console.widgets import SHOWN_CHARACTERS, Shown, shown, size
from tenants.console.content_access import HIDDEN

_DATA_URL_PATTERN = re.compile(r"data:([^;,]*)(;base64)?,")
MEDIA = ("image", "file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """A source that a text cites. `url` and `host` are empty unless the source is a web page."""

    name: str
    url: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPart:
    """A part of an item, with an optional heading.

    - `kind`: text, json, markdown, refusal, image or file, or hidden for viewers who may not read content.
    - `detail`: follows the label; may quote content.
    - `raw`: JSON as it was received.
    - `source`: data URL, file id or web address of an image or a file.
    - `url`: URL of this platform that serves the image or file, or the rest of a long text.
    - `length`: size in bytes if the content itself is not loaded.
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
        """Host of the web address of an image or a file; empty if the image or file is stored here."""
        return host_of(self.source) if self.source and not _DATA_URL_PATTERN.match(self.source) else ""

    @property
    def body(self) -> Shown:
        """Beginning of the text."""
        return shown(self.text)

    @property
    def html(self) -> SafeString:
        """The text, rendered as Markdown."""
        return render(self.text)

    @property
    def is_long(self) -> bool:
        return len(self.text) > SHOWN_CHARACTERS

    @property
    def weight(self) -> int:
        """Size in bytes."""
        if self.length is not None:
            return self.length
        if (data := parse_data_url(self.source)) is not None:
            # Base64 encodes three bytes in four characters.
            return len(data.payload) * 3 // 4 if data.is_base64 else len(data.payload)
        # JSON from clients may contain lone surrogates, which UTF-8 cannot encode.
        return len((self.raw or self.text).encode(errors="replace"))

    @property
    def size(self) -> str:
        return size(self.weight)

    def as_plain_text(self) -> "ItemPart":
        """Return the part with Markdown shown as plain text."""
        return replace(self, kind="text") if self.kind == "markdown" else self

    def without_content(self) -> "ItemPart":
        """Return a placeholder for viewers who may not read the part: label and size only."""
        return ItemPart(kind="hidden", label=self.label, text=HIDDEN, length=self.weight)


def read_part(part: dict[str, Any]) -> ItemPart:
    """Return the display part for a content part of a message."""
    match part["type"]:
        case "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text":
            return ItemPart(kind="markdown", text=part["text"], citations=_citations(part.get("annotations") or ()))
        case "refusal":
            return ItemPart(kind="refusal", label="Refusal", text=part["refusal"])
        case "input_image" | "computer_screenshot" | "input_file":
            return media_part(part)
    return json_part("", part)


def json_part(label: str, value: Any) -> ItemPart:
    """Return a part with indented JSON. A string that is not JSON, or is long, is shown as received."""
    if not isinstance(value, str):
        return ItemPart(kind="json", label=label, text=_indented(value))
    # Parsing and indenting megabytes would slow the page down for text that it does not show.
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
    """Return a part that describes an image or a file. Its `url` is set later, because it contains the item's key."""
    kind = "file" if part["type"] == "input_file" else "image"
    found = part.get("file_id") or part.get("file_url") or part.get("image_url") or ""
    if not found and (data := part.get("file_data")):
        # Clients send file data as a data URL or as bare base64.
        found = data if _DATA_URL_PATTERN.match(data) else f"data:application/octet-stream;base64,{data}"
    return ItemPart(kind=kind, label=label, text=describe_source(part), source=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataUrl:
    """A parsed data URL: the declared type, and the payload, still encoded."""

    type: str
    is_base64: bool
    payload: str


def parse_data_url(source: str) -> DataUrl | None:
    """Parse a data URL. Return None for other addresses."""
    head = _DATA_URL_PATTERN.match(source)
    if head is None:
        return None
    return DataUrl(type=head[1].lower(), is_base64=bool(head[2]), payload=source[head.end() :])


def describe_source(part: dict[str, Any]) -> str:
    """Describe the source of an image or a file. Inline data is described by type and size."""
    what = "file" if part["type"] == "input_file" else "image"
    named = f"{part['filename']}, " if part.get("filename") else ""
    found = part.get("file_id") or part.get("file_url") or part.get("image_url")
    if found and not _DATA_URL_PATTERN.match(found):
        return named + shown(found).text
    return named + describe_data(found or part.get("file_data") or "", what)


def describe_data(data: str, what: str) -> str:
    """Describe inline data by its type and size."""
    head = _DATA_URL_PATTERN.match(data)
    length = len(data) - (head.end() if head else 0)
    in_base64 = head is None or head[2]
    kind = (head[1] if head else "") or "unknown type"
    return f"data {what}, {kind}, {size(length * 3 // 4 if in_base64 else length)}"


def _citations(annotations: Sequence[dict[str, Any]]) -> list[Citation]:
    # A text often cites one source many times: list each one once.
    found: dict[str, Citation] = {}
    for note in annotations:
        url = note.get("url") or ""
        name = note.get("title") or url or note.get("filename") or note.get("file_id") or ""
        host = host_of(url) if url else ""
        # `host` is empty for addresses that are not HTTP. Such addresses do not become links.
        found.setdefault(url or name, Citation(name=name, url=url if host else "", host=host))
    return [citation for key, citation in found.items() if key]
