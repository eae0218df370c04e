"""Converts content parts to the content of chat messages: text, images and files.

Images and files that an item only references are taken from the attachments of the turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from conversations.items import ComputerScreenshot, InputFile, InputImage, InputPart, InputText
from core.records import record
from engine.attachments import (
    AttachmentFile,
    AttachmentImage,
    AttachmentMap,
    AttachmentText,
    attachment_key,
    is_data_url,
)

Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """An image or file of a tool's output. It follows in a user message, after its label."""

    label: str
    part: Message

    @property
    def placeholder(self) -> str:
        """Text that replaces the image or file in the tool message."""
        return f"[{self.label}: it follows in a user message.]"


@record
class PartWriter:
    """Writer of the content parts of one turn. `vision`: the model reads images."""

    attachments: AttachmentMap = field(default_factory=dict)
    vision: bool = True

    def content(self, parts: Sequence[InputPart]) -> str | list[Message]:
        """Return the content of a message."""
        # A single text becomes a plain string, since some servers do not support lists of parts.
        if (text := single_text(parts)) is not None:
            return text
        return [self.part(part) for part in parts]

    def part(self, part: InputPart | ComputerScreenshot) -> Message:
        """Return one part, with its prompt cache breakpoint if it has one."""
        breakpoint_ = None if isinstance(part, ComputerScreenshot) else part.prompt_cache_breakpoint
        written = self._convert(part)
        if breakpoint_ is None:
            return written
        return {**written, "prompt_cache_breakpoint": breakpoint_.model_dump(exclude_none=True)}

    def _convert(self, part: InputPart | ComputerScreenshot) -> Message:
        if isinstance(part, InputText):
            return {"type": "text", "text": part.text}
        if not (self.vision or isinstance(part, InputFile)):
            # The image is from the output of a tool: an image in the request would have been rejected.
            return {"type": "text", "text": "[Image omitted: this model cannot read images.]"}
        match self.attachments.get(attachment_key(part)) if self.attachments else None:
            case AttachmentText(text=text):
                return {"type": "text", "text": text}
            case AttachmentFile(filename=filename, url=url):
                return {"type": "file", "file": {"filename": filename, "file_data": url}}
            case AttachmentImage(url=url):
                return _image(url, part)
        # Tools return images as data. A web URL that was not loaded is never forwarded: the upstream would fetch it
        # without the platform's egress checks.
        if not isinstance(part, InputFile) and part.image_url is not None and is_data_url(part.image_url):
            return _image(part.image_url, part)
        # A note, because a model might answer wrongly if the part were silently dropped.
        kind = "file" if isinstance(part, InputFile) else "image"
        return {"type": "text", "text": f"[This {kind} is not available any more.]"}

    def tool_output(self, output: str | Sequence[InputPart | ComputerScreenshot]) -> tuple[str, list[Media]]:
        """Return a tool's output as text, and the images and files that follow in a user message.

        Tool messages of chat completions contain only text. The text includes the extracted text of files, and a
        placeholder for each image and file that follows: a model that reads an empty output calls the tool again.
        """
        if isinstance(output, str):
            return output, []
        texts: list[str] = []
        media: list[Media] = []
        for part in output:
            written = self.part(part)
            if written["type"] == "text":
                texts.append(written["text"])
                continue
            kind = "File" if written["type"] == "file" else "Image"
            label = f"{kind} {1 + sum(medium.label.startswith(kind) for medium in media)}"
            if isinstance(part, InputFile) and part.filename:
                label += f" ({part.filename})"
            media.append(Media(label=label, part=written))
            texts.append(media[-1].placeholder)
        return "\n".join(texts), media


def single_text(parts: Sequence[InputPart]) -> str | None:
    """Return the text of content that is a single text part; None for any other."""
    if len(parts) != 1 or not isinstance(parts[0], InputText) or parts[0].prompt_cache_breakpoint is not None:
        return None
    return parts[0].text


# Servers other than OpenAI do not know `original`.
_DETAILS: Mapping[str, str] = {"original": "high"}


def _image(url: str, part: Any) -> Message:
    image: Message = {"url": url}
    if isinstance(part, InputImage) and (detail := part.detail) is not None:
        image["detail"] = _DETAILS.get(detail, detail)
    return {"type": "image_url", "image_url": image}
