"""Endpoints that store nothing: `/v1/embeddings`, `/v1/moderations`, `/v1/images` and `/v1/completions`."""

import re
from typing import Any

from django.http import HttpResponse, StreamingHttpResponse
from pydantic import BaseModel
from rest_framework.response import Response

from core.errors import BadRequest, InvalidValue, MissingParameter, UnknownParameter
from core.http.asgi import Scope as AsgiScope
from core.http.asgi import header
from core.http.endpoints import BINARY, ApiObject, Endpoint, Schema
from core.http.rendering import parse_form_in_memory
from core.http.validation import validate
from gateway.chat import legacy
from gateway.chat.legacy import CreateCompletion
from gateway.streaming import ForwardedAnswer
from responses.api.requests import FORWARDED, STREAMED, info_of
from responses.passthrough import embeddings_moderations
from responses.passthrough.embeddings_moderations import CreateEmbedding, CreateModeration, PassthroughRequest
from responses.passthrough.images import ImageUpload, forward_images
from responses.schema.images import MAX_EDIT_IMAGES, CreateImage, EditImage, check_image
from tenants.models import Scope
from tenants.views import ApiRequest, ApiView

SEE_BELOW = "forwarded to the upstream, see below"
# Some clients send the name of an array's field with brackets, others without.
_FILES = {"image": "image[]", "image[]": "image[]", "mask": "mask"}
_NUMBERS = frozenset({"n", "output_compression", "partial_images"})
_INTEGER = re.compile(r"-?[0-9]{1,9}", re.ASCII)


def unchanged(name: str, what: str) -> ApiObject:
    """Return the schema of an upstream's answer that is passed on unchanged."""
    # Responses of upstreams are not validated, so their schemas promise nothing.
    return ApiObject(name, {"type": "object", "description": f"The upstream's {what}, unchanged."})


_IMAGES = unchanged("Images", "images")


async def respond(answer: ForwardedAnswer) -> HttpResponse | StreamingHttpResponse:
    """Return the response with a forwarded answer: at once if it is a document, otherwise as it arrives."""
    if answer.is_document:
        return HttpResponse(b"".join([piece async for piece in answer.pieces]), content_type=answer.content_type)
    # nginx would otherwise collect pieces before it passes them on.
    headers = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
    return StreamingHttpResponse(answer.pieces, content_type=answer.content_type, headers=headers)


class CompletionsView(ApiView, path="completions"):
    """Legacy completions of prompts."""

    @Endpoint(
        Scope.COMPLETIONS_WRITE,
        "Create a completion",
        query=None,
        calls_model=True,
        body=CreateCompletion,
        parse=legacy.parse_completion,
        errors=FORWARDED,
        returns=unchanged("Completion", "completion"),
        stream=f"{STREAMED}, ending with `data: [DONE]`.",
        note=f"legacy, {SEE_BELOW}",
    )
    async def post(self, request: ApiRequest, body: dict[str, Any]) -> HttpResponse | StreamingHttpResponse:
        return await respond(
            await legacy.forward_completion(principal=request.principal, values=body, request=info_of(request.asgi))
        )


class EmbeddingsView(ApiView, path="embeddings"):
    """Embeddings of texts."""

    @Endpoint(
        Scope.EMBEDDINGS_WRITE,
        "Create embeddings",
        query=None,
        calls_model=True,
        body=CreateEmbedding,
        parse=embeddings_moderations.parse_embedding,
        errors=FORWARDED,
        returns=unchanged("EmbeddingList", "list of embeddings"),
        note=SEE_BELOW,
    )
    async def post(self, request: ApiRequest, body: PassthroughRequest) -> Response:
        return Response(
            await embeddings_moderations.forward(
                principal=request.principal, passed=body, request=info_of(request.asgi)
            )
        )


