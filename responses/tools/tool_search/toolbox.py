"""Tool search: the model looks for tools whose loading was deferred, and can call those that it finds.

The server's own search compares words. What it found stands in the output as a `tool_search_output`, from which later
turns and later responses know it; a search that the client runs is a call of the client's.
"""

import math
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import regex

from conversations.items import StoredItem
from kernel.ids import new_id
from responses.engine.calls.client_tools import hidden_function
from responses.engine.calls.outcomes import CallDecision, ClosedItem, Execute, ToolLimits, ToolResult, parse_object
from responses.engine.events.types import Body, Event
from responses.engine.state import RunContext, RunState
from responses.engine.steps import Emitted, ToolsPrepared
from responses.engine.turn import Call, CallForm, FunctionTool
from responses.requests import tool_offer
from responses.requests.tool_offer import Shown, ToolOffer

NAME = "tool_search"
_MOST = 5
# Of the best one's score: what only shares a small word with the query is not worth loading.
_ENOUGH = 0.3
_MEANINGFUL = 3
_MAX_LISTED = 50
_INSIDE = {"namespace": "tools", "mcp": "allowed_tools"}
_WORD = regex.compile(r"[^\W_]+")
_CAMEL = regex.compile(r"(?<=\p{Ll})(?=\p{Lu})")


@runtime_checkable
class DeferredTools(Protocol):
    """A toolbox that has tools which the model does not hear of before a search has found them."""

    def deferred(self) -> list[ToolOffer]:
        """The tools; asked once the toolbox is prepared."""
        ...

    def load(self, names: Iterable[str]) -> None:
        """Offer those of these tools that are its own, from the next turn on."""
        ...


def searches(
    tools: Sequence[Shown], choice: Any, items: Iterable[StoredItem], deferred_tools: Sequence[DeferredTools] = ()
) -> "list[ToolSearch]":
    """The search that a request asked for, if it did; `allowed_tools` may leave it out.

    `tools` and `choice` are those that the response shows, `items` what the model reads. The toolboxes in
    `deferred_tools` are prepared first.
    """
    search = next((tool for tool in tools if tool["type"] == NAME and tool["execution"] == "server"), None)
    if search is None:
        return []
    if isinstance(choice, dict) and choice["type"] == "allowed_tools" and {"type": NAME} not in choice["tools"]:
        return []
    deferred = [offer for offer in tool_offer.available_tools(tools, choice, items) if offer.deferred]
    return [ToolSearch(deferred, description=search["description"] or "", deferred_tools=deferred_tools)]


