"""Content parts: text, images and files of inputs; text and refusals of outputs; summaries and reasoning."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from conversations.items.base import MAX_ID, MAX_ITEMS, MAX_TEXT
from core.http.validation import FileId
from core.http.wire import BY_TYPE, STRING_OR, LongInteger, OpenWire

# Data URLs: in characters of base64, a third longer than the bytes.
MAX_IMAGE_URL = 20_971_520
MAX_FILE_DATA = 33_554_432
MAX_URL = 8_192

ImageUrl = Annotated[str, Field(min_length=1, max_length=MAX_IMAGE_URL)]
ImageDetail = Literal["low", "high", "auto", "original"]


class CacheBreakpoint(OpenWire):
    """Marks the end of a prompt prefix that the upstream should cache."""

    mode: Literal["explicit"]
    ttl: Literal["30m", "12h"] | None = None


class InputText(OpenWire):
    """Text of an input."""

    type: Literal["input_text"] = "input_text"
    text: Annotated[str, Field(max_length=MAX_TEXT)]
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class InputImage(OpenWire):
    """An image, by URL, data URL or file id."""

    type: Literal["input_image"] = "input_image"
    image_url: ImageUrl | None = None
    file_id: FileId | None = None
    detail: ImageDetail | None = None
    prompt_cache_breakpoint: CacheBreakpoint | None = None

    @model_validator(mode="after")
    def _one_source(self) -> "InputImage":
        _exactly_one(image_url=self.image_url, file_id=self.file_id)
        return self


class InputFile(OpenWire):
    """A file, by file id, URL or base64 data."""

    type: Literal["input_file"] = "input_file"
    file_id: FileId | None = None
    file_url: Annotated[str, Field(min_length=1, max_length=MAX_URL)] | None = None
    file_data: Annotated[str, Field(min_length=1, max_length=MAX_FILE_DATA)] | None = None
    filename: Annotated[str, Field(max_length=MAX_ID)] | None = None
    detail: Literal["auto", "low", "high"] | None = None
    prompt_cache_breakpoint: CacheBreakpoint | None = None

    @model_validator(mode="after")
    def _one_source(self) -> "InputFile":
        _exactly_one(file_id=self.file_id, file_url=self.file_url, file_data=self.file_data)
        return self


def _exactly_one(**sources: str | None) -> None:
    given = sum(source is not None for source in sources.values())
    if given != 1:
        *names, last = (f"'{name}'" for name in sources)
        message = f"exactly one of {', '.join(names)} and {last} must be given, but {given or 'none'} is."
        raise ValueError(message.replace("2 is", "2 are").replace("3 is", "3 are"))


class FileCitation(OpenWire):
    """Citation of a file."""

    type: Literal["file_citation"] = "file_citation"
    file_id: str
    filename: str
    index: LongInteger


class UrlCitation(OpenWire):
    """Citation of a web page."""

    type: Literal["url_citation"] = "url_citation"
    url: str
    title: str
    start_index: LongInteger
    end_index: LongInteger


class ContainerFileCitation(OpenWire):
    """Citation of a file in a container."""

    type: Literal["container_file_citation"] = "container_file_citation"
    container_id: str
    file_id: str
    filename: str
    start_index: LongInteger
    end_index: LongInteger


class FilePath(OpenWire):
    """Path of a generated file that the text mentions."""

    type: Literal["file_path"] = "file_path"
    file_id: str
    index: LongInteger


Annotation = Annotated[FileCitation | UrlCitation | ContainerFileCitation | FilePath, BY_TYPE]


class OutputText(OpenWire):
    """Text of an output."""

    type: Literal["output_text"] = "output_text"
    text: Annotated[str, Field(max_length=MAX_TEXT)]
    annotations: list[Annotation] | None = None
    logprobs: list[dict[str, Any]] | None = None


class Refusal(OpenWire):
    """A refusal of the model, with its explanation."""

    type: Literal["refusal"] = "refusal"
    refusal: str


class SummaryText(OpenWire):
    """A paragraph of a reasoning summary."""

    type: Literal["summary_text"] = "summary_text"
    text: str


class ReasoningText(OpenWire):
    """Raw reasoning text."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


InputPart = Annotated[InputText | InputImage | InputFile, BY_TYPE]
OutputPart = Annotated[OutputText | Refusal, BY_TYPE]


InputContent = Annotated[
    Annotated[str, Field(max_length=MAX_TEXT)]
    | Annotated[list[InputPart], Field(max_length=MAX_ITEMS, fail_fast=True)],
    STRING_OR,
]
OutputContent = Annotated[
    Annotated[str, Field(max_length=MAX_TEXT)]
    | Annotated[list[OutputPart], Field(max_length=MAX_ITEMS, fail_fast=True)],
    STRING_OR,
]


def input_part(part: InputPart) -> dict[str, Any]:
    """Return a part of an input in public form."""
    match part:
        # Fast path for the most frequent part.
        case InputText(prompt_cache_breakpoint=None) if not part.model_extra:
            return {"type": "input_text", "text": part.text}
        case InputImage():
            return {**part.model_dump(exclude_none=True), "detail": part.detail or "auto"}
    return part.model_dump(exclude_none=True)


def input_content(content: str | list[InputPart]) -> str | list[dict[str, Any]]:
    """Return the output of a tool in public form."""
    return content if isinstance(content, str) else [input_part(part) for part in content]


def output_part(part: OutputPart) -> dict[str, Any]:
    """Return a part of an output in public form. Lists without a value are empty, not null."""
    if isinstance(part, Refusal):
        return {"type": "refusal", "refusal": part.refusal, **part.additional}
    return {
        "type": "output_text",
        "text": part.text,
        "annotations": [annotation.model_dump() for annotation in part.annotations or ()],
        "logprobs": part.logprobs or [],
        **part.additional,
    }
