"""Generate and edit images: for the `image_generation` tool, and for `POST /v1/images/generations` and `…/edits`.

Each call is routed like any other call and has its own usage record.
"""

import asyncio
import base64
import binascii
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import httpx2
import openai

from kernel.errors import ApiError, Failure, ModelNotFound, UnsupportedValue
from kernel.ids import new_id
from responses.engine.compaction.token_estimate import tokens
from responses.engine.converter.chat import Chunk
from responses.engine.converter.fields import read_usage
from responses.engine.turn import Usage
from responses.providers.chat_completions import EventStreamDecoder, decode
from responses.providers.clients import Form, UpstreamFailed, post, read_bytes
from responses.runs.identity import RequestInfo
from responses.runs.usage_records import RoutedCall
from responses.vectors.embedding import UsageAccount
from tenants import directory
from tenants.directory import Route
from tenants.principal import Principal

GENERATIONS, EDITS = "/images/generations", "/images/edits"
_ENDPOINT = "images"
# Statuses of servers for a path that they do not have. llama.cpp answers 501 for an endpoint that is switched off.
_NO_SUCH_ENDPOINT = (httpx2.codes.NOT_FOUND, httpx2.codes.METHOD_NOT_ALLOWED, httpx2.codes.NOT_IMPLEMENTED)
_SETTINGS = ("background", "output_format", "quality", "size")
_UNCONFIGURED = (
    "no image model is configured for you. Set 'model', or ask the operator to set the team's image model in the admin "
    "or IMAGE_MODEL in the server's configuration."
)
_NO_IMAGE = Failure(code="server_error", message="The upstream of the image model returned no image.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageUpload:
    """A file of a multipart form."""

    field: str
    filename: str
    content: bytes
    content_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest:
    """An image to generate, or with `pictures` to edit. `pictures` and `mask` are data URLs."""

    prompt: str
    settings: Mapping[str, Any]
    pictures: Sequence[str] = ()
    mask: str | None = None
    partial_images: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedImage:
    """A generated image in base64, with the prompt and the settings that its server reported."""

    content: str
    revised_prompt: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


async def check_image_model(principal: Principal, model: str | None, *, param: str) -> None:
    """Raise the 400 of an image generation tool without a usable model. A model in the request must be the caller's."""
    try:
        if model is not None:
            # Only checks that the caller may use the model; the call resolves the route again.
            await directory.aroute(principal, model)
            return
        default = await directory.aimage_model(principal.team_id)
        if default:
            await directory.aroute(_operator_principal(principal), default)
            return
    except ModelNotFound as error:
        error.param = f"{param}.model"
        raise
    message = f"The tool type 'image_generation' is not supported here: {_UNCONFIGURED}"
    raise UnsupportedValue(message, param=f"{param}.type")


def _operator_principal(principal: Principal) -> Principal:
    # The operator has chosen the team's default model, so the caller's key needs no permission for it.
    return UsageAccount(team_id=principal.team_id, key_id=principal.key_id, object_id="").principal()


async def forward_images(
    *, principal: Principal, values: Mapping[str, Any], uploads: Sequence[ImageUpload], request: RequestInfo
) -> Chunk:
    """Return the answer of an image model's server unchanged. With `uploads`, images are edited. Raises `ApiError`."""
    named = values.get("model")
    model = named or await directory.aimage_model(principal.team_id)
    if not model:
        raise UnsupportedValue(f"Images cannot be generated: {_UNCONFIGURED}", param="model")
    route = await directory.aroute(principal if named else _operator_principal(principal), model)
    call = _ImageCall(principal=principal, route=route, object_id=new_id("img"), request_id=request.request_id)
    path = EDITS if uploads else GENERATIONS
    async with aclosing(call.answers(path, dict(values), uploads)) as answers:
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
        model = self._model or await directory.aimage_model(account.team_id)
        if not model:
            raise UnsupportedValue(f"Images cannot be generated: {_UNCONFIGURED}")
        # The caller's permission for the model was checked when its request came in.
        route = await directory.aroute(account.principal(), model)
        call = _ImageCall(
            principal=account.principal(), route=route, object_id=account.object_id, request_id=account.request_id
        )
        values: dict[str, Any] = {**image_request.settings, "prompt": image_request.prompt}
        if image_request.partial_images:
            values |= {"stream": True, "partial_images": image_request.partial_images}
        # An image to change makes the request an edit, which is another endpoint.
        uploads = _uploads(image_request)
        path, image = (EDITS if uploads else GENERATIONS), None
        async with aclosing(call.answers(path, values, uploads)) as answers:
            async for answer in answers:
                image = _parse_image(answer, image_request.settings)
                if str(answer.get("type", "")).endswith(".partial_image"):
                    index = answer.get("partial_image_index")
                    partial(index if isinstance(index, int) else 0, image)
                    image = None
        if image is None:
            raise UpstreamFailed(_NO_IMAGE).failure.as_api_error()
        return image


class _ImageCall:
    """One upstream call and its usage record."""

    def __init__(self, *, principal: Principal, route: Route, object_id: str, request_id: str) -> None:
        self._route = route
        self._object_id = object_id
        self._routed = RoutedCall(principal=principal, route=route, endpoint=_ENDPOINT, request_id=request_id)

    async def answers(
        self, path: str, values: dict[str, Any], uploads: Sequence[ImageUpload]
    ) -> AsyncGenerator[Chunk, None]:
        """Yield the answer, or every event of a stream. Raises `ApiError`."""
        outcome, last = "failed", Chunk()
        try:
            async with aclosing(self._sent(path, {**values, "model": self._route.upstream_model}, uploads)) as sent:
                async for last in sent:
                    yield last
            outcome = "stop"
        except UpstreamFailed as failed:
            raise self._api_error(failed) from failed
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "interrupted"
            raise
        finally:
            usage = _usage(outcome, values, last.get("usage"))
            await asyncio.shield(self._routed.write(object_id=self._object_id, outcome=outcome, usage=usage))

    async def _sent(
        self, path: str, values: dict[str, Any], uploads: Sequence[ImageUpload]
    ) -> AsyncGenerator[Chunk, None]:
        body = _form(values, uploads) if uploads else values
        async with post(self._route.upstream, path, body) as response:
            # Plain JSON, unless partial images were requested and the server streams them.
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                yield decode(b"".join([piece async for piece in read_bytes(response)]))
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

    def _api_error(self, failed: UpstreamFailed) -> ApiError:
        # Servers answer 404 both for a missing endpoint and for an unknown model. Only the latter mentions the model.
        error = failed.__cause__
        if not isinstance(error, openai.APIStatusError) or error.status_code not in _NO_SUCH_ENDPOINT:
            return failed.failure.as_api_error()
        if error.code == "model_not_found" or error.param == "model" or self._route.upstream_model in str(error.body):
            return failed.failure.as_api_error()
        return UnsupportedValue(f"The model '{self._route.model}' does not support images.", param="model")


def _usage(outcome: str, values: Mapping[str, Any], reported: object) -> Usage:
    if isinstance(reported, Mapping) and reported:
        counted = {"prompt_tokens": reported.get("input_tokens"), "completion_tokens": reported.get("output_tokens")}
        return read_usage({**counted, **reported})
    # No usage was reported: estimate it from the prompt. A failed call has read no input.
    read = 0 if outcome == "failed" else tokens(str(values.get("prompt") or ""))
    return Usage(input_tokens=read, estimated=True)


def _parse_image(answer: Chunk, settings: Mapping[str, Any]) -> GeneratedImage:
    """Parse the image of an answer or an event. Settings that the server did not report are those of the request."""
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
    """Return the images of a request and its mask as files of a form."""
    urls = [("image[]", url) for url in image_request.pictures] + (
        [("mask", image_request.mask)] if image_request.mask else []
    )
    return [_upload(field, url, number) for number, (field, url) in enumerate(urls)]


def _upload(field: str, url: str, number: int) -> ImageUpload:
    head, _, data = url.partition(",")
    kind = head.removeprefix("data:").partition(";")[0]
    try:
        content = base64.b64decode(data)
    except binascii.Error as error:
        raise UnsupportedValue("An image of this conversation is not valid base64.") from error
    return ImageUpload(
        field=field, filename=f"{number}.{kind.partition('/')[2] or 'png'}", content=content, content_type=kind
    )


def _form(values: Mapping[str, Any], uploads: Sequence[ImageUpload]) -> Form:
    return Form(
        # Form fields are text; Python's "True" would not be understood.
        fields={name: "true" if value is True else str(value) for name, value in values.items()},
        files=[(one.field, (one.filename, one.content, one.content_type)) for one in uploads],
    )
