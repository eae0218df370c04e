"""The tool `image_generation`, and the bodies of `/v1/images`.

What an image model can be asked for is sent on as it is: which sizes and qualities there are is for its server to say.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from conversations.items import MAX_IMAGE_URL, MAX_TEXT, Wire
from kernel.errors import UnsupportedParameter, UnsupportedValue

MAX_EDIT_IMAGES = 16
"""How many pictures one edit is given."""
FORWARDED = (
    "background",
    "input_fidelity",
    "moderation",
    "output_compression",
    "output_format",
    "quality",
    "size",
)
"""The settings of the tool that its model is told."""
_UNSUPPORTED = ("complexity", "frame_count", "frame_duration_ms", "svg")
_ModelName = Annotated[str, Field(min_length=1, max_length=200)]
_Background = Literal["transparent", "opaque", "auto"]
_Compression = Annotated[int, Field(ge=0, le=100)]
_Format = Literal["png", "webp", "jpeg"]
_Number = Annotated[int, Field(ge=1, le=10)]
_Prompt = Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
_Size = Annotated[str, Field(min_length=1, max_length=40)]
_Word = Annotated[str, Field(min_length=1, max_length=40)]


class ImageMask(Wire):
    """Which part of a picture an edit may change."""

    file_id: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    image_url: Annotated[str, Field(min_length=1, max_length=MAX_IMAGE_URL)] | None = None


class ImageGenerationParam(Wire):
    """Lets the model ask an image model for pictures."""

    type: Literal["image_generation"]
    model: _ModelName | None = None
    action: Literal["generate", "edit", "auto"] | None = None
    background: _Background | None = None
    complexity: Literal["low", "medium", "high"] | None = None
    frame_count: int | None = None
    frame_duration_ms: int | None = None
    input_fidelity: Literal["high", "low"] | None = None
    input_image_mask: ImageMask | None = None
    moderation: Literal["auto", "low"] | None = None
    output_compression: _Compression | None = None
    output_format: Literal["png", "webp", "jpeg", "gif", "svg"] | None = None
    partial_images: Annotated[int, Field(ge=0, le=3)] | None = None
    quality: Literal["low", "medium", "high", "xhigh", "max", "auto"] | None = None
    size: _Size | None = None
    svg: dict[str, Any] | None = None

    def shown(self) -> dict[str, Any]:
        """The tool as the response object echoes it: what was sent."""
        return self.model_dump(exclude_none=True)


def check_image_tool(tool: ImageGenerationParam, *, where: str) -> None:
    """Refuse what only the newest models of OpenAI's draw: pictures that move, and those made of lines."""
    for name in _UNSUPPORTED:
        if getattr(tool, name) is not None:
            message = f"The parameter '{name}' is not supported by this server: it makes no moving or drawn images."
            raise UnsupportedParameter(message, param=f"{where}.{name}")
    if tool.output_format in {"gif", "svg"}:
        message = f"Images are made as PNG, WebP or JPEG by this server, not as '{tool.output_format}'."
        raise UnsupportedValue(message, param=f"{where}.output_format")


class _Image(Wire):
    model: _ModelName | None = None
    prompt: _Prompt
    background: _Background | None = None
    moderation: Literal["auto", "low"] | None = None
    n: _Number | None = None
    output_compression: _Compression | None = None
    output_format: _Format | None = None
    partial_images: int | None = None
    quality: _Word | None = None
    response_format: Literal["url", "b64_json"] | None = None
    size: _Size | None = None
    stream: bool | None = None
    user: str | None = None


class CreateImage(_Image):
    """A request for pictures."""

    style: _Word | None = None


class EditImage(_Image):
    """A request to change pictures, without the pictures themselves: the fields of a form."""

    input_fidelity: Literal["high", "low"] | None = None


def check_image(values: Mapping[str, Any]) -> None:
    """Refuse a stream: these endpoints answer at once; the tool `image_generation` shows pictures as they are drawn."""
    for name in ("stream", "partial_images"):
        if values.get(name):
            message = f"The parameter '{name}' is not supported here: use the tool 'image_generation' of a response."
            raise UnsupportedParameter(message, param=name)
