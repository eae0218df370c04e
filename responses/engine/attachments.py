"""What stands behind the images and files of an input: items name them, models get their bytes or their words.

Items stay as the client sent them. What was found for them travels beside them, by the name that each part has here.
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
    """An image as a data URL."""

    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentFile:
    """A file for a model that reads files itself."""

    filename: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentText:
    """Text in a part's place: what a file says, or why the part cannot be had any more."""

    text: str


Attachment = AttachmentImage | AttachmentFile | AttachmentText
AttachmentMap = Mapping[str, Attachment]


class Attachments(Protocol):
    """Finds what stands behind the parts of a run's items."""

    async def load(self, items: Sequence[StoredItem], *, files: bool, inline_images: bool) -> AttachmentMap:
        """What was found for these items, never failing: what cannot be had is said in words.

        `files`: the model reads files itself. `inline_images`: it does not fetch images by itself.
        """
        ...

    def file_texts(self, items: Iterable[StoredItem]) -> list[str]:
        """The texts that stand in the place of files, as far as they have been looked for."""
        ...


def attachment_key(part: Part) -> str | None:
    """The same for parts that mean the same; None for an image that brings its bytes along."""
    if not isinstance(part, InputFile):
        url = part.image_url
        return None if url and url.startswith("data:") else f"image {part.file_id or url}"
    if part.file_data is None:
        return f"file {part.file_id or part.file_url}"
    # Python keeps the hash of a string with it, so that megabytes are looked through only once.
    return f"file {hash((part.filename, part.file_data))} {len(part.file_data)}"


def parts_of(item: StoredItem) -> Iterator[tuple[str, Part]]:
    """The images and files of an item, each with the path that leads to it."""
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
    """The images and files of some items."""
    return (part for item in items for _, part in parts_of(item))
