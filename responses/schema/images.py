"""The bodies of `/v1/images`.

Settings of image models are forwarded unchanged, because each model supports other sizes and qualities.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from conversations.items import MAX_TEXT
from core.errors import UnsupportedParameter
from core.http.wire import Wire

MAX_EDIT_IMAGES = 16
"""Maximum number of input images of an edit."""
ModelName = Annotated[str, Field(min_length=1, max_length=200)]
Background = Literal["transparent", "opaque", "auto"]
Compression = Annotated[int, Field(ge=0, le=100)]
_Format = Literal["png", "webp", "jpeg"]
_Number = Annotated[int, Field(ge=1, le=10)]
_Prompt = Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
Size = Annotated[str, Field(min_length=1, max_length=40)]
_Word = Annotated[str, Field(min_length=1, max_length=40)]


class _Image(Wire):
    model: ModelName | None = None
    prompt: _Prompt
    background: Background | None = None
    moderation: Literal["auto", "low"] | None = None
    n: _Number | None = None
    output_compression: Compression | None = None
    output_format: _Format | None = None
    partial_images: int | None = None
    quality: _Word | None = None
    response_format: Literal["url", "b64_json"] | None = None
    size: Size | None = None
    stream: bool | None = None
    user: str | None = None
    safety_identifier: Annotated[str, Field(max_length=128)] | None = None


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
            raise UnsupportedParameter(
                f"The parameter '{name}' is not supported here: use the 'image_generation' tool of a response.",
                param=name,
            )
