"""Request bodies of `/v1/containers` and their validation."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from containers.models import IDLE_MINUTES
from containers.policy import NetworkPolicy
from core.errors import BadRequest, MissingParameter, MutuallyExclusive
from core.http.nulls import read
from core.http.rendering import parse_form_in_memory
from core.http.validation import FileId, parse_json
from core.http.wire import Wire
from skills.schema import Skills

MAX_FILES = 50
MemoryLimit = Literal["1g", "4g", "16g", "64g"]
FileIds = Annotated[list[FileId], Field(max_length=MAX_FILES)]


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
    network_policy: NetworkPolicy | None = None
    skills: Skills | None = None


class CreateContainerFile(Wire):
    """Copy an uploaded file into a container."""

    file_id: FileId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A file for a container: content with a file name, or the id of an uploaded file."""

    file_id: str | None = None
    filename: str = ""
    content: bytes = b""


def read_file(body: bytes, content_type: str) -> NewFile:
    """Read a new file from a multipart form with the file or its id, or from JSON with its id."""
    if not content_type.startswith("multipart/form-data"):
        file_id = read(CreateContainerFile, parse_json(body) if body else {}).file_id
        if file_id is None:
            raise MissingParameter("file")
        return NewFile(file_id=file_id)
    fields, files = parse_form_in_memory(body, content_type)
    file, given_id = files.get("file"), fields.get("file_id")
    if file is not None and given_id is not None:
        raise MutuallyExclusive("file", "file_id")
    if given_id is not None:
        return NewFile(file_id=str(given_id))
    if file is None:
        raise MissingParameter("file")
    if not file.name:
        raise BadRequest("The file has no name.", param="file")
    return NewFile(filename=file.name, content=file.read())
