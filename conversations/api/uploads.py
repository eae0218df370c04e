"""Views of `/v1/uploads`."""

import asyncio
import re
from datetime import timedelta
from typing import Annotated

import orjson
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request
from rest_framework.response import Response as Answer

from conversations.api.requests import FileExpiresAfter, PurposeName, body_of, principal_of, read_part, usable_type
from conversations.api.schema import read
from conversations.files import uploads
from conversations.files.uploads import UploadDeclaration
from conversations.items import Wire
from conversations.models import Purpose
from kernel.asgi import Scope as AsgiScope
from kernel.http import JSON
from kernel.views import ApiView
from tenants.authentication import authenticate
from tenants.models import Scope

_PARTS = re.compile(r"/v1/uploads/[^/]+/parts")
# OpenAI's limit for an upload. The server's own limit for files may be lower.
_MAX_BYTES = 8 * 1024**3


class CreateUpload(Wire):
    """A file that will be uploaded in parts."""

    bytes: Annotated[int, Field(ge=1, le=_MAX_BYTES)]
    filename: Annotated[str, Field(min_length=1, max_length=255)]
    mime_type: Annotated[str, Field(max_length=255)]
    purpose: PurposeName
    expires_after: FileExpiresAfter | None = None


class CompleteUpload(Wire):
    """The order of the parts, and optionally the checksum of the whole file."""

    part_ids: Annotated[list[Annotated[str, Field(max_length=64)]], Field(min_length=1, max_length=10_000)]
    md5: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{32}$")] | None = None


class CancelUpload(Wire):
    """An empty body: cancelling takes no parameters."""


def is_part_upload(scope: AsgiScope) -> bool:
    """Return true for requests that upload a part, whose body is spooled to disk instead of read into memory."""
    return scope["method"] == "POST" and _PARTS.fullmatch(scope["path"]) is not None


class Uploads(ApiView):
    """`POST /v1/uploads`."""

    def post(self, request: Request) -> Answer:
        principal = principal_of(request)
        principal.require(Scope.FILES_WRITE)
        body = read(CreateUpload, body_of(request))
        declaration = UploadDeclaration(
            filename=body.filename,
            size=body.bytes,
            content_type=usable_type(body.mime_type, filename=body.filename),
            purpose=Purpose(body.purpose),
            lifetime=timedelta(seconds=body.expires_after.seconds) if body.expires_after else None,
        )
        return Answer(uploads.public_upload(uploads.open_upload(principal=principal, declaration=declaration)))


async def add_part(request: ASGIRequest, upload_id: str) -> HttpResponse:
    """`POST /v1/uploads/{id}/parts`."""
    principal = await authenticate(request.headers.get("Authorization", ""))
    principal.require(Scope.FILES_WRITE)
    # Parsing reads and writes files, which would block the event loop.
    content = await asyncio.to_thread(read_part, dict(request.scope))
    try:
        part = await uploads.add_part(principal=principal, upload_id=upload_id, content=content)
    finally:
        # Deletes the temporary file.
        content.close()
    return HttpResponse(orjson.dumps(uploads.public_part(part)), content_type=JSON)


async def complete_upload(request: ASGIRequest, upload_id: str) -> HttpResponse:
    """`POST /v1/uploads/{id}/complete`."""
    principal = await authenticate(request.headers.get("Authorization", ""))
    principal.require(Scope.FILES_WRITE)
    body = read(CompleteUpload, request.scope["body"])
    upload = await uploads.complete_upload(
        principal=principal, upload_id=upload_id, part_ids=body.part_ids, md5=body.md5
    )
    return HttpResponse(orjson.dumps(uploads.public_upload(upload)), content_type=JSON)


class Cancel(ApiView):
    """`POST /v1/uploads/{id}/cancel`."""

    def post(self, request: Request, upload_id: str) -> Answer:
        principal = principal_of(request)
        principal.require(Scope.FILES_WRITE)
        read(CancelUpload, body_of(request))
        return Answer(uploads.public_upload(uploads.cancel_upload(principal=principal, upload_id=upload_id)))
