"""The objects that the endpoints of `/v1/vector_stores` return."""

from typing import Any, Literal

from typing_extensions import TypedDict

from core.http.objects import Deleted, UnixTime

Attributes = dict[str, str | float | bool]


class FileCounts(TypedDict):
    """Numbers of files in each state."""

    in_progress: int
    completed: int
    failed: int
    cancelled: int
    total: int


class VectorStore(TypedDict):
    """A vector store."""

    id: str
    object: str
    created_at: UnixTime
    status: str
    name: str
    description: str | None
    file_counts: FileCounts
    usage_bytes: int
    metadata: dict[str, str]
    last_active_at: UnixTime
    expires_after: dict[str, Any] | None
    expires_at: int | None


class VectorStoreBatch(TypedDict):
    """Files that were added to a vector store at once."""

    id: str
    object: str
    created_at: UnixTime
    status: str
    vector_store_id: str
    file_counts: FileCounts


class VectorStoreFile(TypedDict):
    """A file of a vector store."""

    id: str
    object: str
    created_at: UnixTime
    status: str
    vector_store_id: str
    usage_bytes: int
    last_error: dict[str, Any] | None
    attributes: Attributes
    chunking_strategy: dict[str, Any]


class Passage(TypedDict):
    """A passage of a file."""

    type: Literal["text"]
    text: str


class VectorStorePassages(TypedDict):
    """The passages of a file, in order."""

    object: str
    data: list[Passage]
    has_more: Literal[False]
    next_page: None


class VectorStoreResult(TypedDict):
    """A file that matches a query."""

    file_id: str
    filename: str
    score: float
    attributes: Attributes
    content: list[Passage]


class VectorStoreResults(TypedDict):
    """Results of a search, best first."""

    object: str
    search_query: list[str]
    data: list[VectorStoreResult]
    has_more: Literal[False]
    next_page: None


DeletedVectorStore = Deleted[VectorStore, Literal["vector_store.deleted"]]
DeletedVectorStoreFile = Deleted[VectorStoreFile, Literal["vector_store.file.deleted"]]