class ToolSearch:
    """The deferred tools of one run. What was found is offered from the next turn on."""

    concurrency = 1

    def __init__(
        self, deferred: Sequence[ToolOffer], *, description: str = "", deferred_tools: Sequence[DeferredTools] = ()
    ) -> None:
        self._deferred = {offer.tool.name: offer for offer in deferred}
        self._deferred_tools = deferred_tools
        self._found: dict[str, FunctionTool] = {}
        self._description = description
        self._words = {name: _words_of(offer) for name, offer in self._deferred.items()}

    async def prepare(self, context: RunContext, state: RunState) -> AsyncGenerator[Emitted | ToolsPrepared, None]:
        """Nothing comes first; a run that was taken over has found before what its output says."""
        late = {offer.tool.name: offer for box in self._deferred_tools for offer in box.deferred()}
        self._deferred = {**late, **self._deferred}
        self._words |= {name: _words_of(offer) for name, offer in late.items() if name not in self._words}
        for item in state.output:
            if item.body["type"] == "tool_search_output":
                self._load(offer.tool.name for offer in tool_offer.offers(item.body["tools"]))
        nothing: tuple[ToolsPrepared, ...] = ()
        for step in nothing:
            yield step

    def functions(self) -> tuple[FunctionTool, ...]:
        """The search itself, and what it has found."""
        words = "\n".join(part for part in (self._description, self._overview()) if part)
        search = hidden_function(CallForm.TOOL_SEARCH, description=words)
        return (
            FunctionTool(name=NAME, description=search.description, parameters=search.parameters, form=CallForm.HOSTED),
            *self._found.values(),
        )

    def kind(self, name: str) -> str | None:
        """Only the search is ours: what it finds, the client runs."""
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
        """The call, before anything is found."""
        return {**_item("tsc", "tool_search_call", "in_progress"), "arguments": parse_object(call.arguments) or {}}

    def opening_events(self, body: Body, call: Call, output_index: int) -> list[Event]:
        """The wire knows no events of it."""
        return []

    async def call(self, call: Call) -> ToolResult:
        """Find the tools that have most to do with the query."""
        query = (parse_object(call.arguments) or {}).get("query")
        if not isinstance(query, str):
            return ToolResult(output="error: 'query' has to be a text", error="invalid_arguments")
        names = self._ranked(query)
        self._load(names)
        return ToolResult(output=", ".join(names), fields={"names": names})

    def close_item(self, body: Body, call: Call, result: ToolResult, output_index: int) -> ClosedItem:
        """The call, and behind it the tools that were found."""
        names: list[str] = result.fields.get("names", [])
        self._load(names)  # the result may be that of the run's predecessor
        found = {**_item("tso", "tool_search_output", "completed"), "tools": self._shown(names)}
        status = "incomplete" if result.error else "completed"
        return ClosedItem(item={**body, "status": status}, more=(found,))

    async def close(self) -> None:
        """There is nothing to let go of."""

    def _load(self, names: Iterable[str]) -> None:
        tools = [self._deferred[name].tool for name in names if name in self._deferred]
        for box in self._deferred_tools:
            box.load(tool.name for tool in tools)
        self._found |= {tool.name: tool for tool in tools if tool.form is not CallForm.HOSTED}

    def _ranked(self, query: str) -> list[str]:
        """The best tools first: a word counts the more, the fewer tools have it."""
        having = Counter(word for words in self._words.values() for word in words)
        rare = {word: math.log(1 + len(self._words) / count) for word, count in having.items()}
        asked = _words(query)
        scores = {name: sum(rare[word] for word in asked & words) for name, words in self._words.items()}
        least = max(scores.values(), default=0) * _ENOUGH
        best = sorted((name for name, score in scores.items() if score and score >= least), key=lambda n: -scores[n])
        return best[:_MOST]

    def _shown(self, names: Sequence[str]) -> list[Shown]:
        """The definitions, those of one namespace or of one server together."""
        shown: list[Shown] = []
        for name in names:
            tool = self._deferred[name].shown
            same = next((other for other in shown if _family(other) == _family(tool) is not None), None)
            if same is None:
                shown.append({**tool})
            else:
                inside = _INSIDE[tool["type"]]
                same[inside] = [*same[inside], *tool[inside]]
        return shown

    def _overview(self) -> str:
        """What there is to be found, in short: namespaces, and tools that are in none."""
        lines: dict[str, None] = {}
        for offer in self._deferred.values():
            _, name, about = _family(offer.shown) or ("", offer.tool.name, "")
            lines[f"- {name}: {about}" if about else f"- {name}"] = None
        listed = list(lines)[:_MAX_LISTED]
        more = [f"and {len(lines) - len(listed)} more"] if len(lines) > len(listed) else []
        return "\n".join(["There is:", *listed, *more]) if listed else ""


def _item(prefix: str, kind: str, status: str) -> Body:
    """Searches of the server's have no call id: their output follows them."""
    return {"id": new_id(prefix), "type": kind, "status": status, "call_id": None, "execution": "server"}


def _family(tool: Shown) -> tuple[str, str, str] | None:
    """Where a tool belongs that comes with others: what it is, its name, and what is said of it."""
    match tool:
        case {"type": "namespace", "name": name, "description": about}:
            return "namespace", name, about
        case {"type": "mcp", "server_label": name, "server_description": about}:
            return "mcp", name, about or ""
    return None


def _words_of(offer: ToolOffer) -> set[str]:
    """The words of all that a tool says of itself; of its sentences only those that may mean something."""
    tool = offer.tool
    names = " ".join([tool.name, *((tool.parameters or {}).get("properties") or {})])
    return _words(names) | {word for word in _words(tool.description or "") if len(word) >= _MEANINGFUL}


def _words(text: str) -> set[str]:
    """The words of a text in lower case, without a plural's `s`; a name's parts are words of their own."""
    found = {word.lower() for word in _WORD.findall(_CAMEL.sub(" ", text))}
    return {word[:-1] if len(word) > _MEANINGFUL and word.endswith("s") else word for word in found}
