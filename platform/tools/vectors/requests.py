"""Request bodies of `/v1/vector_stores`."""

from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from core.errors import MissingParameter, MutuallyExclusive, UnsupportedValue
from core.http.validation import FileId, Metadata
from core.http.wire import BY_TYPE, TAG, Wire
from responses.schema.file_search import MAX_RESULTS, Attributes, Filter, HybridSearch

MAX_BATCH = 2_000
_MAX_QUERIES = 20
_MAX_QUERY = 10_000
_MAX_ATTRIBUTE_LENGTH = 512
Schema = TypeVar("Schema", bound=Wire)


def _check_value_lengths(attributes: dict[str, Any]) -> dict[str, Any]:
    for key, value in attributes.items():
        if isinstance(value, str) and len(value) > _MAX_ATTRIBUTE_LENGTH:
            raise ValueError(f"the value of '{key}' is longer than {_MAX_ATTRIBUTE_LENGTH} characters.")
    return attributes


ShortAttributes = Annotated[Attributes, AfterValidator(_check_value_lengths)]


class VectorStoreExpirationAfter(Wire):
    """The expiration policy for a vector store."""

    anchor: Literal["last_active_at"]
    days: Annotated[int, Field(ge=1, le=365)]


class StaticChunkSizes(Wire):
    """The maximum size of a chunk and the overlap between adjacent chunks, in tokens."""

    max_chunk_size_tokens: Annotated[int, Field(ge=100, le=4096)]
    chunk_overlap_tokens: Annotated[int, Field(ge=0)]

    @model_validator(mode="after")
    def _overlap_fits(self) -> Self:
        if self.chunk_overlap_tokens * 2 > self.max_chunk_size_tokens:
            raise ValueError("chunk_overlap_tokens must not exceed half of max_chunk_size_tokens.")
        return self


class AutoChunking(Wire):
    """The default chunking strategy: chunks of 800 tokens with an overlap of 400 tokens."""

    type: Literal["auto"]

    def sizes(self) -> tuple[int, int]:
        """Return chunk size and overlap in tokens."""
        return 800, 400


class StaticChunking(Wire):
    """Chunks of a given size."""

    type: Literal["static"]
    static: StaticChunkSizes

    def sizes(self) -> tuple[int, int]:
        """Return chunk size and overlap in tokens."""
        return self.static.max_chunk_size_tokens, self.static.chunk_overlap_tokens


Chunking = Annotated[AutoChunking | StaticChunking, BY_TYPE]


class CreateStore(Wire):
    """Create a vector store, optionally with files."""

    name: Annotated[str, Field(max_length=512)] | None = None
    description: Annotated[str, Field(max_length=2048)] | None = None
    file_ids: Annotated[list[FileId], Field(max_length=MAX_BATCH)] | None = None
    metadata: Metadata | None = None
    expires_after: VectorStoreExpirationAfter | None = None
    chunking_strategy: Chunking | None = None

    @model_validator(mode="after")
    def _files_are_chunked(self) -> Self:
        # Without files there is nothing the strategy could apply to.
        if self.chunking_strategy is not None and not self.file_ids:
            raise ValueError("'chunking_strategy' is only applicable if 'file_ids' is non-empty.")
        return self


class UpdateStore(Wire):
    """Modify a vector store."""

    name: Annotated[str, Field(max_length=512)] | None = None
    metadata: Metadata | None = None
    expires_after: VectorStoreExpirationAfter | None = None


class AttachFile(Wire):
    """Add a file to a vector store."""

    file_id: FileId
    attributes: ShortAttributes | None = None
    chunking_strategy: Chunking | None = None


class UpdateStoreFile(Wire):
    """Update the attributes of a file in a vector store; null removes all of them."""

    attributes: ShortAttributes | None


class AttachFiles(Wire):
    """Add several files to a vector store: by id with common settings, or each with its own settings."""

    file_ids: Annotated[list[FileId], Field(min_length=1, max_length=MAX_BATCH)] | None = None
    files: Annotated[list[AttachFile], Field(min_length=1, max_length=MAX_BATCH)] | None = None
    attributes: ShortAttributes | None = None
    chunking_strategy: Chunking | None = None

    def all_files(self) -> list[AttachFile]:
        """Return the files, each with its settings.

        Raises MissingParameter or MutuallyExclusive unless exactly one of the two forms is used.
        """
        if self.files is not None:
            for name in ("file_ids", "attributes", "chunking_strategy"):
                if getattr(self, name) is not None:
                    raise MutuallyExclusive("files", name)
            return self.files
        if self.file_ids is None:
            raise MissingParameter("file_ids")
        return [
            AttachFile(file_id=file_id, attributes=self.attributes, chunking_strategy=self.chunking_strategy)
            for file_id in self.file_ids
        ]


class SearchRanking(Wire):
    """Ranking options of a search. The ranker `none` ranks by vector similarity alone."""

    ranker: Literal["none", "auto", "default-2024-11-15"] | None = None
    score_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    hybrid_search: HybridSearch | None = None


Query = Annotated[str, Field(min_length=1, max_length=_MAX_QUERY)]


class SearchStore(Wire):
    """Search a vector store for relevant chunks."""

    query: Annotated[
        Annotated[Query, Tag(f"{TAG}one")]
        | Annotated[list[Query], Field(min_length=1, max_length=_MAX_QUERIES), Tag(f"{TAG}several")],
        Discriminator(lambda value: f"{TAG}{'several' if isinstance(value, list) else 'one'}"),
    ]
    filters: Filter | None = None
    max_num_results: Annotated[int, Field(ge=1, le=MAX_RESULTS)] | None = None
    ranking_options: SearchRanking | None = None
    rewrite_query: bool | None = None

    def queries(self) -> list[str]:
        """Return the queries. Raises UnsupportedValue if they should be rewritten."""
        if self.rewrite_query:
            raise UnsupportedValue("Rewriting queries is not supported by this server.", param="rewrite_query")
        return self.query if isinstance(self.query, list) else [self.query]
