"""Generate and edit images: for the `image_generation` tool, and for `POST /v1/images/generations` and `…/edits`.

Each call is routed like any other call and has its own usage record.
"""

import base64
import binascii
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from core.errors import Failure, ModelNotFound, UnsupportedValue, UpstreamError
from core.ids import new_id
from engine.compaction.token_estimate import tokens
from engine.converter.base import reported_usage
from engine.converter.chat import Chunk
from engine.turn import Usage
from providers.clients import Form, UpstreamFailed, read_bytes
from providers.event_stream import EventStreamDecoder, is_streamed, read_document
from providers.http_client import Answer
from providers.target_headers import add_target_headers
from responses.passthrough.embeddings_moderations import endpoint_error
from responses.runs import cost_bounds
from responses.runs.identity import RequestInfo, UsageAccount
from responses.runs.usage_records import ExpectedTokens, RoutedCall
from tenants import directory
from tenants.directory import Route
from tenants.principal import Principal

GENERATIONS, EDITS = "/images/generations", "/images/edits"
# Output tokens of the largest image in the highest quality of OpenAI's models.
_MOST_TOKENS_OF_AN_IMAGE = 6_240
_ENDPOINT = "images"
_SETTINGS = ("background", "output_format", "quality", "size")
UNCONFIGURED = (
    "no image model is configured for you. Set 'model', or ask the operator to set the team's image model in the admin "
    "or IMAGE_MODEL in the server's configuration."
)
_NO_IMAGE = Failure.of(UpstreamError("The upstream of the image model returned no image."))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageUpload:
    """A file of a multipart form."""

    field: str
    filename: str
    content: bytes
    content_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest:
    """A request to generate an image, or to edit `pictures` if there are any. `pictures` and `mask` are data URLs.

    `effect_id` is the id of the hosted call, which the upstream gets as an idempotency key.
    """

    prompt: str
    settings: Mapping[str, Any]
    pictures: Sequence[str] = ()
    mask: str | None = None
    partial_images: int = 0
    effect_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedImage:
    """A generated image in base64, with the prompt and the settings that its server reported."""

    content: str
    revised_prompt: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


async def check_image_model(principal: Principal, model: str | None, *, param: str) -> None:
    """Raise a 400 if an image generation tool has no usable model. The caller must have access to a named `model`."""
    try:
        if model is not None:
            # This only checks that the caller may use the model. The call itself resolves the route again.
            await directory.aroute(principal, model)
            return
        default = await directory.image_model.aget(principal.team_id)
        if default:
            await directory.aroute(_operator_principal(principal), default)
            return
    except ModelNotFound as error:
        error.param = f"{param}.model"
        raise
    raise UnsupportedValue(
        f"The tool type 'image_generation' is not supported here: {UNCONFIGURED}", param=f"{param}.type"
    )


def _operator_principal(principal: Principal) -> Principal:
    # The operator has chosen the team's default model, so the caller's key needs no permission for it.
    return UsageAccount(team_id=principal.team_id, key_id=principal.key_id, object_id="").principal()


async def forward_images(
    *, principal: Principal, values: Mapping[str, Any], uploads: Sequence[ImageUpload], request: RequestInfo
) -> Chunk:
    """Return the unchanged answer of an image model's server. With `uploads`, images are edited. Raises `ApiError`."""
    named = values.get("model")
    model = named or await directory.image_model.aget(principal.team_id)
    if not model:
        raise UnsupportedValue(f"Images cannot be generated: {UNCONFIGURED}", param="model")
    route = await directory.aroute(principal if named else _operator_principal(principal), model)
    account = UsageAccount(
        team_id=principal.team_id,
        key_id=principal.key_id,
        object_id=new_id("img"),
        request_id=request.request_id,
        end_user=str(values.get("user") or ""),
    )
    sent = _answers(dict(values), uploads, route=route, account=account, principal=principal)
    async with aclosing(sent) as answers:
        return [answer async for answer in answers][-1]


class TeamImageGenerator:
    """Generates images for one response, with the model of its tool or the team's default."""

    def __init__(self, account: UsageAccount, model: str | None) -> None:
        self._account = account
        self._model = model

    async def generate(
        self, image_request: ImageRequest, partial: Callable[[int, GeneratedImage], None]
    ) -> GeneratedImage:
        """Return the image. Calls `partial` with each preview and its index. Raises `ApiError`."""
        account = self._account
        model = self._model or await directory.image_model.aget(account.team_id)
        if not model:
            raise UnsupportedValue(f"Images cannot be generated: {UNCONFIGURED}")
        # The caller's permission for the model was checked when its request came in.
        route = await directory.aroute(account.principal(), model)
        values: dict[str, Any] = {**image_request.settings, "prompt": image_request.prompt}
        if image_request.partial_images:
            values |= {"stream": True, "partial_images": image_request.partial_images}
        uploads, image = _uploads(image_request), None
        sent = _answers(values, uploads, route=route, account=account, effect_id=image_request.effect_id)
        async with aclosing(sent) as answers:
            async for answer in answers:
                image = _parse_image(answer, image_request.settings)
                if str(answer.get("type", "")).endswith(".partial_image"):
                    index = answer.get("partial_image_index")
                    partial(index if isinstance(index, int) else 0, image)
                    image = None
        if image is None:
            raise UpstreamFailed(_NO_IMAGE).failure.as_api_error()
        return image


