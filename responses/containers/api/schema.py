"""Request bodies of `/v1/containers` and their validation."""

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Annotated, Any, Literal, cast

from django.core.exceptions import SuspiciousOperation
from django.core.files.uploadhandler import MemoryFileUploadHandler
from django.http.multipartparser import MultiPartParser, MultiPartParserError
from pydantic import Field, ValidationError

from conversations.items import Wire
from kernel.errors import BadRequest, InvalidMultipart, MissingParameter, MutuallyExclusive, UnsupportedParameter
from kernel.nulls import validate_without_nulls
from kernel.validation import first_defect, parse_json
from responses.containers.models import IDLE_MINUTES

MAX_FILES = 50
MemoryLimit = Literal["1g", "4g", "16g", "64g"]
FileIds = Annotated[list[Annotated[str, Field(max_length=128)]], Field(max_length=MAX_FILES)]


class NetworkDisabled(Wire):
    """Network access is disabled. This is the only network policy of containers on this server."""

    type: Literal["disabled"]


class ContainerExpirationAfter(Wire):
    """Container expiration time, relative to the last activity."""

    anchor: Literal["last_active_at"]
    minutes: Annotated[int, Field(ge=1, le=IDLE_MINUTES)]


class CreateContainer(Wire):
    """Create a container."""

    name: Annotated[str, Field(min_length=1, max_length=255)]
    expires_after: ContainerExpirationAfter | None = None
    file_ids: FileIds | None = None
    memory_limit: MemoryLimit | None = None
    network_policy: NetworkDisabled | None = None


class CreateContainerFile(Wire):
    """Copy an uploaded file into a container."""

    file_id: Annotated[str, Field(max_length=128)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A file for a container: content with a file name, or the id of an uploaded file."""

    file_id: str | None = None
    filename: str = ""
    content: bytes = b""


def refuse_unsupported(values: Mapping[str, Any], *, prefix: str = "") -> None:
    """Raise UnsupportedParameter for features that containers of this server lack: skills and network access."""
    if values.get("skills"):
        raise UnsupportedParameter("Skills are not supported by this server.", param=f"{prefix}skills")
    match values.get("network_policy"):
        case {"type": str() as kind} if kind != "disabled":
            message = "Containers on this server have no network access: 'network_policy' must be 'disabled'."
            raise UnsupportedParameter(message, param=f"{prefix}network_policy")


def read_container(body: bytes) -> CreateContainer:
    """Validate the body of a request for a new container."""
    values: dict[str, Any] = parse_json(body)
    # Before validation, which would only report an unknown field.
    refuse_unsupported(values)
    # An empty list of skills is harmless and not part of the schema.
    values.pop("skills", None)
    try:
        return validate_without_nulls(CreateContainer, values)
    except ValidationError as error:
        raise first_defect(error) from error


def read_file(body: bytes, content_type: str) -> NewFile:
    """Read a new file from a multipart form with the file or its id, or from JSON with its id."""
    if content_type.startswith("multipart/form-data"):
        return _parse_form(body, content_type)
    try:
        given = validate_without_nulls(CreateContainerFile, parse_json(body) if body else {})
    except ValidationError as error:
        raise first_defect(error) from error
    if given.file_id is None:
        raise MissingParameter("file")
    return NewFile(file_id=given.file_id)


def _parse_form(body: bytes, content_type: str) -> NewFile:
    meta = {"CONTENT_TYPE": content_type, "CONTENT_LENGTH": str(len(body))}
    # The body is in memory already, so temporary files would only cost time.
    upload_handler = MemoryFileUploadHandler()
    upload_handler.activated = True
    try:
        fields, files = MultiPartParser(meta, cast("Any", BytesIO(body)), [upload_handler], "utf-8").parse()
    except (MultiPartParserError, SuspiciousOperation) as error:
        raise InvalidMultipart from error
    file, file_id = files.get("file"), fields.get("file_id")
    if file is not None and file_id is not None:
        raise MutuallyExclusive("file", "file_id")
    if file_id is not None:
        return NewFile(file_id=str(file_id))
    if file is None:
        raise MissingParameter("file")
    if not file.name:
        raise BadRequest("The file has no name.", param="file")
    return NewFile(filename=file.name, content=file.read())
