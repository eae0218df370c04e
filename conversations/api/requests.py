"""Parsing of requests: uploads in multipart forms, `include`, and list filters."""

import mimetypes
import re
from collections.abc import Mapping
from datetime import timedelta
from io import SEEK_END
from itertools import chain
from typing import IO, Annotated, Any, Literal, cast

from django.core.exceptions import SuspiciousOperation
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import TemporaryFileUploadHandler
from django.http import QueryDict
from django.http.multipartparser import MultiPartParser, MultiPartParserError
from pydantic import BaseModel, ConfigDict, Field
from rest_framework.request import Request

from conversations.files.storage import IncomingFile
from conversations.items import INCLUDABLE
from conversations.models import Purpose
from conversations.selectors import ConversationFilter
from kernel.asgi import Scope, header
from kernel.errors import BadRequest, InvalidMultipart, InvalidType, InvalidValue, MissingParameter, UnknownParameter
from kernel.query import nested_values, reject_unknown, unix_time
from kernel.validation import validate
from tenants.principal import Principal

# OpenAI's default and maximum for lists of files.
MAX_LIST = 10_000
_LIST_PARAMETERS = frozenset({"after", "before", "limit", "order", "purpose"})
_MEDIA_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]{1,100}/[a-z0-9!#$&^_.+-]{1,100}", re.ASCII)
_DEFAULT_TYPE = "application/octet-stream"
_NESTED = re.compile(r"(\w+)\[(\w+)\]")
# At most 18 digits: int() raises for texts of several thousand digits.
_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_Files = dict[str, list["UploadedFile[bytes]"]]
PurposeName = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]


class FileExpiresAfter(BaseModel):
    """Lifetime of a file, counted from its creation: one hour to 30 days."""

    model_config = ConfigDict(extra="forbid", strict=True)

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3600, le=2_592_000)]


class _UploadForm(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    purpose: PurposeName
    expires_after: FileExpiresAfter | None = None


def principal_of(request: Request) -> Principal:
    """Return the caller, which DRF stores as the user of the request."""
    return cast("Principal", request.user)


def request_id_of(request: Request) -> str:
    """Return the request id that the ASGI application assigned."""
    return cast("str", cast("Any", request._request).scope["request_id"])  # noqa: SLF001 - DRF has no public name


def body_of(request: Request) -> bytes:
    """Return the body, which the ASGI application has read already."""
    return cast("bytes", cast("Any", request._request).scope["body"])  # noqa: SLF001 - the same


def conversation_filter(query: QueryDict) -> ConversationFilter:
    """Parse the filters of `GET /v1/conversations`."""
    reject_unknown(query, filters=("created_after", "metadata[…]"))
    return ConversationFilter(
        created_after=unix_time(query, "created_after"), metadata=nested_values(query, "metadata")
    )


def includes(query: QueryDict) -> frozenset[str]:
    """Parse `include[]=a&include[]=b`, `include=a&include=b` or `include=a,b`, which mean the same."""
    # Clients differ in how they write a list into a query.
    texts = [*query.getlist("include"), *query.getlist("include[]")]
    names = [name for text in texts for name in text.split(",") if name]
    for name in names:
        if name not in INCLUDABLE:
            raise InvalidValue.unsupported(name, INCLUDABLE, param="include")
    return frozenset(names)


def purpose_filter(query: QueryDict) -> Purpose | None:
    """Parse the `purpose` filter of `GET /v1/files`. Raises `UnknownParameter` for parameters that lists lack."""
    for name in query:
        if name not in _LIST_PARAMETERS:
            raise UnknownParameter(name)
    text = query.get("purpose")
    if text is None:
        return None
    if text not in Purpose.values:
        raise InvalidValue.unsupported(text, Purpose.values, param="purpose")
    return Purpose(text)


def read_upload(scope: Scope) -> IncomingFile:
    """Parse an uploaded file. It is streamed from disk to disk; closing its content deletes the temporary file."""
    fields, files = _parse(scope)
    try:
        return _upload(fields, files)
    # On success the caller closes the file; a rejected form has no caller that knows of its files.
    except BadRequest:
        for file in chain.from_iterable(files.values()):
            file.close()
        raise


def read_part(scope: Scope) -> "UploadedFile[bytes]":
    """Parse one part of an upload from a multipart form."""
    fields, files = _parse(scope)
    try:
        _check_counts(fields, files, only="data")
    except BadRequest:
        for file in chain.from_iterable(files.values()):
            file.close()
        raise
    return files["data"][0]


def _parse(scope: Scope) -> tuple[QueryDict, _Files]:
    # The ASGI application has spooled the body to a temporary file, so its size is known only from that file.
    body: IO[bytes] = scope["upload"]
    meta = {"CONTENT_TYPE": header(scope, b"content-type"), "CONTENT_LENGTH": str(body.seek(0, SEEK_END))}
    body.seek(0)
    try:
        # Always on disk: Django's default handlers keep small files in memory.
        parser = MultiPartParser(meta, cast("Any", body), [TemporaryFileUploadHandler()], "utf-8")
        fields, files = parser.parse()
    except (MultiPartParserError, SuspiciousOperation) as error:
        raise InvalidMultipart from error
    return fields, dict(files.lists())


def _upload(fields: QueryDict, files: _Files) -> IncomingFile:
    _check_counts(fields, files, only="file")
    form = validate(_UploadForm, _nested(fields))
    [file] = files["file"]
    seconds = form.expires_after.seconds if form.expires_after else None
    return IncomingFile(
        content=file,
        filename=file.name or "",
        content_type=_content_type(file),
        size=file.size or 0,
        purpose=Purpose(form.purpose),
        lifetime=timedelta(seconds=seconds) if seconds else None,
    )


def _check_counts(fields: QueryDict, files: _Files, *, only: str) -> None:
    """Require exactly one non-empty file in the field `only`, and every other field at most once."""
    counts = [(name, len(texts)) for name, texts in fields.lists()] + [(name, len(of)) for name, of in files.items()]
    for name, count in counts:
        if count > 1:
            raise InvalidValue(f"Invalid '{name}': the field was sent more than once.", param=name)
    for name in files:
        if name != only:
            raise UnknownParameter(name)
    if only in fields:
        raise InvalidType(only, expected="a file", got="a string")
    if only not in files:
        raise MissingParameter(only)
    if not files[only][0].size:
        raise BadRequest("File is empty.", param=only)


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


def _content_type(file: "UploadedFile[bytes]") -> str:
    return usable_type(file.content_type or "", filename=file.name or "")


def usable_type(declared: str, *, filename: str) -> str:
    """Return the declared media type, or the one that the file name suggests where the declared one says nothing."""
    declared = declared.lower()
    # The type becomes a header of the download, so only a well-formed one is stored.
    if declared != _DEFAULT_TYPE and _MEDIA_TYPE.fullmatch(declared):
        return declared
    return mimetypes.guess_type(filename)[0] or _DEFAULT_TYPE
