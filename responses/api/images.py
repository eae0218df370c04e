"""Views of `/v1/images/generations` and `/v1/images/edits`, which store nothing."""

import re
from io import BytesIO
from typing import Any, cast

from django.core.exceptions import SuspiciousOperation
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import MemoryFileUploadHandler
from django.http.multipartparser import MultiPartParser, MultiPartParserError
from rest_framework.request import Request
from rest_framework.response import Response
from typing_extensions import override

from kernel.asgi import Scope, header
from kernel.errors import BadRequest, InvalidMultipart, InvalidValue, MissingParameter, UnknownParameter
from kernel.validation import parse_json, validate
from responses.api.requests import info_of, principal_of, scope_of
from responses.api.views import AsyncApiView
from responses.passthrough.images import ImageUpload, forward_images
from responses.schema.images import MAX_EDIT_IMAGES, CreateImage, EditImage, check_image
from tenants.models import Scope as KeyScope

# Some clients send the name of an array's field with brackets, others without.
_FILES = {"image": "image[]", "image[]": "image[]", "mask": "mask"}
_NUMBERS = frozenset({"n", "output_compression", "partial_images"})
_INTEGER = re.compile(r"-?[0-9]{1,9}", re.ASCII)


class GenerateImagesView(AsyncApiView):
    """`POST /v1/images/generations`."""

    @override
    async def post(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        asgi = scope_of(request)
        principal_of(request).require(KeyScope.IMAGES_WRITE)
        sent = parse_json(asgi["body"])
        # A null means "not sent", but the prompt is required, so its null has to be reported.
        values = {name: value for name, value in sent.items() if value is not None or name == "prompt"}
        validate(CreateImage, values)
        check_image(values)
        result = await forward_images(principal=principal_of(request), values=values, uploads=(), request=info_of(asgi))
        return Response(result)


class EditImagesView(AsyncApiView):
    """`POST /v1/images/edits`."""

    @override
    async def post(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        asgi = scope_of(request)
        principal_of(request).require(KeyScope.IMAGES_WRITE)
        values, uploads = read_form(asgi)
        validate(EditImage, values)
        check_image(values)
        result = await forward_images(
            principal=principal_of(request), values=values, uploads=uploads, request=info_of(asgi)
        )
        return Response(result)


def read_form(scope: Scope) -> tuple[dict[str, Any], list[ImageUpload]]:
    """Return the fields and the images of an edit; raises `BadRequest`."""
    body: bytes = scope["body"]
    meta = {"CONTENT_TYPE": header(scope, b"content-type"), "CONTENT_LENGTH": str(len(body))}
    # The body is in memory already, so its files are as well. Django's default would write large ones to disk.
    handler = MemoryFileUploadHandler()
    handler.activated = True
    try:
        fields, files = MultiPartParser(meta, cast("Any", BytesIO(body)), [handler], "utf-8").parse()
    except (MultiPartParserError, SuspiciousOperation) as error:
        raise InvalidMultipart from error
    values: dict[str, Any] = {}
    for name, given in fields.lists():
        if len(given) > 1:
            raise InvalidValue(f"Invalid '{name}': the field was sent more than once.", param=name)
        values[name] = _value(name, str(given[0]))
    return values, _uploads(files.lists())


def _value(name: str, text: str) -> Any:
    # Values of forms are strings; these are converted for validation. Others stay strings, also if they are invalid.
    if name in _NUMBERS and _INTEGER.fullmatch(text):
        return int(text)
    if name == "stream" and text in {"true", "false"}:
        return text == "true"
    return text


def _uploads(files: Any) -> list[ImageUpload]:
    found = [(name, file) for name, several in files for file in several]
    uploads = [_upload(name, file) for name, file in found]
    images = [upload for upload in uploads if upload.field != "mask"]
    if not images:
        raise MissingParameter("image")
    if len(images) > MAX_EDIT_IMAGES or len(uploads) > len(images) + 1:
        raise InvalidValue(f"An edit accepts at most {MAX_EDIT_IMAGES} images and one mask.", param="image")
    return uploads


def _upload(name: str, file: "UploadedFile[bytes]") -> ImageUpload:
    if name not in _FILES:
        raise UnknownParameter(name)
    content = file.read()
    if not content:
        raise BadRequest("File is empty.", param=name)
    return ImageUpload(
        field=_FILES[name],
        # Clients may omit the name and the type; the upstream's form needs both.
        filename=file.name or "image.png",
        content=content,
        content_type=file.content_type or "image/png",
    )
