"""Attachments: images and files that items reference. Models get their bytes or their extracted text.

Items stay as the client sent them. The attachments of a turn are passed separately, in a mapping by `attachment_key`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from conversations.items import (
    ComputerCallOutput,
    ComputerScreenshot,
    CustomToolCallOutput,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputMessage,
    StoredItem,
)

Part = InputImage | InputFile | ComputerScreenshot


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentImage:
    """Image as a data URL, or as a web URL if the upstream downloads images itself."""

    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentFile:
    """File as a data URL, for a model that reads files itself."""

    filename: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentText:
    """Text that replaces a part: the extracted text of a file, or the reason why the part is not available."""

    text: str


Attachment = AttachmentImage | AttachmentFile | AttachmentText
AttachmentMap = Mapping[str, Attachment]


class Attachments(Protocol):
    """Loads the attachments of a run's items."""

    async def load(self, items: Sequence[StoredItem], *, files: bool, inline_images: bool) -> AttachmentMap:
        """Return the attachments of these items. An attachment that cannot be loaded becomes an explanatory text.

        `files`: the model reads files itself. `inline_images`: images by URL are downloaded here, not by the upstream.
        """
        ...

    def file_texts(self, items: Iterable[StoredItem]) -> list[str]:
        """Return the extracted texts of files, without files that have not been loaded yet."""
        ...


def is_data_url(url: str) -> bool:
    """Return true for a URL that contains its content."""
    return url[:5].lower() == "data:"


def attachment_key(part: Part) -> str:
    """Return a key that is equal for parts with the same content."""
    # Python caches the hash of a string, so megabytes of inline data are scanned only once.
    if not isinstance(part, InputFile):
        if part.file_id is None and part.image_url is not None and is_data_url(part.image_url):
            return f"image data {hash(part.image_url)} {len(part.image_url)}"
        return f"image {part.file_id or part.image_url}"
    if part.file_data is None:
        return f"file {part.file_id or part.file_url}"
    return f"file {hash((part.filename, part.file_data))} {len(part.file_data)}"


def parts_of(item: StoredItem) -> Iterator[tuple[str, Part]]:
    """Yield the images and files of an item, each with its path inside the item, e.g. `content[0]`."""
    match item:
        case InputMessage():
            field, parts = "content", item.content
        case FunctionCallOutput() | CustomToolCallOutput():
            field, parts = "output", item.output
        case ComputerCallOutput():
            yield "output", item.output
            return
        case _:
            return
    if not isinstance(parts, str):
        for index, part in enumerate(parts):
            if isinstance(part, InputImage | InputFile):
                yield f"{field}[{index}]", part


def all_parts(items: Iterable[StoredItem]) -> Iterator[Part]:
    """Yield the images and files of all items."""
    return (part for item in items for _, part in parts_of(item))
