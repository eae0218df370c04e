"""`POST /v1/embeddings` and `POST /v1/moderations`: requests are routed like responses and forwarded unchanged.

The answer of the upstream is returned. Only a usage record is stored.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import httpx2
from pydantic import BaseModel, Discriminator, Field, Tag

from conversations.items import MAX_IMAGE_URL, MAX_TEXT
from core.errors import ApiError, UnsupportedValue
from core.http.validation import validate
from core.http.wire import BY_TYPE, TAG, Wire
from core.ids import new_id
from engine.compaction.token_estimate import tokens
from engine.converter.chat import Chunk
from engine.turn import Usage
from providers.clients import UpstreamFailed
from providers.event_stream import read_document
from providers.http_client import ErrorStatus
from providers.target_headers import add_target_headers
from responses.requests.attachments import load_image_urls
from responses.runs import cost_bounds
from responses.runs.identity import RequestInfo
from responses.runs.usage_records import ExpectedTokens, RoutedCall
from tenants import directory
from tenants.directory import Route
from tenants.models import Scope
from tenants.principal import Principal

MODERATION_MODEL = "omni-moderation-latest"
_MAX_INPUTS = 2048
# Statuses with which servers report an unknown path. llama.cpp answers 501 for an endpoint that is switched off.
_NO_SUCH_ENDPOINT = (httpx2.codes.NOT_FOUND, httpx2.codes.METHOD_NOT_ALLOWED, httpx2.codes.NOT_IMPLEMENTED)

ModelName = Annotated[str, Field(min_length=1, max_length=200)]
Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
Tokens = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


def _input_tag(value: Any) -> str:
    # The type of the first entry decides. All other entries must have the same type.
    match value:
        case str():
            return f"{TAG}text"
        case [int(), *_]:
            return f"{TAG}tokens"
        case [list(), *_]:
            return f"{TAG}token_lists"
        case [dict(), *_]:
            return f"{TAG}parts"
    return f"{TAG}texts"


def inputs_of(*allowed: str) -> Discriminator:
    """Return the discriminator of inputs of these types: text, texts, tokens, token_lists or parts."""
    # Inputs of other types are validated as texts, which gives a helpful error message.
    tags = {f"{TAG}{name}" for name in allowed}
    return Discriminator(lambda value: tag if (tag := _input_tag(value)) in tags else f"{TAG}texts")


class CreateEmbedding(Wire):
    """A request for embeddings of texts. Instead of texts, it may contain tokens of the model."""

    model: ModelName
    input: Annotated[
        Annotated[Text, Tag(f"{TAG}text")]
        | Annotated[list[Text], Field(min_length=1, max_length=_MAX_INPUTS), Tag(f"{TAG}texts")]
        | Annotated[Tokens, Tag(f"{TAG}tokens")]
        | Annotated[list[Tokens], Field(min_length=1, max_length=_MAX_INPUTS), Tag(f"{TAG}token_lists")],
        inputs_of("text", "tokens", "token_lists"),
    ]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None


class ModeratedText(Wire):
    """A text part of the input."""

    type: Literal["text"]
    text: Annotated[str, Field(max_length=MAX_TEXT)]


class ImageUrl(Wire):
    """The URL of an image; may be a data URL."""

    url: Annotated[str, Field(min_length=1, max_length=MAX_IMAGE_URL)]


class ModeratedImage(Wire):
    """An image part of the input."""

    type: Literal["image_url"]
    image_url: ImageUrl


ModeratedPart = Annotated[ModeratedText | ModeratedImage, BY_TYPE]
_Texts = list[Annotated[str, Field(max_length=MAX_TEXT)]]


class CreateModeration(Wire):
    """A request to moderate texts or images."""

    input: Annotated[
        Annotated[str, Field(max_length=MAX_TEXT), Tag(f"{TAG}text")]
        | Annotated[_Texts, Field(min_length=1, max_length=_MAX_INPUTS), Tag(f"{TAG}texts")]
        | Annotated[list[ModeratedPart], Field(min_length=1, max_length=_MAX_INPUTS), Tag(f"{TAG}parts")],
        inputs_of("text", "parts"),
    ]
    model: ModelName = MODERATION_MODEL


@dataclass(frozen=True, slots=True, kw_only=True)
class PassthroughRequest:
    """A checked request. `endpoint` is its path and name in usage records, `estimate` the number of input tokens."""

    endpoint: Literal["embeddings", "moderations"]
    scope: Scope
    model: str
    values: dict[str, Any]
    estimate: int


def parse_embedding(values: dict[str, Any]) -> PassthroughRequest:
    """Parse the body of `POST /v1/embeddings`. Raises the 400 of its first error."""
    sent = _sent(CreateEmbedding, values)
    body = validate(CreateEmbedding, sent)
    match body.input:
        case [int(), *_] as own:
            estimate = len(own)
        case [list(), *_] as several:
            estimate = sum(len(own) for own in several if isinstance(own, list))
        case texts:
            estimate = tokens(*_texts(texts))
    return PassthroughRequest(
        endpoint="embeddings", scope=Scope.EMBEDDINGS_WRITE, model=body.model, values=sent, estimate=estimate
    )


def parse_moderation(values: dict[str, Any]) -> PassthroughRequest:
    """Parse the body of `POST /v1/moderations`. Raises the 400 of its first error."""
    sent = _sent(CreateModeration, values)
    body = validate(CreateModeration, sent)
    estimate = tokens(*_texts(body.input))
    return PassthroughRequest(
        endpoint="moderations", scope=Scope.MODERATIONS_WRITE, model=body.model, values=sent, estimate=estimate
    )


def _sent(schema: type[BaseModel], values: dict[str, Any]) -> dict[str, Any]:
    # `null` for an optional parameter counts as not sent, so it is not forwarded.
    optional = {name for name, field in schema.model_fields.items() if not field.is_required()}
    return {name: value for name, value in values.items() if value is not None or name not in optional}


def _texts(given: Any) -> list[str]:
    """Return the texts of an input, without its images."""
    match given:
        case str():
            return [given]
        case list():
            return [text for entry in given for text in _texts(entry)]
        case ModeratedText():
            return [given.text]
    return []


async def forward(
    *, principal: Principal, passed: PassthroughRequest, request: RequestInfo, is_request: bool = True
) -> dict[str, Any]:
    """Send a request to its upstream and return the answer. Raises `ApiError`. Always writes a usage record.

    Without `is_request`, the call belongs to a run.
    """
    principal.require(passed.scope)
    # The route is resolved before the call starts: an unknown model is no upstream call and leaves no usage record.
    route = directory.with_affinity(await directory.aroute(principal, passed.model, is_flex=request.batch), key="")
    sent = await _with_loaded_images(passed.values, principal, route) if is_request else passed.values
    call = RoutedCall(
        principal=principal,
        route=route,
        endpoint=passed.endpoint,
        request_id=request.request_id,
        end_user=str(passed.values.get("user") or ""),
        batch=request.batch,
        targets=route.targets if route.others else (),
        on_answer=add_target_headers if is_request else None,
        estimate_input=lambda: passed.estimate,
    )
    can = cost_bounds.widest([target.capabilities for target in route.targets])
    most = partial(cost_bounds.of_body, passed.values, can)
    await call.reserve(most, ExpectedTokens(input=passed.estimate), is_request=is_request)
    answer: Chunk = {}

    def spent(_: str) -> tuple[str, Usage]:
        object_id = str(answer.get("id") or new_id(passed.endpoint))
        return object_id, call.input_usage(answer.get("usage"))

    async with call.recorded(spent):
        try:
            values = {**sent, "model": route.upstream_model}
            async with call.answered(f"/{passed.endpoint}", values, read_document, begins_soon=True) as answer:
                pass
        except UpstreamFailed as failed:
            raise endpoint_error(failed, call.answering, supports=passed.endpoint) from failed
    return call.named(answer)


async def _with_loaded_images(values: dict[str, Any], principal: Principal, route: Route) -> dict[str, Any]:
    """Return the values with the URLs of images replaced by data URLs."""
    parts = values["input"] if isinstance(values["input"], list) else []
    urls = [
        (f"input[{index}].image_url.url", part["image_url"]["url"])
        for index, part in enumerate(parts)
        if isinstance(part, dict) and part["type"] == "image_url"
    ]
    if not urls:
        return values
    loaded = await load_image_urls(urls, team_id=principal.team_id, can=route.capabilities)

    def with_loaded(part: Any) -> Any:
        if part["type"] != "image_url":
            return part
        return {**part, "image_url": {**part["image_url"], "url": loaded[part["image_url"]["url"]]}}

    return {**values, "input": [with_loaded(part) for part in parts]}


def endpoint_error(failed: UpstreamFailed, route: Route, *, supports: str) -> ApiError:
    """Return the API error of a failed call. `supports` names the feature that is missing without the endpoint."""
    # Servers answer 404 for a missing endpoint and for an unknown model. Only the second error mentions the model.
    error = failed.__cause__
    if not isinstance(error, ErrorStatus) or error.status not in _NO_SUCH_ENDPOINT:
        return failed.failure.as_api_error()
    body = error.body if isinstance(error.body, dict) else {}
    if body.get("code") == "model_not_found" or body.get("param") == "model" or route.upstream_model in str(error.body):
        return failed.failure.as_api_error()
    return UnsupportedValue(f"The model '{route.model}' does not support {supports}.", param="model")
