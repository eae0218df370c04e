"""Content parts → the content of chat messages: text, images by URL, files.

Images and files that an item only names are taken from the attachments of the turn.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from conversations.items import ComputerScreenshot, InputFile, InputPart, InputText
from responses.engine.attachments import AttachmentFile, AttachmentImage, AttachmentMap, AttachmentText, attachment_key

Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWriter:
    """Writes parts for one turn."""

    attachments: AttachmentMap = field(default_factory=dict)
    vision: bool = True

    def content(self, parts: Sequence[InputPart]) -> str | list[Message]:
        """What a message says; a lone text is a plain string."""
        if (text := lone_text(parts)) is not None:
            return text
        return [self.part(part) for part in parts]

    def part(self, part: InputPart | ComputerScreenshot) -> Message:
        """One part, with the mark up to which an upstream is to cache."""
        mark = getattr(part, "prompt_cache_breakpoint", None)
        written = self._written(part)
        return written if mark is None else {**written, "prompt_cache_breakpoint": mark.model_dump(exclude_none=True)}

    def _written(self, part: InputPart | ComputerScreenshot) -> Message:
        """One that nobody has found anything for is said to be missing, and not left out."""
        if isinstance(part, InputText):
            return {"type": "text", "text": part.text}
        if not (self.vision or isinstance(part, InputFile)):
            # A request with one was refused, so this is a tool's.
            return {"type": "text", "text": "[An image stands here, which you cannot see.]"}
        name = attachment_key(part) if self.attachments else None
        match self.attachments.get(name) if name else None:
            case AttachmentText(text=text):
                return {"type": "text", "text": text}
            case AttachmentFile(filename=filename, url=url):
                return {"type": "file", "file": {"filename": filename, "file_data": url}}
            case AttachmentImage(url=url):
                return _image(url, part)
        if isinstance(part, InputFile) or part.image_url is None:
            return {"type": "text", "text": "[This file is not available any more.]"}
        return _image(part.image_url, part)

    def tool_output(self, output: str | Sequence[InputPart]) -> tuple[str, list[Message]]:
        """A tool's answer as text, which is all that tool messages carry, and what the user has to show beside it."""
        if isinstance(output, str):
            return output, []
        text = "\n".join(part.text for part in output if isinstance(part, InputText))
        return text, [self.part(part) for part in output if not isinstance(part, InputText)]


def lone_text(parts: Sequence[InputPart]) -> str | None:
    """What a message says that is nothing but one text; None for every other."""
    if len(parts) != 1 or not isinstance(parts[0], InputText) or parts[0].prompt_cache_breakpoint is not None:
        return None
    return parts[0].text


# What other servers call the most detail.
_DETAILS: Mapping[str, str] = {"original": "high"}


def _image(url: str, part: Any) -> Message:
    image: Message = {"url": url}
    if (detail := getattr(part, "detail", None)) is not None:
        image["detail"] = _DETAILS.get(detail, detail)
    return {"type": "image_url", "image_url": image}


def shown_by_user(parts: Iterable[Message]) -> Message:
    """A message of the user that shows what tools have given beside their words."""
    return {"role": "user", "content": [*parts]}
