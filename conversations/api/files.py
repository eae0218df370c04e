"""Endpoints of `/v1/files` and `/v1/uploads`."""

import asyncio
import mimetypes
import re
from collections.abc import Mapping
from datetime import timedelta
from itertools import chain
from typing import Annotated, Any, Literal, get_args

from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import TemporaryFileUploadHandler
from django.http import QueryDict, StreamingHttpResponse
from pydantic import Field

from conversations import access, objects
from conversations.files import storage, uploads
from conversations.files.storage import IncomingFile
from conversations.models import File, Purpose
from core.db.db_threads import in_db_thread
from core.errors import BadRequest, InvalidType, InvalidValue, MissingParameter, UnknownParameter
from core.http.asgi import Scope as AsgiScope
from core.http.asgi import header
from core.http.endpoints import BINARY, ApiObject, Endpoint
from core.http.objects import ListPage
from core.http.pagination import PageRequest, page_argument
from core.http.query import QueryArgument, choice, parameter
from core.http.rendering import download_headers, parse_form
from core.http.validation import UploadPartId, validate
from core.http.wire import Wire
from tenants import scope
from tenants.models import Scope
from tenants.principal import Principal
from tenants.views import ApiRequest, ApiView

# OpenAI's default and maximum for lists of files.
_MAX_LIST = 10_000
_MEDIA_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]{1,100}/[a-z0-9!#$&^_.+-]{1,100}", re.ASCII)
_DEFAULT_TYPE = "application/octet-stream"
_NESTED = re.compile(r"(\w+)\[(\w+)\]")
# At most 18 digits: int() raises for texts of several thousand digits.
_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
# Only the server creates files with the output of batches.
PurposeName = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
_UPLOAD_FILE = ApiObject.of(
    "UploadFile",
    {
        "file": BINARY,
        "purpose": {"enum": list(get_args(PurposeName))},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2_592_000},
    },
    required=["file", "purpose"],
)
_PURPOSE = QueryArgument(
    "purpose",
    [parameter("purpose", {"enum": list(Purpose.values)})],
    lambda query: choice(query, "purpose", Purpose.values),
)


