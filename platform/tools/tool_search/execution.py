"""The `tool_search` tool: the model searches for deferred tools and can then call those it finds.

This search runs on the server and compares words. Its results are part of the output as a `tool_search_output` item,
from which later turns and responses know which tools are loaded. A search with `execution: client` is an ordinary
client tool instead.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import regex
from typing_extensions import override

from conversations.items import StoredItem
from core.ids import new_id
from engine.calls.client_tools import hidden_function
from engine.calls.outcomes import ToolResult, parse_object
from engine.calls.toolbox import HostedTool
from engine.events.types import Body
from engine.state import RunContext, RunState
from engine.turn import Call, CallForm, FunctionTool
from responses.requests import tool_offer
from responses.requests.tool_offer import Shown, ToolOffer

NAME = "tool_search"
_MAX_RESULTS = 5
# Share of the best score that a result needs. Tools that share only a common word with the query are not
# worth the tokens of their definition.
_MIN_RELATIVE_SCORE = 0.3
# Shorter words of descriptions ("a", "of") carry no meaning.
_MIN_WORD_LENGTH = 3
# The overview is part of the description, so it is sent to the model with every turn.
_MAX_LISTED = 50
_TOOLS_FIELD = {"namespace": "tools", "mcp": "allowed_tools"}
_WORD = regex.compile(r"[^\W_]+")
_CAMEL = regex.compile(r"(?<=\p{Ll})(?=\p{Lu})")


@runtime_checkable
class DeferredTools(Protocol):
    """A toolbox whose tools are offered to the model only after a search has found them."""

    def deferred(self) -> list[ToolOffer]:
        """Return the deferred tools. Valid once the toolbox is prepared."""
        ...

    def load(self, names: Iterable[str]) -> None:
        """Offer the named tools from the next turn on. Names of other toolboxes are ignored."""
        ...


def searches(
    tools: Sequence[Shown], choice: Any, items: Iterable[StoredItem], deferred_tools: Sequence[DeferredTools] = ()
) -> "list[ToolSearch]":
    """Return the server-side tool search of a request, or an empty list.

    The list is also empty if `allowed_tools` leaves the search out. `tools` and `choice` are as the response shows
    them, `items` is the context the model reads. The toolboxes in `deferred_tools` must be prepared before the search.
    """
    search = next((tool for tool in tools if tool["type"] == NAME and tool["execution"] == "server"), None)
    if search is None:
        return []
    if isinstance(choice, dict) and choice["type"] == "allowed_tools" and {"type": NAME} not in choice["tools"]:
        return []
    deferred = [offer for offer in tool_offer.available_tools(tools, choice, items) if offer.deferred]
    return [ToolSearch(deferred, description=search["description"] or "", deferred_tools=deferred_tools)]


class ToolSearch(HostedTool):
    """Server-side search for the deferred tools of one run. Found tools are offered from the next turn on."""

    kind = NAME
    # Only the search itself is hosted here. Its results belong to other tools or to the client.
    names = (NAME,)
    concurrency = 1

    def __init__(
        self, deferred: Sequence[ToolOffer], *, description: str = "", deferred_tools: Sequence[DeferredTools] = ()
    ) -> None:
        self._deferred = {offer.tool.name: offer for offer in deferred}
        self._deferred_tools = deferred_tools
        self._found: dict[str, FunctionTool] = {}
        self._description = description
        self._words = {name: _words_of(offer) for name, offer in self._deferred.items()}

    @override
    async def start(self, context: RunContext, state: RunState) -> None:
        from_toolboxes = {offer.tool.name: offer for box in self._deferred_tools for offer in box.deferred()}
        self._deferred = {**from_toolboxes, **self._deferred}
        self._words |= {name: _words_of(offer) for name, offer in from_toolboxes.items() if name not in self._words}
        # A resumed run has already loaded the tools that are in its output.
        for item in state.output:
            if item.body["type"] == "tool_search_output":
                self._load(offer.tool.name for offer in tool_offer.client_tool_offers(item.body["tools"]))

    @override
    def functions(self) -> tuple[FunctionTool, ...]:
        words = "\n".join(part for part in (self._description, self._overview()) if part)
        search = hidden_function(CallForm.TOOL_SEARCH, description=words)
        return (
            FunctionTool(name=NAME, description=search.description, parameters=search.parameters, form=CallForm.HOSTED),
            *self._found.values(),
        )

    @override
    def may_repeat(self, name: str) -> bool:
        return True

    @override
    def open_item(self, call: Call) -> Body:
        # As in OpenAI's items, the arguments are the paths that are loaded. The model searches by words.
        query = _query(call)
        tools = [] if query is None else self._shown(self._ranked(query))
        paths = [(_family(tool) or ("", tool["name"]))[1] for tool in tools]
        return {**_item("tsc", "tool_search_call", "in_progress"), "arguments": {"paths": paths}}

    @override
    async def call(self, call: Call) -> ToolResult:
        query = _query(call)
        if query is None:
            return ToolResult(output="error: 'query' must be a string", error="invalid_arguments")
        names = self._ranked(query)
        self._load(names)
        return ToolResult(output=", ".join(names), fields={"names": names})

    @override
    def close_items(self, body: Body, call: Call, result: ToolResult) -> list[Body]:
        names: list[str] = result.fields.get("names", [])
        # Loaded again: after a resume the result may come from the worker that ran the call before.
        self._load(names)
        found = {**_item("tso", "tool_search_output", "completed"), "tools": self._shown(names)}
        query = _query(call)
        searched = {**body, "status": "incomplete" if result.error else "completed"}
        return [searched if query is None else {**searched, "query": query}, found]

    def _load(self, names: Iterable[str]) -> None:
        tools = [self._deferred[name].tool for name in names if name in self._deferred]
        for box in self._deferred_tools:
            box.load(tool.name for tool in tools)
        self._found |= {tool.name: tool for tool in tools if tool.form is not CallForm.HOSTED}

    def _ranked(self, query: str) -> list[str]:
        # Inverse document frequency: a word counts more, the fewer tools contain it.
        having = Counter(word for words in self._words.values() for word in words)
        rare = {word: math.log(1 + len(self._words) / count) for word, count in having.items()}
        asked = _words(query)
        scores = {name: sum(rare[word] for word in asked & words) for name, words in self._words.items()}
        least = max(scores.values(), default=0) * _MIN_RELATIVE_SCORE
        best = sorted((name for name, score in scores.items() if score and score >= least), key=lambda n: -scores[n])
        return best[:_MAX_RESULTS]

    def _shown(self, names: Sequence[str]) -> list[Shown]:
        # Tools of one namespace or one server are shown together, as they are in a request.
        shown: list[Shown] = []
        for name in names:
            tool = self._deferred[name].shown
            same = next((entry for entry in shown if _family(entry) == _family(tool) is not None), None)
            if same is None:
                shown.append({**tool})
            else:
                field = _TOOLS_FIELD[tool["type"]]
                same[field] = [*same[field], *tool[field]]
        return shown

    def _overview(self) -> str:
        # Names each namespace and server once, and each remaining tool. A dict keeps the order without duplicates.
        lines: dict[str, None] = {}
        for offer in self._deferred.values():
            _, name, about = _family(offer.shown) or ("", offer.tool.name, "")
            lines[f"- {name}: {about}" if about else f"- {name}"] = None
        listed = list(lines)[:_MAX_LISTED]
        more = [f"and {len(lines) - len(listed)} more"] if len(lines) > len(listed) else []
        return "\n".join(["Available:", *listed, *more]) if listed else ""


def _query(call: Call) -> str | None:
    query = (parse_object(call.arguments) or {}).get("query")
    return query if isinstance(query, str) else None


def _item(prefix: str, kind: str, status: str) -> Body:
    # Searches run by the server have no call id; the output directly follows its call.
    return {"id": new_id(prefix), "type": kind, "status": status, "call_id": None, "execution": "server"}


def _family(tool: Shown) -> tuple[str, str, str] | None:
    match tool:
        case {"type": "namespace", "name": name, "description": about}:
            return "namespace", name, about
        case {"type": "mcp", "server_label": name}:
            return "mcp", name, tool.get("server_description") or ""
    return None


def _words_of(offer: ToolOffer) -> set[str]:
    tool = offer.tool
    # Short words count in names, where they may be abbreviations, but not in descriptions.
    names = " ".join([tool.name, *((tool.parameters or {}).get("properties") or {})])
    return _words(names) | {word for word in _words(tool.description or "") if len(word) >= _MIN_WORD_LENGTH}


def _words(text: str) -> set[str]:
    # Names are split at capitals and underscores. A plural "s" is dropped so that "file" finds "files".
    found = {word.lower() for word in _WORD.findall(_CAMEL.sub(" ", text))}
    return {word[:-1] if len(word) > _MIN_WORD_LENGTH and word.endswith("s") else word for word in found}
