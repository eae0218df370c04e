"""The `image_generation` tool of a request.

Settings of image models are forwarded unchanged, because each model supports other sizes and qualities.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import override

from conversations.items import MAX_IMAGE_URL
from core.errors import UnsupportedParameter, UnsupportedValue
from core.http.validation import FileId
from core.http.wire import Wire
from responses.schema.images import Background, Compression, ModelName, Size
from responses.schema.tools import ToolParam

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


class ImageMask(Wire):
    """Mask for inpainting: marks the part of an image that an edit may change."""

    file_id: FileId | None = None
    image_url: Annotated[str, Field(min_length=1, max_length=MAX_IMAGE_URL)] | None = None


class ImageGenerationParam(ToolParam):
    """A tool that generates images using an image model."""

    type: Literal["image_generation"]
    model: ModelName | None = None
    action: Literal["generate", "edit", "auto"] | None = None
    background: Background | None = None
    complexity: Literal["low", "medium", "high"] | None = None
    frame_count: int | None = None
    frame_duration_ms: int | None = None
    input_fidelity: Literal["high", "low"] | None = None
    input_image_mask: ImageMask | None = None
    moderation: Literal["auto", "low"] | None = None
    output_compression: Compression | None = None
    output_format: Literal["png", "webp", "jpeg", "gif", "svg"] | None = None
    partial_images: Annotated[int, Field(ge=0, le=3)] | None = None
    quality: Literal["low", "medium", "high", "xhigh", "max", "auto"] | None = None
    size: Size | None = None
    svg: dict[str, Any] | None = None

    @override
    def shown(self) -> dict[str, Any]:
        # Without defaults: they depend on the image model, which this server does not know.
        return self.model_dump(exclude_none=True)

    @override
    def check(self, tools: Sequence[ToolParam], *, param: str) -> None:
        for name in _UNSUPPORTED:
            if getattr(self, name) is not None:
                raise UnsupportedParameter(
                    f"The parameter '{name}' is not supported: animations and vector graphics cannot be made.",
                    param=f"{param}.{name}",
                )
        if self.output_format in {"gif", "svg"}:
            raise UnsupportedValue(
                (f"The output format '{self.output_format}' is not supported by this server: use png, webp or jpeg."),
                param=f"{param}.output_format",
            )
