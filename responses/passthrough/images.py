"""Pictures of image models: for the tool `image_generation`, and for `POST /v1/images/generations` and `…/edits`.

Each call is routed like any other, and has one row in the ledger.
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
from responses.engine.chat.converter import Chunk, read_usage
from responses.engine.compaction.token_estimate import tokens
from responses.engine.turn import Usage
from responses.providers.chat_completions import EventStreamDecoder, decode
from responses.providers.clients import Form, UpstreamFailed, post, read_bytes
from responses.runs.ledger import RequestInfo, RoutedCall
from responses.vectors.embedding import UsageAccount
from tenants import directory
from tenants.directory import Route
from tenants.principal import Principal

GENERATIONS, EDITS = "/images/generations", "/images/edits"
_ENDPOINT = "images"
# What servers say to a path that they do not have; llama.cpp says 501 to one that is switched off.
_NO_SUCH_ENDPOINT = (httpx2.codes.NOT_FOUND, httpx2.codes.METHOD_NOT_ALLOWED, httpx2.codes.NOT_IMPLEMENTED)
_SETTINGS = ("background", "output_format", "quality", "size")
_UNCONFIGURED = (
    "this server has no model that makes images for you. Name one as 'model', or its operator names one as the team's "
    "image model in the admin, or as IMAGE_MODEL in the server's configuration."
)
_STRANGE = Failure(code="server_error", message="The image model's server sent something that is no image.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A file of a form."""

    field: str
    filename: str
    content: bytes
    content_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest:
    """What is to be drawn. `pictures` and `mask` are data URLs; without pictures nothing is changed, but made."""

    prompt: str
    settings: Mapping[str, Any]
    pictures: Sequence[str] = ()
    mask: str | None = None
    partial_images: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedImage:
    """A picture in base64, with what its server says of it."""

    content: str
    revised_prompt: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


async def check_image_model(principal: Principal, model: str | None, *, param: str) -> None:
    """Refuse the tool where nothing draws: the caller's own choice has to be one of its models."""
    try:
        if model is not None:
            await directory.aroute(principal, model)
            return
        default = await directory.aimage_model(principal.team_id)
        if default:
            await directory.aroute(_anybody(principal), default)
            return
    except ModelNotFound as error:
        error.param = f"{param}.model"
        raise
    message = f"The tool type 'image_generation' is not supported here: {_UNCONFIGURED}"
    raise UnsupportedValue(message, param=f"{param}.type")


def _anybody(principal: Principal) -> Principal:
    """Which model is the default is the operator's decision, not the caller's."""
    return UsageAccount(team_id=principal.team_id, key_id=principal.key_id, object_id="").principal()


async def forward_images(
    *, principal: Principal, values: Mapping[str, Any], uploads: Sequence[Upload], request: RequestInfo
) -> Chunk:
    """The answer of an image model's server, as it came. With `uploads` it is asked to change pictures."""
    named = values.get("model")
    model = named or await directory.aimage_model(principal.team_id)
    if not model:
        raise UnsupportedValue(f"Images cannot be made: {_UNCONFIGURED}", param="model")
    route = await directory.aroute(principal if named else _anybody(principal), model)
    call = _ImageCall(principal=principal, route=route, object_id=new_id("img"), request_id=request.request_id)
    path = EDITS if uploads else GENERATIONS
    async with aclosing(call.answers(path, dict(values), uploads)) as answers:
        return [answer async for answer in answers][-1]


class TeamImageGenerator:
    """Draws for one response, with the model that its tool names, or with the team's."""

    def __init__(self, account: UsageAccount, model: str | None) -> None:
        self._account = account
        self._model = model

    async def generate(self, order: ImageRequest, partial: Callable[[int, GeneratedImage], None]) -> GeneratedImage:
        """The picture; `partial` is told those that come before it. Raises `ApiError`."""
        account = self._account
        model = self._model or await directory.aimage_model(account.team_id)
        if not model:
            raise UnsupportedValue(f"Images cannot be made: {_UNCONFIGURED}")
        # Whether the caller may use the model was seen to when its request came.
        route = await directory.aroute(account.principal(), model)
        call = _ImageCall(
            principal=account.principal(), route=route, object_id=account.object_id, request_id=account.request_id
        )
        values: dict[str, Any] = {**order.settings, "prompt": order.prompt}
        if order.partial_images:
            values |= {"stream": True, "partial_images": order.partial_images}
        uploads = _uploads(order)
        path, drawn = (EDITS if uploads else GENERATIONS), None
        async with aclosing(call.answers(path, values, uploads)) as answers:
            async for answer in answers:
                drawn = _picture(answer, order.settings)
                if str(answer.get("type", "")).endswith(".partial_image"):
                    index = answer.get("partial_image_index")
                    partial(index if isinstance(index, int) else 0, drawn)
                    drawn = None
        if drawn is None:
            raise UpstreamFailed(_STRANGE).failure.as_api_error()
        return drawn