class ModerationsView(ApiView, path="moderations"):
    """Moderation of texts and images."""

    @Endpoint(
        Scope.MODERATIONS_WRITE,
        "Create moderation",
        query=None,
        calls_model=True,
        body=CreateModeration,
        parse=embeddings_moderations.parse_moderation,
        errors=FORWARDED,
        returns=unchanged("Moderation", "moderation result"),
        note=SEE_BELOW,
    )
    async def post(self, request: ApiRequest, body: PassthroughRequest) -> Response:
        return Response(
            await embeddings_moderations.forward(
                principal=request.principal, passed=body, request=info_of(request.asgi)
            )
        )


def _checked(schema: type[BaseModel], values: dict[str, Any]) -> dict[str, Any]:
    validate(schema, values)
    check_image(values)
    return values


def _parse_create(values: dict[str, Any]) -> dict[str, Any]:
    # A null means "not sent", but the prompt is required, so its null has to be reported.
    return _checked(
        CreateImage, {name: value for name, value in values.items() if value is not None or name == "prompt"}
    )


def _edit_form() -> Schema:
    # `EditImage` validates the fields of the form; its files are not part of it.
    schema = EditImage.model_json_schema()
    images = {"anyOf": [BINARY, {"type": "array", "items": BINARY, "maxItems": MAX_EDIT_IMAGES}]}
    schema["properties"] |= {"image": images, "mask": BINARY}
    schema["required"] = ["image", *schema["required"]]
    return schema


class GenerateImagesView(ApiView, path="images/generations"):
    """Generation of images."""

    @Endpoint(
        Scope.IMAGES_WRITE,
        "Create images",
        query=None,
        calls_model=True,
        body=CreateImage,
        parse=_parse_create,
        errors=FORWARDED,
        returns=_IMAGES,
        note=SEE_BELOW,
    )
    async def post(self, request: ApiRequest, body: dict[str, Any]) -> Response:
        return Response(
            await forward_images(principal=request.principal, values=body, uploads=(), request=info_of(request.asgi))
        )


class EditImagesView(ApiView, path="images/edits"):
    """Edits of images."""

    @Endpoint(
        Scope.IMAGES_WRITE,
        "Edit images",
        query=None,
        calls_model=True,
        form=ApiObject("EditImage", _edit_form),
        errors=FORWARDED,
        returns=_IMAGES,
        note="multipart, forwarded in the same way",
    )
    async def post(self, request: ApiRequest) -> Response:
        values, uploads = read_form(request.asgi)
        return Response(
            await forward_images(
                principal=request.principal,
                values=_checked(EditImage, values),
                uploads=uploads,
                request=info_of(request.asgi),
            )
        )


def read_form(asgi: AsgiScope) -> tuple[dict[str, Any], list[ImageUpload]]:
    """Return the fields and the images of an edit; raises `BadRequest`."""
    fields, files = parse_form_in_memory(asgi["body"], header(asgi, b"content-type"))
    values: dict[str, Any] = {}
    for name, texts in fields.lists():
        if len(texts) > 1:
            raise InvalidValue(f"Invalid '{name}': the field was sent more than once.", param=name)
        # Values of forms are strings. The values of these fields are converted for validation; invalid ones stay
        # strings.
        text = values[name] = str(texts[0])
        if name in _NUMBERS and _INTEGER.fullmatch(text):
            values[name] = int(text)
        elif name == "stream" and text in {"true", "false"}:
            values[name] = text == "true"
    uploads: list[ImageUpload] = []
    for name, several in files.lists():
        for file in several:
            if name not in _FILES:
                raise UnknownParameter(name)
            content = file.read()
            if not content:
                raise BadRequest("File is empty.", param=name)
            # Clients may omit the name and the type; the upstream's form needs both.
            upload = ImageUpload(
                field=_FILES[name],
                filename=file.name or "image.png",
                content=content,
                content_type=file.content_type or "image/png",
            )
            uploads.append(upload)
    images = [upload for upload in uploads if upload.field != "mask"]
    if not images:
        raise MissingParameter("image")
    if len(images) > MAX_EDIT_IMAGES or len(uploads) > len(images) + 1:
        raise InvalidValue(f"An edit accepts at most {MAX_EDIT_IMAGES} images and one mask.", param="image")
    return values, uploads