class FileExpiresAfter(Wire):
    """Lifetime of a file, counted from its creation: one hour to 30 days."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3600, le=2_592_000)]

    @property
    def lifetime(self) -> timedelta:
        """The lifetime as a duration."""
        return timedelta(seconds=self.seconds)


class _UploadForm(Wire):
    purpose: PurposeName
    expires_after: FileExpiresAfter | None = None


class FilesView(ApiView, path="files"):
    """All files of a team."""

    @Endpoint(
        Scope.FILES_WRITE,
        "Upload a file",
        query=None,
        form=_UPLOAD_FILE,
        spooled=True,
        errors=(400, 401, 403, 413),
        note="multipart, up to 512 MiB; OpenAI's purposes and `expires_after`",
    )
    # Asynchronous like all transfers of contents, so that no thread waits for a client.
    async def post(self, request: ApiRequest) -> objects.File:
        # Parsing reads and writes files, which would block the event loop.
        upload = await asyncio.to_thread(_read_upload, request.asgi)
        try:
            file = await storage.create_file(principal=request.principal, upload=upload)
        finally:
            # Deletes the temporary file.
            upload.content.close()
        return storage.public_file(file)

    @Endpoint(Scope.FILES_READ, "List files", query=(_PURPOSE, page_argument(default=_MAX_LIST, most=_MAX_LIST)))
    def get(self, request: ApiRequest, purpose: str | None, page: PageRequest) -> ListPage[objects.File]:
        with scope.team(request.principal.team_id):
            found = storage.list_files(team_id=request.principal.team_id, purpose=purpose, page=page)
        return found.as_list(present=storage.public_file)


class FileView(ApiView, path="files/<file:file_id>"):
    """One file."""

    @Endpoint(Scope.FILES_READ, "Retrieve a file", query=None)
    def get(self, request: ApiRequest, file_id: str) -> objects.File:
        return storage.public_file(_find(request.principal, file_id))

    @Endpoint(Scope.FILES_WRITE, "Delete a file", query=None, note="also removes the file from vector stores")
    def delete(self, request: ApiRequest, file_id: str) -> objects.DeletedFile:
        file = _find(request.principal, file_id)
        storage.delete_file(principal=request.principal, file=file)
        return {"id": file_id, "object": "file", "deleted": True}


class FileContentView(ApiView, path="files/<file:file_id>/content"):
    """Content of a file."""

    @Endpoint(Scope.FILES_READ, "Retrieve the content of a file", query=None, returns="*/*")
    async def get(self, request: ApiRequest, file_id: str) -> StreamingHttpResponse:
        file = await in_db_thread(lambda: _find(request.principal, file_id))
        content = await storage.open_content(file)
        headers = {"Content-Length": str(file.size), **download_headers(file.filename)}
        return StreamingHttpResponse(storage.chunks(content), content_type=file.content_type, headers=headers)


def _find(principal: Principal, file_id: str) -> File:
    with scope.team(principal.team_id):
        return access.get_file(principal=principal, file_id=file_id)


def _read_upload(asgi: AsgiScope) -> IncomingFile:
    """Parse the form of an upload. The returned content is a temporary file, which is deleted when it is closed."""
    fields, file = read_file(asgi, "file")
    try:
        form = validate(_UploadForm, _nested(fields))
    # On success, the caller closes the file. The caller never receives the file of a rejected form.
    except BadRequest:
        file.close()
        raise
    return IncomingFile(
        content=file,
        filename=file.name or "",
        content_type=usable_type(file.content_type or "", filename=file.name or ""),
        size=file.size or 0,
        purpose=Purpose(form.purpose),
        lifetime=form.expires_after.lifetime if form.expires_after else None,
    )


def read_file(asgi: AsgiScope, name: str) -> tuple[QueryDict, "UploadedFile[bytes]"]:
    """Parse a form whose only file is the field `name`. Return the other fields and the file."""
    # The ASGI application has spooled the body to a temporary file. The parser writes to disk as well: Django's default
    # handlers keep small files in memory.
    fields, uploaded = parse_form(asgi["upload"], header(asgi, b"content-type"), TemporaryFileUploadHandler())
    files = dict(uploaded.lists())
    if (defect := _defect(fields, files, name)) is not None:
        for file in chain.from_iterable(files.values()):
            file.close()
        raise defect
    return fields, files[name][0]


def _defect(fields: QueryDict, files: Mapping[str, "list[UploadedFile[bytes]]"], only: str) -> BadRequest | None:
    for values in (dict(fields.lists()), files):
        for name, entries in values.items():
            if len(entries) > 1:
                return InvalidValue(f"Invalid '{name}': the field was sent more than once.", param=name)
    if unknown := next((name for name in files if name != only), None):
        return UnknownParameter(unknown)
    if only in fields:
        return InvalidType(only, expected="a file", got="a string")
    if only not in files:
        return MissingParameter(only)
    return None if files[only][0].size else BadRequest("File is empty.", param=only)


def _nested(fields: Mapping[str, str]) -> dict[str, Any]:
    """Convert `expires_after[seconds]=3600` to `{"expires_after": {"seconds": 3600}}`."""
    values: dict[str, Any] = {}
    for name, text in fields.items():
        if (steps := _NESTED.fullmatch(name)) is None:
            values[name] = text
            continue
        inner = values.setdefault(steps[1], {})
        if not isinstance(inner, dict):
            raise InvalidType(steps[1], expected="an object", got="a string")
        # Form fields are always strings, while the schema is strict about integers.
        inner[steps[2]] = int(text) if steps[2] == "seconds" and _INTEGER.fullmatch(text) else text
    return values


def usable_type(declared: str, *, filename: str) -> str:
    """Return the declared media type, or a guess from the file name if the declared type is generic or malformed."""
    declared = declared.lower()
    # The type becomes a header of the download, so only a well-formed one is stored.
    if declared != _DEFAULT_TYPE and _MEDIA_TYPE.fullmatch(declared):
        return declared
    return mimetypes.guess_type(filename)[0] or _DEFAULT_TYPE


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

    part_ids: Annotated[list[UploadPartId], Field(min_length=1, max_length=10_000)]
    md5: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{32}$")] | None = None


class UploadsView(ApiView, path="uploads"):
    """All uploads of a team."""

    @Endpoint(
        Scope.FILES_WRITE,
        "Create an upload",
        query=None,
        body=CreateUpload,
        note="a file that is uploaded in parts within an hour, up to 512 MiB",
    )
    def post(self, request: ApiRequest, body: CreateUpload) -> objects.Upload:
        upload = uploads.open_upload(
            principal=request.principal,
            filename=body.filename,
            size=body.bytes,
            content_type=usable_type(body.mime_type, filename=body.filename),
            purpose=Purpose(body.purpose),
            lifetime=body.expires_after.lifetime if body.expires_after else None,
        )
        return uploads.public_upload(upload)


class UploadPartsView(ApiView, path="uploads/<upload:upload_id>/parts"):
    """Parts of an upload."""

    @Endpoint(
        Scope.FILES_WRITE,
        "Add a part to an upload",
        query=None,
        form=ApiObject.of("NewUploadPart", {"data": BINARY}),
        spooled=True,
        note="multipart, up to 64 MiB",
    )
    async def post(self, request: ApiRequest, upload_id: str) -> objects.UploadPart:
        # Parsing reads and writes files, which would block the event loop.
        _, content = await asyncio.to_thread(read_file, request.asgi, "data")
        try:
            part = await uploads.add_part(principal=request.principal, upload_id=upload_id, content=content)
        finally:
            # Deletes the temporary file.
            content.close()
        return uploads.public_part(part)


class CompleteUploadView(ApiView, path="uploads/<upload:upload_id>/complete"):
    """Completion of an upload."""

    @Endpoint(
        Scope.FILES_WRITE,
        "Complete an upload",
        query=None,
        body=CompleteUpload,
        note="assembles the parts in the given order; `md5` is verified",
    )
    async def post(self, request: ApiRequest, upload_id: str, body: CompleteUpload) -> objects.Upload:
        upload = await uploads.complete_upload(
            principal=request.principal, upload_id=upload_id, part_ids=body.part_ids, md5=body.md5
        )
        return uploads.public_upload(upload)


class CancelUploadView(ApiView, path="uploads/<upload:upload_id>/cancel"):
    """Cancellation of an upload."""

    @Endpoint(Scope.FILES_WRITE, "Cancel an upload", query=None, takes_no_body=True)
    def post(self, request: ApiRequest, upload_id: str) -> objects.Upload:
        upload = uploads.cancel_upload(principal=request.principal, upload_id=upload_id)
        return uploads.public_upload(upload)
