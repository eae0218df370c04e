"""Adapts vector store searches to the `file_search` tool."""

from collections.abc import Mapping, Sequence
from typing import Any

from responses.models.vector_stores import VectorStore
from responses.runs.identity import UsageAccount
from responses.schema.file_search import RankingOptions
from tenants import scope
from tools.file_search.schema import DEFAULT_RESULTS, FileSearchToolParam
from tools.vectors import search
from tools.vectors.search import SearchRequest


class StoreSearcher:
    """Searches the stores of one tool for a team. `shown` is the tool as the response shows it."""

    def __init__(self, account: UsageAccount, shown: Mapping[str, Any]) -> None:
        self._account = account
        self._tool = FileSearchToolParam.model_validate({**shown})
        # A model that knows what is in the stores sends better queries.
        with scope.team(account.team_id):
            found = VectorStore.objects.filter(pk__in=self._tool.vector_store_ids, team_id=account.team_id)
            stores = [
                ": ".join(filter(None, (store.name, store.description))) for store in found.order_by("created_at")
            ]
        described = "; ".join(filter(None, stores))
        self.description = f" Available: {described}." if described else ""

    async def search(self, queries: Sequence[str]) -> list[dict[str, Any]]:
        """Return the best passages as the `results` of an item. Raises ApiError if a store cannot be searched."""
        ranking = self._tool.ranking_options or RankingOptions()
        request = SearchRequest(
            queries=queries,
            limit=self._tool.max_num_results or DEFAULT_RESULTS,
            filters=self._tool.filters,
            threshold=ranking.score_threshold or 0.0,
            weights=ranking.hybrid_search,
        )
        hits = await search.search(account=self._account, store_ids=self._tool.vector_store_ids, request=request)
        return [
            {
                "file_id": hit.file_id,
                "filename": hit.filename,
                "score": round(hit.score, 4),
                "text": hit.text,
                "attributes": hit.attributes,
            }
            for hit in hits
        ]
