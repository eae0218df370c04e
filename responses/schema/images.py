"""The `image_generation` tool and the bodies of `/v1/images`.

Settings of image models are forwarded unchanged, because each model supports other sizes and qualities.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from conversations.items import MAX_IMAGE_URL, MAX_TEXT, Wire
from kernel.errors import UnsupportedParameter, UnsupportedValue

MAX_EDIT_IMAGES = 16
"""Maximum number of input images of an edit."""
FORWARDED = (
    "background",
    "input_fidelity",
    "moderation",
    "output_compression",
    "output_format",
    "quality",
    "size",
)
"""Settings of the tool that are forwarded to the image model."""
# Parameters of animations and vector graphics.
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
    """Mask for inpainting: marks the part of an image that an edit may change."""

    file_id: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    image_url: Annotated[str, Field(min_length=1, max_length=MAX_IMAGE_URL)] | None = None


class ImageGenerationParam(Wire):
    """A tool that generates images using an image model."""

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
        """Return the tool as the response shows it: with the fields that were sent."""
        # Without defaults: they depend on the image model, which this server does not know.
        return self.model_dump(exclude_none=True)


def check_image_tool(tool: ImageGenerationParam, *, where: str) -> None:
    """Raise an API error for features of the newest OpenAI models: animated images and vector graphics."""
    for name in _UNSUPPORTED:
        if getattr(tool, name) is not None:
            message = f"The parameter '{name}' is not supported: animations and vector graphics cannot be made."
            raise UnsupportedParameter(message, param=f"{where}.{name}")
    if tool.output_format in {"gif", "svg"}:
        message = f"The output format '{tool.output_format}' is not supported by this server: use png, webp or jpeg."
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
    """Create an image given a prompt."""

    style: _Word | None = None


class EditImage(_Image):
    """Create an edited image given a prompt and one or more source images, which are uploaded with the form."""

    input_fidelity: Literal["high", "low"] | None = None


def check_image(values: Mapping[str, Any]) -> None:
    """Raise UnsupportedParameter for streaming."""
    # These endpoints wait for the final image. Partial images are available from the `image_generation` tool.
    for name in ("stream", "partial_images"):
        if values.get(name):
            message = f"The parameter '{name}' is not supported here: use the 'image_generation' tool of a response."
            raise UnsupportedParameter(message, param=name)