class _ImageCall:
    """One upstream call, and its row in the ledger."""

    def __init__(self, *, principal: Principal, route: Route, object_id: str, request_id: str) -> None:
        self._route = route
        self._object_id = object_id
        self._routed = RoutedCall(principal=principal, route=route, endpoint=_ENDPOINT, request_id=request_id)

    async def answers(
        self, path: str, values: dict[str, Any], uploads: Sequence[Upload]
    ) -> AsyncGenerator[Chunk, None]:
        """What comes back: the answer, or of a stream every event. Raises `ApiError`."""
        outcome, last = "failed", Chunk()
        try:
            async with aclosing(self._sent(path, {**values, "model": self._route.upstream_model}, uploads)) as sent:
                async for last in sent:
                    yield last
            outcome = "stop"
        except UpstreamFailed as failed:
            raise self._explained(failed) from failed
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "interrupted"
            raise
        finally:
            usage = _usage(outcome, values, last.get("usage"))
            await asyncio.shield(self._routed.write(object_id=self._object_id, outcome=outcome, usage=usage))

    async def _sent(self, path: str, values: dict[str, Any], uploads: Sequence[Upload]) -> AsyncGenerator[Chunk, None]:
        body = _form(values, uploads) if uploads else values
        async with post(self._route.upstream, path, body) as response:
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

    def _explained(self, failed: UpstreamFailed) -> ApiError:
        """The caller's error. A server that lacks the endpoint says 404 as it does to a model that it does not know;
        only the latter speaks of the model."""
        error = failed.__cause__
        if not isinstance(error, openai.APIStatusError) or error.status_code not in _NO_SUCH_ENDPOINT:
            return failed.failure.as_api_error()
        if error.code == "model_not_found" or error.param == "model" or self._route.upstream_model in str(error.body):
            return failed.failure.as_api_error()
        return UnsupportedValue(f"The model '{self._route.model}' does not support images.", param="model")


def _usage(outcome: str, values: Mapping[str, Any], said: object) -> Usage:
    """The upstream's word, or an estimate; a failed call read nothing."""
    if isinstance(said, Mapping) and said:
        counted = {"prompt_tokens": said.get("input_tokens"), "completion_tokens": said.get("output_tokens")}
        return read_usage({**counted, **said})
    read = 0 if outcome == "failed" else tokens(str(values.get("prompt") or ""))
    return Usage(input_tokens=read, estimated=True)


def _picture(answer: Chunk, settings: Mapping[str, Any]) -> GeneratedImage:
    """A picture as an answer or an event has it; what was asked for is said where the server does not."""
    match answer:
        case {"data": [{"b64_json": str() as content} as first, *_]} if content:
            revised = first.get("revised_prompt")
        case {"b64_json": str() as content} if content:
            revised = answer.get("revised_prompt")
        case _:
            raise UpstreamFailed(_STRANGE).failure.as_api_error()
    said = {name: answer.get(name) for name in _SETTINGS}
    told = {name: said[name] or settings.get(name) for name in _SETTINGS}
    return GeneratedImage(
        content=content,
        revised_prompt=revised if isinstance(revised, str) else None,
        settings={name: value for name, value in told.items() if isinstance(value, str)},
    )


def _uploads(order: ImageRequest) -> list[Upload]:
    """The pictures of an order, and its mask, as files."""
    urls = [("image[]", url) for url in order.pictures] + ([("mask", order.mask)] if order.mask else [])
    return [_upload(field, url, number) for number, (field, url) in enumerate(urls)]


def _upload(field: str, url: str, number: int) -> Upload:
    head, _, data = url.partition(",")
    kind = head.removeprefix("data:").partition(";")[0]
    try:
        content = base64.b64decode(data)
    except binascii.Error as error:
        raise UnsupportedValue("An image of this conversation is not valid base64.") from error
    return Upload(
        field=field, filename=f"{number}.{kind.partition('/')[2] or 'png'}", content=content, content_type=kind
    )


def _form(values: Mapping[str, Any], uploads: Sequence[Upload]) -> Form:
    return Form(
        fields={name: "true" if value is True else str(value) for name, value in values.items()},
        files=[(one.field, (one.filename, one.content, one.content_type)) for one in uploads],
    )
