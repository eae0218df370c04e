"""The objects that the endpoints of `/v1/conversations`, `/v1/files` and `/v1/uploads` return."""

from typing import Annotated, Any, Literal

from typing_extensions import TypedDict

from conversations.models import Purpose
from core.http.objects import Deleted, Fields, ListPage, UnixTime, one_of

FilePurpose = Annotated[str, one_of(*Purpose.values)]


class Item(TypedDict):
    """An item of a response or conversation. Its `type` decides which other properties it has."""

    id: str
    type: str


class Conversation(TypedDict):
    """A conversation."""

    id: str
    object: Literal["conversation"]
    created_at: UnixTime
    metadata: dict[str, str]


class File(TypedDict):
    """An uploaded file."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: UnixTime
    expires_at: int | None
    filename: str
    purpose: FilePurpose
    status: Literal["processed"]
    status_details: str | None


class Upload(TypedDict):
    """An upload in parts."""

    id: str
    object: Literal["upload"]
    bytes: int
    created_at: UnixTime
    expires_at: UnixTime
    filename: str
    purpose: FilePurpose
    status: Annotated[str, one_of("pending", "completed", "cancelled", "expired")]
    file: File | None


class UploadPart(TypedDict):
    """A part of an upload."""

    id: str
    object: Literal["upload.part"]
    created_at: UnixTime
    upload_id: str


ItemBody = Annotated[dict[str, Any], Fields(Item)]
ItemList = ListPage[ItemBody]
DeletedConversation = Deleted[Conversation, Literal["conversation.deleted"]]
DeletedFile = Deleted[File, Literal["file"]]
