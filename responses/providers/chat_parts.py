"""Converts content parts to the content of chat messages: text, images and files.

Images and files that an item only references are taken from the attachments of the turn.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from conversations.items import ComputerScreenshot, InputFile, InputPart, InputText
from responses.engine.attachments import AttachmentFile, AttachmentImage, AttachmentMap, AttachmentText, attachment_key

Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
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
        breakpoint_ = getattr(part, "prompt_cache_breakpoint", None)
        written = self._convert(part)
        if breakpoint_ is None:
            return written
        return {**written, "prompt_cache_breakpoint": breakpoint_.model_dump(exclude_none=True)}

    def _convert(self, part: InputPart | ComputerScreenshot) -> Message:
        if isinstance(part, InputText):
            return {"type": "text", "text": part.text}
        if not (self.vision or isinstance(part, InputFile)):
            # An image in the request would have been rejected, so this one is from the output of a tool.
            return {"type": "text", "text": "[Image omitted: this model cannot read images.]"}
        name = attachment_key(part) if self.attachments else None
        match self.attachments.get(name) if name else None:
            case AttachmentText(text=text):
                return {"type": "text", "text": text}
            case AttachmentFile(filename=filename, url=url):
                return {"type": "file", "file": {"filename": filename, "file_data": url}}
            case AttachmentImage(url=url):
                return _image(url, part)
        if isinstance(part, InputFile) or part.image_url is None:
            # A note, because a model might answer wrongly if the part were silently dropped.
            return {"type": "text", "text": "[This file is not available any more.]"}
        return _image(part.image_url, part)

    def tool_output(self, output: str | Sequence[InputPart]) -> tuple[str, list[Message]]:
        """Return a tool's output as text and its images and files as parts for a user message."""
        # Tool messages of chat completions only contain text.
        if isinstance(output, str):
            return output, []
        text = "\n".join(part.text for part in output if isinstance(part, InputText))
        return text, [self.part(part) for part in output if not isinstance(part, InputText)]


def single_text(parts: Sequence[InputPart]) -> str | None:
    """Return the text of content that is a single text part; None for any other."""
    if len(parts) != 1 or not isinstance(parts[0], InputText) or parts[0].prompt_cache_breakpoint is not None:
        return None
    return parts[0].text


# Servers other than OpenAI do not know `original`.
_DETAILS: Mapping[str, str] = {"original": "high"}


def _image(url: str, part: Any) -> Message:
    image: Message = {"url": url}
    if (detail := getattr(part, "detail", None)) is not None:
        image["detail"] = _DETAILS.get(detail, detail)
    return {"type": "image_url", "image_url": image}


def user_message(parts: Iterable[Message]) -> Message:
    """Return a user message with images and files from tool outputs."""
    return {"role": "user", "content": [*parts]}
