"""Adapts vector store searches to the `file_search` tool."""

from collections.abc import Mapping, Sequence
from typing import Any

from responses.models.vector_stores import VectorStore
from responses.requests import tool_offer
from responses.schema.file_search import RankingOptions
from responses.tools.file_search.schema import DEFAULT_RESULTS, FileSearchToolParam
from responses.vectors import search
from responses.vectors.embedding import UsageAccount
from responses.vectors.search import SearchHit, SearchRequest
from tenants import scope


class StoreSearcher:
    """Searches the stores of one tool for a team. `shown` is the tool as the response shows it."""

    def __init__(self, account: UsageAccount, shown: Mapping[str, Any]) -> None:
        self._account = account
        self._tool = FileSearchToolParam.model_validate({**shown})
        self.description = _description_of(account.team_id, self._tool.vector_store_ids)

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
        return [_result(hit) for hit in hits]


def searchers(account: UsageAccount, tools: Sequence[Mapping[str, Any]], choice: Any) -> list[StoreSearcher]:
    """Return the searchers for the tools of a run.

    `tools` and `choice` are as the response shows them; the choice may exclude the tool.
    """
    shown = [tool for tool in tools if tool["type"] == "file_search" and tool_offer.allows(choice, "file_search")]
    return [StoreSearcher(account, tool) for tool in shown]


def refuse_unusable(team_id: str, tools: Sequence[Any]) -> None:
    """Raise the API error of a tool whose stores cannot be searched."""
    for index, tool in enumerate(tools):
        if isinstance(tool, FileSearchToolParam):
            search.open_stores(
                team_id=team_id, store_ids=tool.vector_store_ids, param=f"tools[{index}].vector_store_ids"
            )


def _result(hit: SearchHit) -> dict[str, Any]:
    return {
        "file_id": hit.file_id,
        "filename": hit.filename,
        "score": round(hit.score, 4),
        "text": hit.text,
        "attributes": hit.attributes,
    }


def _description_of(team_id: str, store_ids: Sequence[str]) -> str:
    # A model that knows what is in the stores sends better queries.
    with scope.team(team_id):
        found = VectorStore.objects.filter(pk__in=store_ids, team_id=team_id).order_by("created_at")
        words = [": ".join(filter(None, (store.name, store.description))) for store in found]
    described = "; ".join(filter(None, words))
    return f" Available: {described}." if described else ""
