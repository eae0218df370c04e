"""The tool `image_generation`: the model says what is to be seen, and an image model draws it.

The picture stands in its item; later turns and responses read it from there, as an image where the model reads images.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Protocol

from conversations.items import ImageGenerationCall, InputFile, InputImage, InputMessage, StoredItem
from kernel.errors import ApiError
from kernel.ids import new_id
from responses.engine.attachments import AttachmentImage, Attachments, all_parts, attachment_key
from responses.engine.calls.item_events import after_result, before_result
from responses.engine.calls.outcomes import CallDecision, ClosedItem, Execute, ToolLimits, ToolResult, parse_object
from responses.engine.calls.port import ProgressEvent
from responses.engine.events.tools import ImageGenerationCallPartialImage
from responses.engine.events.types import Body, Event
from responses.engine.state import RunContext, RunState
from responses.engine.steps import Emitted, ToolsPrepared
from responses.engine.turn import Call, CallForm, FunctionTool
from responses.passthrough.images import GeneratedImage, ImageRequest
from responses.schema.images import FORWARDED, MAX_EDIT_IMAGES

NAME = "image_generation"
_SECONDS = 600.0
_ABOUT = "Makes an image, which the user gets to see."
_EDITS = " It can also change the images of this conversation, of which it is given the latest."


class ImageGenerator(Protocol):
    """Asks an image model."""

    async def generate(self, order: ImageRequest, partial: Callable[[int, GeneratedImage], None]) -> GeneratedImage:
        """The picture; `partial` is told those that come before it. Raises `ApiError`."""
        ...


class _InvalidImageCall(Exception):
    """The call cannot be made like this; the message is for the model."""


class ImageToolbox:
    """The pictures of one run. `shown` is the tool as the response echoes it; `content` finds the images to change."""

    concurrency = 2

    def __init__(self, shown: Mapping[str, Any], *, generator: ImageGenerator, content: Attachments) -> None:
        self._action: str = shown.get("action", "auto")
        self._settings = {name: shown[name] for name in FORWARDED if name in shown}
        self._partial_images: int = shown.get("partial_images", 0)
        self._mask: Mapping[str, Any] = shown.get("input_image_mask") or {}
        self._generator = generator
        self._content = content
        self._read: Callable[[], Sequence[StoredItem]] = tuple
        self._tell: Callable[[str, ProgressEvent], None] | None = None

    async def prepare(self, context: RunContext, state: RunState) -> AsyncGenerator[Emitted | ToolsPrepared, None]:
        """Nothing comes first; but what the model reads is remembered, for the images in it."""
        self._read = lambda: [*context.items, *state.context_items()]
        nothing: tuple[ToolsPrepared, ...] = ()
        for step in nothing:
            yield step

    def functions(self) -> tuple[FunctionTool, ...]:
        """One function, in which the model says what is to be seen."""
        properties: dict[str, Any] = {"prompt": {"type": "string", "description": "What is to be seen."}}
        if self._action == "auto":
            properties["action"] = {"type": "string", "enum": ["generate", "edit"]}
        parameters = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
        about = _ABOUT if self._action == "generate" else _ABOUT + _EDITS
        return (FunctionTool(name=NAME, description=about, parameters=parameters, form=CallForm.HOSTED),)

    def kind(self, name: str) -> str | None:
        """It has one tool."""
        return NAME if name == NAME else None

    def may_repeat(self, name: str) -> bool:
        """A picture that nobody has got is drawn again; that costs once more, and changes nothing."""
        return True

    def limits(self, name: str) -> ToolLimits:
        """Pictures take minutes."""
        return ToolLimits(seconds=_SECONDS)

    def decide(self, call: Call) -> CallDecision:
        """Anybody may draw."""
        return Execute()

    def open_item(self, call: Call) -> Body:
        """The item without its picture."""
        settings = {name: value for name, value in self._settings.items() if name in _SHOWN}
        body = {"id": new_id("ig"), "type": "image_generation_call", "status": "in_progress", "result": None}
        return {**body, "action": self._action_of(call), "revised_prompt": _prompt(call), **settings}

    def opening_events(self, body: Body, call: Call, output_index: int) -> list[Event]:
        """It begins, and is drawn."""
        return before_result(body, output_index=output_index)

    def report_progress_to(self, tell: Callable[[str, ProgressEvent], None]) -> None:
        """Tell of pictures while they are drawn."""
        self._tell = tell

    async def call(self, call: Call) -> ToolResult:
        """Ask for the picture; whatever goes wrong is a result."""
        try:
            order = await self._order(call)
            picture = await self._generator.generate(order, lambda index, part: self._partial(call, index, part))
        except _InvalidImageCall as error:
            return _failed(str(error), code="invalid_request")
        except ApiError as error:
            return _failed(error.message, code=error.code or "server_error")
        told = {name: value for name, value in picture.settings.items() if name in _SHOWN}
        revised = {"revised_prompt": picture.revised_prompt} if picture.revised_prompt else {}
        fields = {**told, **revised, "result": picture.content}
        return ToolResult(output="The image was made.", fields=fields)

    def close_item(self, body: Body, call: Call, result: ToolResult, output_index: int) -> ClosedItem:
        """The item with its picture, or with why there is none."""
        if result.error is not None:
            error = result.fields.get("error") or _error(result.output, code=result.error)
            item = {**body, "status": "failed", "error": error}
        else:
            item = {**body, **result.fields, "status": "completed"}
        return ClosedItem(item=item, events=after_result(item, output_index=output_index))

    async def close(self) -> None:
        """There is nothing to let go of."""

    # -- what is asked -------------------------------------------------------------------------------------------------

    async def _order(self, call: Call) -> ImageRequest:
        prompt = _prompt(call)
        if prompt is None:
            raise _InvalidImageCall("'prompt' has to be a text")
        pictures: Sequence[str] = ()
        if self._action_of(call) == "edit":
            pictures = await self._pictures()
            if not pictures:
                raise _InvalidImageCall("there is no image here that could be changed")
        return ImageRequest(
            prompt=prompt,
            settings=self._settings,
            pictures=pictures,
            mask=await self._mask_url() if pictures else None,
            partial_images=self._partial_images,
        )

    def _action_of(self, call: Call) -> str:
        if self._action != "auto":
            return self._action
        return "edit" if (parse_object(call.arguments) or {}).get("action") == "edit" else "generate"

    async def _pictures(self) -> list[str]:
        """The latest images of what the model reads, as data URLs: those that were given, and those that were made."""
        items = self._read()
        found = await self._content.load(items, files=False, inline_images=True)
        urls: list[str] = []
        for item in items:
            if isinstance(item, ImageGenerationCall) and item.data_url is not None:
                urls.append(item.data_url)
            for part in all_parts([item]):
                if isinstance(part, InputFile):
                    continue
                match found.get(attachment_key(part) or ""):
                    case AttachmentImage(url=url):
                        urls.append(url)
                    case None if part.image_url and part.image_url.startswith("data:"):
                        urls.append(part.image_url)
        return urls[-MAX_EDIT_IMAGES:]

    async def _mask_url(self) -> str | None:
        if not self._mask:
            return None
        part = InputImage(type="input_image", detail="auto", **self._mask)
        if (name := attachment_key(part)) is None:
            return part.image_url
        message = InputMessage(role="user", content=[part])
        found = (await self._content.load([message], files=False, inline_images=True)).get(name)
        if not isinstance(found, AttachmentImage):
            raise _InvalidImageCall("the mask of the image cannot be had any more")
        return found.url

    def _partial(self, call: Call, index: int, part: GeneratedImage) -> None:
        if self._tell is None:
            return
        told = {name: value for name, value in part.settings.items() if name in _SHOWN}

        def event(body: Body, output_index: int) -> Event:
            return ImageGenerationCallPartialImage(
                body["id"], output_index, partial_image_index=index, partial_image_b64=part.content, **told
            )

        self._tell(call.call_id, event)


_SHOWN = frozenset({"background", "output_format", "quality", "size"})


def _prompt(call: Call) -> str | None:
    prompt = (parse_object(call.arguments) or {}).get("prompt")
    return prompt if isinstance(prompt, str) and prompt.strip() else None


def _error(message: str, *, code: str) -> Body:
    return {"code": code, "message": message, "type": "image_generation_error"}


def _failed(message: str, *, code: str) -> ToolResult:
    return ToolResult(output=f"error: {message}", error="failed", fields={"error": _error(message, code=code)})
