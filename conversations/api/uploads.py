"""Endpoints of `/v1/uploads`."""

import asyncio
from typing import Annotated

from pydantic import Field
from rest_framework.response import Response

from conversations.api.files import FILE, FileExpiresAfter, PurposeName, read_file, usable_type
from conversations.files import uploads
from conversations.items import Wire
from conversations.models import Purpose
from kernel.endpoints import BINARY, INTEGER, STRING, UNIX_TIME, ApiObject, Endpoint
from tenants.models import Scope
from tenants.views import ApiRequest, ApiView

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


_UPLOAD = ApiObject.of(
    "Upload",
    {
        "id": STRING,
        "object": {"const": "upload"},
        "bytes": INTEGER,
        "created_at": UNIX_TIME,
        "expires_at": UNIX_TIME,
        "filename": STRING,
        "purpose": {"enum": list(Purpose.values)},
        "status": {"enum": ["pending", "completed", "cancelled", "expired"]},
        "file": {"anyOf": [FILE, {"type": "null"}]},
    },
)
_PART = ApiObject.of(
    "UploadPart",
    {"id": STRING, "object": {"const": "upload.part"}, "created_at": UNIX_TIME, "upload_id": STRING},
)


class UploadsView(ApiView, path="uploads"):
    """All uploads of a team."""

    @Endpoint(
        Scope.FILES_WRITE,
        "Create an upload",
        body=CreateUpload,
        returns=_UPLOAD,
        note="a file that is uploaded in parts within an hour, up to 512 MiB",
    )
    def post(self, request: ApiRequest, body: CreateUpload) -> Response:
        upload = uploads.open_upload(
            principal=request.principal,
            filename=body.filename,
            size=body.bytes,
            content_type=usable_type(body.mime_type, filename=body.filename),
            purpose=Purpose(body.purpose),
            lifetime=body.expires_after.lifetime if body.expires_after else None,
        )
        return Response(uploads.public_upload(upload))


class UploadPartsView(ApiView, path="uploads/<str:upload_id>/parts"):
    """Parts of an upload."""

    @Endpoint(
        Scope.FILES_WRITE,
        "Add a part to an upload",
        form=ApiObject.of("NewUploadPart", {"data": BINARY}),
        spooled=True,
        returns=_PART,
        note="multipart, up to 64 MiB",
    )
    async def post(self, request: ApiRequest, upload_id: str) -> Response:
        # Parsing reads and writes files, which would block the event loop.
        _, content = await asyncio.to_thread(read_file, request.asgi, "data")
        try:
            part = await uploads.add_part(principal=request.principal, upload_id=upload_id, content=content)
        finally:
            # Deletes the temporary file.
            content.close()
        return Response(uploads.public_part(part))


class CompleteUploadView(ApiView, path="uploads/<str:upload_id>/complete"):
    """Completion of an upload."""

    @Endpoint(
        Scope.FILES_WRITE,
        "Complete an upload",
        body=CompleteUpload,
        returns=_UPLOAD,
        note="assembles the parts in the given order; `md5` is verified",
    )
    async def post(self, request: ApiRequest, upload_id: str, body: CompleteUpload) -> Response:
        upload = await uploads.complete_upload(
            principal=request.principal, upload_id=upload_id, part_ids=body.part_ids, md5=body.md5
        )
        return Response(uploads.public_upload(upload))


class CancelUploadView(ApiView, path="uploads/<str:upload_id>/cancel"):
    """Cancellation of an upload."""

    @Endpoint(Scope.FILES_WRITE, "Cancel an upload", takes_no_body=True, returns=_UPLOAD)
    def post(self, request: ApiRequest, upload_id: str) -> Response:
        upload = uploads.cancel_upload(principal=request.principal, upload_id=upload_id)
        return Response(uploads.public_upload(upload))
