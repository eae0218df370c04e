"""The `file_search` tool: the model sends queries and reads the best passages.

The passages are part of the item; clients see them with `include`. The model cites them with markers (see
`engine.citation_markers`).
"""

from collections.abc import Sequence
from typing import Protocol

from typing_extensions import override

from core.errors import ApiError
from core.ids import new_id
from engine.calls.outcomes import ToolResult, parse_object
from engine.calls.toolbox import HostedTool, hosted_function
from engine.citation_markers import HOW_TO_CITE
from engine.events.types import Body
from engine.turn import Call, FunctionTool

NAME = "file_search"
_MAX_QUERIES = 5
_MAX_QUERY_LENGTH = 2_000
_QUERIES = {
    "type": "array",
    "description": "Search queries. Use words that are likely to appear in the files.",
    "items": {"type": "string"},
    "minItems": 1,
    "maxItems": _MAX_QUERIES,
}


class Searcher(Protocol):
    """Search in the vector stores of one tool."""

    @property
    def description(self) -> str:
        """Description of the stores for the model: their names and descriptions, if they have any."""
        ...

    async def search(self, queries: Sequence[str]) -> list[Body]:
        """Return the best passages as the `results` of an item. Raises ApiError if a store cannot be searched."""
        ...


class FileSearchTool(HostedTool):
    """File search of one run."""

    kind = NAME
    names = (NAME,)

    def __init__(self, searcher: Searcher) -> None:
        self._searcher = searcher

    @override
    def functions(self) -> tuple[FunctionTool, ...]:
        words = f"Searches files that the user has provided.{self._searcher.description} {HOW_TO_CITE}"
        return (hosted_function(NAME, words, queries=_QUERIES),)

    @override
    def may_repeat(self, name: str) -> bool:
        return True

    @override
    def price_key(self, name: str) -> str | None:
        return NAME

    @override
    def open_item(self, call: Call) -> Body:
        queries = _queries(call)
        return {
            "id": new_id("fs"),
            "type": "file_search_call",
            "status": "in_progress",
            "queries": queries,
            "results": None,
        }

    @override
    async def call(self, call: Call) -> ToolResult:
        queries = _queries(call)
        if not queries:
            return _failed("'queries' must be an array of strings", "invalid_arguments")
        try:
            results = await self._searcher.search(queries)
        except ApiError as error:
            return _failed(error.message, "failed")
        # The model reads the full passages from the item; this output is a summary of them.
        found = "\n".join(f"{passage['filename']}: {passage['text'][:200]}" for passage in results)
        return ToolResult(output=found or "No results found.", fields={"results": results}, cost=NAME)

    @override
    def close_items(self, body: Body, call: Call, result: ToolResult) -> list[Body]:
        results = result.fields.get("results", [_reason(result.output)])
        return [{**body, "status": "failed" if result.error else "completed", "results": results}]


def _queries(call: Call) -> list[str]:
    given = (parse_object(call.arguments) or {}).get("queries")
    # Some models send a single string instead of an array.
    listed = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    return [query[:_MAX_QUERY_LENGTH] for query in listed if isinstance(query, str) and query.strip()][:_MAX_QUERIES]


def _failed(why: str, error: str) -> ToolResult:
    return ToolResult(output=f"error: {why}", error=error, fields={"results": [_reason(why)]})


def _reason(why: str) -> Body:
    # Takes the place of the passages, so that the model reads the reason where it expects results.
    return {"file_id": None, "filename": None, "score": None, "text": why, "attributes": None}
