"""Parsing of request bodies and rendering of responses and errors, for DRF views and for other code."""

import errno
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from io import SEEK_END, BytesIO
from typing import IO, Any, TypeAlias, cast

import orjson
from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import FileUploadHandler, MemoryFileUploadHandler
from django.http import Http404, HttpResponse, QueryDict
from django.http.multipartparser import MultiPartParser, MultiPartParserError
from django.utils.datastructures import MultiValueDict
from django.utils.http import content_disposition_header
from rest_framework import exceptions as drf
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.response import Response
from typing_extensions import override

from core.db.database import is_unavailable
from core.errors import (
    DATABASE_LOST,
    ApiError,
    BadRequest,
    DatabaseUnavailable,
    Forbidden,
    InvalidMultipart,
    NotFound,
    RateLimited,
    RequestTooLarge,
    ServerError,
    StorageFull,
    Unauthorized,
    retry_headers,
)
from core.origin import note_error
from core.telemetry import metrics

logger = logging.getLogger(__name__)
JSON = "application/json"
_FULL = (errno.ENOSPC, errno.EDQUOT)
# An operator has to free space, which takes longer than the restart of a server.
_FULL_SECONDS = 5.0
_CODING = re.compile(r"([a-z*-]+)\s*(?:;\s*q=([0-9](?:\.[0-9]{1,3})?))?")
Form: TypeAlias = tuple[QueryDict, "MultiValueDict[str, UploadedFile[bytes]]"]
"""Fields and files of a multipart form."""


class Renderer(BaseRenderer):
    """JSON renderer that uses orjson, at a tenth of the cost of DRF's."""

    media_type = JSON
    format = "json"
    charset = None

    @override
    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, Any] | None = None,
    ) -> bytes:
        return b"" if data is None else orjson.dumps(data)


class BytesParser(BaseParser):
    """Parser that passes the raw body to the view: `core.http.validation.parse_json` has better error messages."""

    media_type = "*/*"

    @override
    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        return bytes(stream.read())


def as_api_error(error: BaseException) -> ApiError:
    """Convert any exception into an API error; unexpected ones are logged and become a 500."""
    match error:
        case ApiError():
            return error
        case RequestDataTooBig():
            return RequestTooLarge()
        case SuspiciousOperation():
            return BadRequest("The request is malformed or has too many parameters.")
        case Http404():
            return NotFound()
        case drf.NotAuthenticated() | drf.AuthenticationFailed():
            return Unauthorized()
        case drf.PermissionDenied():
            return Forbidden(str(error.detail))
        case drf.Throttled():
            wait: float | None = getattr(error, "wait", None)
            return RateLimited(headers=retry_headers(wait) if wait else None)
        case drf.APIException():
            return BadRequest(str(error.detail))
        case OSError() if error.errno in _FULL:
            logger.error("no space is left: %s", error)
            return StorageFull(headers=retry_headers(_FULL_SECONDS))
    if is_unavailable(error):
        logger.warning("the database is not available: %s", error)
        return DatabaseUnavailable(headers=dict(DATABASE_LOST.headers))
    logger.error("request failed unexpectedly", exc_info=error)
    return ServerError()


def exception_handler(error: Exception, _: Mapping[str, Any]) -> Response:
    """Render any error of a DRF view in OpenAI's error envelope."""
    api_error = as_api_error(error)
    note_refusal(api_error)
    return Response(api_error.envelope(), status=api_error.status, headers=api_error.headers)


def note_refusal(error: ApiError) -> None:
    """Count an error that is sent to a client, and note it for the access log."""
    metrics.count_rejection(error.code, error.status)
    note_error(error.code, error.general or error.message)


def error_response(error: ApiError) -> HttpResponse:
    """Return the HTTP response of an error, for code outside of DRF."""
    note_refusal(error)
    return HttpResponse(
        orjson.dumps(error.envelope()), status=error.status, content_type=JSON, headers=dict(error.headers)
    )


def download_headers(filename: str) -> dict[str, str]:
    """Return headers that make browsers save a file, because files of users and models must not run as our pages."""
    disposition = content_disposition_header(as_attachment=True, filename=filename) or "attachment"
    return {"Content-Disposition": disposition, "X-Content-Type-Options": "nosniff"}


def accepts_gzip(header: str) -> bool:
    """Return true if `Accept-Encoding` allows gzip."""
    offered = dict(_CODING.findall(header.lower()))
    weight = offered.get("gzip", offered.get("*", "0"))
    return float(weight or 1) > 0


def parse_form(
    body: IO[bytes], content_type: str, handler: FileUploadHandler, *, parser: type[MultiPartParser] = MultiPartParser
) -> Form:
    """Parse a multipart form whose files `handler` keeps; raises `InvalidMultipart`."""
    meta = {"CONTENT_TYPE": content_type, "CONTENT_LENGTH": str(body.seek(0, SEEK_END))}
    body.seek(0)
    try:
        return parser(meta, cast("Any", body), [handler], "utf-8").parse()
    except (MultiPartParserError, SuspiciousOperation) as error:
        raise InvalidMultipart from error


@dataclass(frozen=True, slots=True)
class FormFile:
    """A file of a form. `path` is its name as the client sent it, with folders."""

    field: str
    path: str
    content: bytes


class _PathKeepingHandler(FileUploadHandler):
    """Upload handler that keeps the files in memory under the names that the client sent."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[FormFile] = []
        self._content = bytearray()

    @override
    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
        self._content = bytearray()

    @override
    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        self._content += raw_data

    @override
    def file_complete(self, file_size: int) -> None:
        self.files.append(FormFile(self.field_name or "", self.file_name or "", bytes(self._content)))


class _PathKeepingParser(MultiPartParser):
    @override
    def sanitize_file_name(self, file_name: str) -> str:
        # Django would keep only the last part. Callers have to check the names.
        return file_name


def parse_directory_form(body: bytes, content_type: str) -> tuple[QueryDict, list[FormFile]]:
    """Parse a multipart form whose files have paths; raises `InvalidMultipart`."""
    handler = _PathKeepingHandler()
    fields, _ = parse_form(BytesIO(body), content_type, handler, parser=_PathKeepingParser)
    return fields, handler.files


def parse_form_in_memory(body: bytes, content_type: str) -> Form:
    """Parse a multipart form that is in memory already; raises `InvalidMultipart`."""
    return parse_form(BytesIO(body), content_type, _FormInMemory())


class _FormInMemory(MemoryFileUploadHandler):
    """Upload handler that keeps files of any size in memory, because the body that contains them is in memory too.

    Django's own handler leaves files beyond `FILE_UPLOAD_MAX_MEMORY_SIZE` to a handler that writes them to disk.
    """

    @override
    def handle_raw_input(self, *_: Any, **__: Any) -> None:
        self.activated = True
