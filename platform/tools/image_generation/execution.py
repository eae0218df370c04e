"""The `image_generation` tool: the model writes a prompt and an image model creates the image.

The image is part of the item. Later turns and responses read it from there, as an image if the model accepts images.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from typing_extensions import override

from conversations.items import ImageGenerationCall, InputImage, InputMessage, StoredItem
from core.errors import SERVER_ERROR, ApiError
from core.ids import new_id
from engine.attachments import AttachmentImage, Attachments, all_parts, attachment_key
from engine.calls.outcomes import ToolLimits, ToolResult, parse_object
from engine.calls.toolbox import HostedTool, hosted_function
from engine.events.tools import ImageGenerationCallPartialImage
from engine.events.types import Body, Event
from engine.state import RunContext, RunState
from engine.turn import Call, FunctionTool
from responses.passthrough.images import GeneratedImage, ImageRequest
from responses.schema.images import MAX_EDIT_IMAGES
from tools.image_generation.schema import FORWARDED

NAME = "image_generation"
# Image models may take several minutes for one high-quality image.
_TIMEOUT_SECONDS = 600.0
_DESCRIPTION = "Generates an image and shows it to the user."
_EDIT_DESCRIPTION = " It can also edit images of this conversation; it receives the most recent ones."


class ImageGenerator(Protocol):
    """Client of an image model."""

    async def generate(self, request: ImageRequest, partial: Callable[[int, GeneratedImage], None]) -> GeneratedImage:
        """Return the final image; `partial` is called with each partial image. Raises ApiError."""
        ...


class _InvalidImageCall(Exception):
    """The call cannot be made as requested. The message is for the model."""

    code = "invalid_request"


class ImageGenerationTool(HostedTool):
    """Image generation of one run.

    `shown` is the tool as the response shows it. `content` loads the images that an edit starts from.
    """

    kind = NAME
    names = (NAME,)
    concurrency = 2

    def __init__(self, shown: Mapping[str, Any], *, generator: ImageGenerator, content: Attachments) -> None:
        self._action: str = shown.get("action", "auto")
        self._settings = {name: shown[name] for name in FORWARDED if name in shown}
        self._partial_images: int = shown.get("partial_images", 0)
        self._mask: Mapping[str, Any] = shown.get("input_image_mask") or {}
        self._generator = generator
        self._content = content
        self._context_items: Callable[[], Sequence[StoredItem]] = tuple

    @override
    async def start(self, context: RunContext, state: RunState) -> None:
        # Kept as a function: the context grows with every turn, and an edit needs the latest images.
        self._context_items = lambda: [*context.items, *state.context_items()]

    @override
    def functions(self) -> tuple[FunctionTool, ...]:
        properties: dict[str, Any] = {"prompt": {"type": "string", "description": "A description of the image."}}
        if self._action == "auto":
            properties["action"] = {"type": "string", "enum": ["generate", "edit"]}
        about = _DESCRIPTION if self._action == "generate" else _DESCRIPTION + _EDIT_DESCRIPTION
        return (hosted_function(NAME, about, **properties),)

    @override
    def limits(self) -> ToolLimits:
        return ToolLimits(seconds=_TIMEOUT_SECONDS)

    @override
    def may_repeat(self, name: str) -> bool:
        # After a crash the image is generated again. That costs a second image but changes nothing else.
        return True

    @override
    def open_item(self, call: Call) -> Body:
        settings = {name: value for name, value in self._settings.items() if name in _PUBLIC_SETTINGS}
        body = {"id": new_id("ig"), "type": "image_generation_call", "status": "in_progress", "result": None}
        return {**body, "action": self._action_of(call), "revised_prompt": _prompt(call), **settings}

    @override
    async def call(self, call: Call) -> ToolResult:
        try:
            request = await self._build_request(call)
            image = await self._generator.generate(request, lambda index, part: self._partial(call, index, part))
        except _InvalidImageCall as error:
            return _failed(str(error), code=error.code)
        except ApiError as error:
            return _failed(error.message, code=error.code or SERVER_ERROR)
        public_settings = {name: value for name, value in image.settings.items() if name in _PUBLIC_SETTINGS}
        revised = {"revised_prompt": image.revised_prompt} if image.revised_prompt else {}
        fields = {**public_settings, **revised, "result": image.content}
        return ToolResult(output="The image was generated.", fields=fields)

    @override
    def close_items(self, body: Body, call: Call, result: ToolResult) -> list[Body]:
        if result.error is None:
            return [{**body, **result.fields, "status": "completed"}]
        error = result.fields.get("error") or _error(result.output, code=result.error)
        return [{**body, "status": "failed", "result": "", "error": error}]

    # -- building the request ------------------------------------------------------------------------------------------

    async def _build_request(self, call: Call) -> ImageRequest:
        prompt = _prompt(call)
        if prompt is None:
            raise _InvalidImageCall("'prompt' must be a string")
        pictures: Sequence[str] = ()
        mask: str | None = None
        if self._action_of(call) == "edit":
            pictures = await self._source_images()
            if not pictures:
                raise _InvalidImageCall("there is no image to edit in this conversation")
            if self._mask:
                part = InputImage(type="input_image", detail="auto", **self._mask)
                message = InputMessage(role="user", content=[part])
                found = await self._content.load([message], files=False, inline_images=True)
                image = found.get(attachment_key(part))
                if not isinstance(image, AttachmentImage):
                    raise _InvalidImageCall("the mask image is no longer available")
                mask = image.url
        return ImageRequest(
            prompt=prompt,
            settings=self._settings,
            pictures=pictures,
            mask=mask,
            partial_images=self._partial_images,
            effect_id=call.effect_id,
        )

    def _action_of(self, call: Call) -> str:
        if self._action != "auto":
            return self._action
        return "edit" if (parse_object(call.arguments) or {}).get("action") == "edit" else "generate"

    async def _source_images(self) -> list[str]:
        # Newest last, user images and generated ones alike. Image models accept a limited number of images.
        items = self._context_items()
        found = await self._content.load(items, files=False, inline_images=True)
        urls: list[str] = []
        for item in items:
            if isinstance(item, ImageGenerationCall) and item.data_url is not None:
                urls.append(item.data_url)
            for part in all_parts([item]):
                image = found.get(attachment_key(part))
                if isinstance(image, AttachmentImage):
                    urls.append(image.url)
        return urls[-MAX_EDIT_IMAGES:]

    def _partial(self, call: Call, index: int, part: GeneratedImage) -> None:
        if self.report is None:
            return
        public_settings = {name: value for name, value in part.settings.items() if name in _PUBLIC_SETTINGS}

        def event(body: Body, output_index: int) -> Event:
            return ImageGenerationCallPartialImage(
                body["id"], output_index, partial_image_index=index, partial_image_b64=part.content, **public_settings
            )

        self.report(call.call_id, event)


_PUBLIC_SETTINGS = frozenset({"background", "output_format", "quality", "size"})


def _prompt(call: Call) -> str | None:
    prompt = (parse_object(call.arguments) or {}).get("prompt")
    return prompt if isinstance(prompt, str) and prompt.strip() else None


def _error(message: str, *, code: str) -> Body:
    return {"code": code, "message": message, "type": "image_generation_error"}


def _failed(message: str, *, code: str) -> ToolResult:
    return ToolResult(output=f"error: {message}", error="failed", fields={"error": _error(message, code=code)})
