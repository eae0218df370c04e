"""The tool `file_search`: the model says what it looks for, and reads the passages that fit.

The passages stand in the item, readers see them only if they ask for them. The model cites by marks
(`responses.engine.citation_markers`).
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from kernel.errors import ApiError
from kernel.ids import new_id
from responses.engine.calls.item_events import after_result, before_result
from responses.engine.calls.outcomes import CallDecision, ClosedItem, Execute, ToolLimits, ToolResult, parse_object
from responses.engine.citation_markers import HOW_TO_CITE
from responses.engine.events.types import Body, Event
from responses.engine.state import RunContext, RunState
from responses.engine.steps import Emitted, ToolsPrepared
from responses.engine.turn import Call, CallForm, FunctionTool

NAME = "file_search"
_MOST_QUERIES = 5
_MAX_QUERY = 2_000
_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "queries": {
            "type": "array",
            "description": "What to look for; each in words that the files may use themselves.",
            "items": {"type": "string"},
            "minItems": 1,
            "maxItems": _MOST_QUERIES,
        }
    },
    "required": ["queries"],
    "additionalProperties": False,
}


class Searcher(Protocol):
    """Searches the stores of one tool."""

    @property
    def description(self) -> str:
        """What is in the stores, as far as their names tell."""
        ...

    async def search(self, queries: Sequence[str]) -> list[Body]:
        """The best passages, as an item's `results`; raises `ApiError` where there is no searching."""
        ...


class FileSearchToolbox:
    """The search in files of one run."""

    concurrency = 4

    def __init__(self, searcher: Searcher) -> None:
        self._searcher = searcher

    async def prepare(self, context: RunContext, state: RunState) -> AsyncGenerator[Emitted | ToolsPrepared, None]:
        """Nothing comes first."""
        nothing: tuple[ToolsPrepared, ...] = ()
        for step in nothing:
            yield step

    def functions(self) -> tuple[FunctionTool, ...]:
        """The search."""
        words = f"Searches in files that the user has provided.{self._searcher.description} {HOW_TO_CITE}"
        return (FunctionTool(name=NAME, description=words, parameters={**_PARAMETERS}, form=CallForm.HOSTED),)

    def kind(self, name: str) -> str | None:
        """There is one."""
        return NAME if name == NAME else None

    def may_repeat(self, name: str) -> bool:
        """Looking changes nothing."""
        return True

    def limits(self, name: str) -> ToolLimits:
        """As for any tool."""
        return ToolLimits()

    def decide(self, call: Call) -> CallDecision:
        """Anybody may look."""
        return Execute()

    def open_item(self, call: Call) -> Body:
        """The item says what is looked for; its results come with its end."""
        queries = _queries(call)
        return {"id": new_id("fs"), "type": "file_search_call", "status": "in_progress", "queries": queries} | _NONE

    def opening_events(self, body: Body, call: Call, output_index: int) -> list[Event]:
        """It begins, and searches."""
        return before_result(body, output_index=output_index)

    async def call(self, call: Call) -> ToolResult:
        """Search; whatever goes wrong is a result."""
        queries = _queries(call)
        if not queries:
            return _failed("'queries' has to be a list of texts", "invalid_arguments")
        try:
            results = await self._searcher.search(queries)
        except ApiError as error:
            return _failed(error.message, "failed")
        found = "\n".join(f"{one['filename']}: {one['text'][:200]}" for one in results)
        return ToolResult(output=found or "Nothing was found.", fields={"results": results}, cost=NAME)

    def close_item(self, body: Body, call: Call, result: ToolResult, output_index: int) -> ClosedItem:
        """The item with what was found, or with why nothing was."""
        results = result.fields.get("results", [_reason(result.output)])
        item = {**body, "status": "failed" if result.error else "completed", "results": results}
        return ClosedItem(item=item, events=after_result(item, output_index=output_index))

    async def close(self) -> None:
        """There is nothing to let go of."""


_NONE = {"results": None}


def _queries(call: Call) -> list[str]:
    """What a call looks for; some models send one text."""
    given = (parse_object(call.arguments) or {}).get("queries")
    listed = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    return [one[:_MAX_QUERY] for one in listed if isinstance(one, str) and one.strip()][:_MOST_QUERIES]


def _failed(why: str, error: str) -> ToolResult:
    return ToolResult(output=f"error: {why}", error=error, fields={"results": [_reason(why)]})


def _reason(why: str) -> Body:
    """Stands in the place of passages, for the model to read."""
    return {"file_id": None, "filename": None, "score": None, "text": why, "attributes": None}
