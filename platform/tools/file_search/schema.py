"""The `file_search` tool of a request."""

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import override

from core.http.validation import VectorStoreId
from responses.schema.file_search import MAX_RESULTS, Filter, RankingOptions
from responses.schema.tools import ToolParam

DEFAULT_RESULTS = 20
MAX_STORES = 20


class FileSearchToolParam(ToolParam):
    """A tool that searches for relevant content from uploaded files."""

    type: Literal["file_search"]
    vector_store_ids: Annotated[list[VectorStoreId], Field(min_length=1, max_length=MAX_STORES)]
    max_num_results: Annotated[int, Field(ge=1, le=MAX_RESULTS)] | None = None
    ranking_options: RankingOptions | None = None
    filters: Filter | None = None

    @override
    def shown(self) -> dict[str, Any]:
        ranking = self.ranking_options or RankingOptions()
        shown_ranking: dict[str, Any] = {
            # Defaults are returned explicitly, as OpenAI does.
            "ranker": ranking.ranker or "auto",
            "score_threshold": ranking.score_threshold or 0.0,
        }
        if ranking.hybrid_search is not None:
            shown_ranking["hybrid_search"] = ranking.hybrid_search.model_dump()
        return {
            "type": "file_search",
            "vector_store_ids": self.vector_store_ids,
            "max_num_results": self.max_num_results or DEFAULT_RESULTS,
            "ranking_options": shown_ranking,
            "filters": self.filters.model_dump() if self.filters else None,
        }