async def _answers(
    values: dict[str, Any],
    uploads: Sequence[ImageUpload],
    *,
    route: Route,
    account: UsageAccount,
    principal: Principal | None = None,
    effect_id: str = "",
) -> AsyncGenerator[Chunk, None]:
    """Yield the answer of one upstream call, or every event of its stream. Raises `ApiError`.

    `principal` is the principal of a request; without it, the call belongs to a run. If the model has several targets,
    the next one is tried until an answer has begun.
    """
    route = directory.with_affinity(route, key="")
    # Requests with images to edit are sent to another endpoint.
    path = EDITS if uploads else GENERATIONS
    call = RoutedCall(
        principal=principal or account.principal(),
        route=route,
        endpoint=_ENDPOINT,
        request_id=account.request_id,
        end_user=account.end_user,
        targets=route.targets if route.others else (),
        on_answer=None if principal is None else add_target_headers,
        estimate_input=lambda: tokens(str(values.get("prompt") or "")),
        idempotency_key=effect_id,
    )
    can = cost_bounds.widest([target.capabilities for target in route.targets])
    await call.reserve(
        partial(cost_bounds.of_images, values, len(uploads), can),
        ExpectedTokens(input=call.estimate_input(), max_output=_MOST_TOKENS_OF_AN_IMAGE * (values.get("n") or 1)),
        is_request=principal is not None,
    )
    last = Chunk()

    def spent(_: str) -> tuple[str, Usage]:
        reported = last.get("usage")
        is_chat = isinstance(reported, Mapping) and "prompt_tokens" in reported
        used = reported_usage(reported) if is_chat else reported_usage(reported, read="input", written="output")
        if used is not None:
            # The output of these endpoints consists only of images, even if the upstream reports other tokens.
            drawn = used.output_image_tokens or used.output_tokens
            return account.object_id, replace(used, output_image_tokens=drawn, images=_count_images(last))
        return account.object_id, replace(call.unreported(), images=_count_images(last))

    async with call.recorded(spent):
        try:
            async with aclosing(_sent(path, {**values, "model": route.upstream_model}, uploads, call)) as sent:
                async for last in sent:
                    yield call.named(last)
        except UpstreamFailed as failed:
            raise endpoint_error(failed, call.answering, supports="images") from failed


def _count_images(answer: Chunk) -> int:
    """Return the number of generated images in an answer or an event, without previews."""
    match answer:
        case {"data": list() as images}:
            return len(images)
        case {"b64_json": str(), "type": str() as event} if event.endswith(".completed"):
            return 1
    return 0


async def _sent(
    path: str, values: dict[str, Any], uploads: Sequence[ImageUpload], call: RoutedCall
) -> AsyncGenerator[Chunk, None]:
    body: Any = values
    if uploads:
        body = Form(
            # Form fields are text, and upstreams do not understand Python's "True".
            fields={name: "true" if value is True else str(value) for name, value in values.items()},
            files=[(file.field, (file.filename, file.content, file.content_type)) for file in uploads],
        )
    async with call.answered(path, body, _first_chunk) as (first, others), aclosing(others):
        yield first
        async for chunk in others:
            yield chunk


async def _first_chunk(response: Answer) -> tuple[Chunk, AsyncGenerator[Chunk, None]]:
    """Return the answer, or the first event of its stream and the generator of the others."""
    chunks = _chunks(response)
    async for first in chunks:
        return first, chunks
    raise UpstreamFailed(_NO_IMAGE)


async def _chunks(response: Answer) -> AsyncGenerator[Chunk, None]:
    # The answer is plain JSON unless partial images were requested and the server streams them.
    if not is_streamed(response):
        yield await read_document(response)
        return
    lines = EventStreamDecoder()
    async with aclosing(read_bytes(response)) as pieces:
        async for piece in pieces:
            for chunk in lines.feed(piece):
                yield chunk
    for chunk in lines.end():
        yield chunk
    if lines.failure is not None:
        raise UpstreamFailed(lines.failure)


def _parse_image(answer: Chunk, settings: Mapping[str, Any]) -> GeneratedImage:
    """Parse the image of an answer or an event. Settings that are not reported are taken from the request's."""
    match answer:
        case {"data": [{"b64_json": str() as content} as first, *_]} if content:
            revised = first.get("revised_prompt")
        case {"b64_json": str() as content} if content:
            revised = answer.get("revised_prompt")
        case _:
            raise UpstreamFailed(_NO_IMAGE).failure.as_api_error()
    used = {name: answer.get(name) or settings.get(name) for name in _SETTINGS}
    return GeneratedImage(
        content=content,
        revised_prompt=revised if isinstance(revised, str) else None,
        settings={name: value for name, value in used.items() if isinstance(value, str)},
    )


def _uploads(image_request: ImageRequest) -> list[ImageUpload]:
    """Return the images and the mask of a request as files of a form."""
    uploads = []
    urls = [("image[]", url) for url in image_request.pictures]
    if image_request.mask:
        urls.append(("mask", image_request.mask))
    for number, (name, url) in enumerate(urls):
        head, _, data = url.partition(",")
        kind = head.removeprefix("data:").partition(";")[0]
        try:
            content = base64.b64decode(data)
        except binascii.Error as error:
            raise UnsupportedValue("An image of this conversation is not valid base64.") from error
        filename = f"{number}.{kind.partition('/')[2] or 'png'}"
        uploads.append(ImageUpload(field=name, filename=filename, content=content, content_type=kind))
    return uploads
