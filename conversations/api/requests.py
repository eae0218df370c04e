"""What the views read off a request: uploads, what to include, and the filters of a list."""

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

MAX_LIST = 10_000
_LISTED_BY = frozenset({"after", "before", "limit", "order", "purpose"})
_MEDIA_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]{1,100}/[a-z0-9!#$&^_.+-]{1,100}", re.ASCII)
_UNTYPED = "application/octet-stream"
_NESTED = re.compile(r"(\w+)\[(\w+)\]")
_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_Files = dict[str, list["UploadedFile[bytes]"]]
PurposeName = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]


class FileExpiresAfter(BaseModel):
    """After how long a file is removed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3600, le=2_592_000)]


class _UploadForm(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    purpose: PurposeName
    expires_after: FileExpiresAfter | None = None


def principal_of(request: Request) -> Principal:
    """Who is calling; DRF calls it the user."""
    return cast("Principal", request.user)


def request_id_of(request: Request) -> str:
    """The id under which this request is known."""
    return cast("str", cast("Any", request._request).scope["request_id"])  # noqa: SLF001 - DRF has no public name


def body_of(request: Request) -> bytes:
    """The body, which the shell has read."""
    return cast("bytes", cast("Any", request._request).scope["body"])  # noqa: SLF001 - the same


def conversation_filter(query: QueryDict) -> ConversationFilter:
    """What a list of conversations is narrowed to."""
    reject_unknown(query, filters=("created_after", "metadata[…]"))
    return ConversationFilter(
        created_after=unix_time(query, "created_after"), metadata=nested_values(query, "metadata")
    )


def includes(query: QueryDict) -> frozenset[str]:
    """`include[]=a&include[]=b`, `include=a&include=b` and `include=a,b` all ask for the same."""
    given = [*query.getlist("include"), *query.getlist("include[]")]
    names = [name for text in given for name in text.split(",") if name]
    for name in names:
        if name not in INCLUDABLE:
            raise InvalidValue.unsupported(name, INCLUDABLE, param="include")
    return frozenset(names)


def purpose_filter(query: QueryDict) -> Purpose | None:
    """The purpose that a list is narrowed to; a parameter that lists of files do not have is refused."""
    for name in query:
        if name not in _LISTED_BY:
            raise UnknownParameter(name)
    text = query.get("purpose")
    if text is None:
        return None
    if text not in Purpose.values:
        raise InvalidValue.unsupported(text, Purpose.values, param="purpose")
    return Purpose(text)


def read_upload(scope: Scope) -> IncomingFile:
    """The upload in a request, parsed from disk to disk; closing its content removes what nobody has kept."""
    fields, files = _parse(scope)
    try:
        return _upload(fields, files)
    except BadRequest:
        for file in chain.from_iterable(files.values()):
            file.close()
        raise


def read_part(scope: Scope) -> "UploadedFile[bytes]":
    """The part of an upload in a request."""
    fields, files = _parse(scope)
    try:
        _check_counts(fields, files, only="data")
    except BadRequest:
        for file in chain.from_iterable(files.values()):
            file.close()
        raise
    return files["data"][0]


def _parse(scope: Scope) -> tuple[QueryDict, _Files]:
    body: IO[bytes] = scope["upload"]
    meta = {"CONTENT_TYPE": header(scope, b"content-type"), "CONTENT_LENGTH": str(body.seek(0, SEEK_END))}
    body.seek(0)
    try:
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
    """A form brings one file, which has a name and is not empty; of its other fields it brings each once."""
    counts = [(name, len(texts)) for name, texts in fields.lists()] + [(name, len(of)) for name, of in files.items()]
    for name, count in counts:
        if count > 1:
            raise InvalidValue(f"Invalid '{name}': it was sent more than once.", param=name)
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
    """`expires_after[seconds]=3600` → `{"expires_after": {"seconds": 3600}}`; forms only know strings."""
    values: dict[str, Any] = {}
    for name, text in fields.items():
        if (steps := _NESTED.fullmatch(name)) is None:
            values[name] = text
            continue
        within = values.setdefault(steps[1], {})
        if not isinstance(within, dict):
            raise InvalidType(steps[1], expected="an object", got="a string")
        within[steps[2]] = int(text) if steps[2] == "seconds" and _INTEGER.fullmatch(text) else text
    return values


def _content_type(file: "UploadedFile[bytes]") -> str:
    """What the client says it is, or, if it says nothing that can be used, what the name says."""
    return usable_type(file.content_type or "", filename=file.name or "")


def usable_type(said: str, *, filename: str) -> str:
    """A media type, as a client says it or else as the name does."""
    said = said.lower()
    if said != _UNTYPED and _MEDIA_TYPE.fullmatch(said):
        return said
    return mimetypes.guess_type(filename)[0] or _UNTYPED
