"""Tool catalogue: the tools that the MCP servers of a run have listed, by their upstream names."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson

from conversations.items import McpListTools, ToolSearchOutput
from engine.calls.client_tools import upstream_name
from engine.turn import CallForm, FunctionTool
from tools.mcp.servers import ListedTool, RemoteServer, ToolFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailableTool:
    """A tool that can be called."""

    server: RemoteServer
    tool: ListedTool

    @property
    def definition(self) -> str:
        """Digest of the tool's definition and the server's address, without query or credentials."""
        # An approval is only valid for what the user saw: the tool's definition and the server it belongs to.
        url = urlsplit(self.server.url)
        where = [url.scheme, url.netloc.rpartition("@")[2], url.path]
        return hashlib.sha256(orjson.dumps([where, self.tool.shown()], option=orjson.OPT_SORT_KEYS)).hexdigest()

    @property
    def search_result(self) -> dict[str, Any]:
        """The server with only this tool, as a `tool_search_output` item shows it."""
        return {**self.server.shown, "allowed_tools": [self.tool.name]}

    def function(self, name: str) -> FunctionTool:
        """Return the function that represents the tool upstream."""
        words = (self.server.description, self.tool.description)
        return FunctionTool(
            name=name,
            description="\n".join(word for word in words if word) or None,
            parameters=self.tool.input_schema,
            form=CallForm.HOSTED,
        )


class ToolCatalogue:
    """Listed tools of some servers, and which of the deferred ones are loaded."""

    def __init__(self, servers: Sequence[RemoteServer]) -> None:
        self.servers = {server.label: server for server in servers}
        self._listed: dict[str, list[ListedTool]] = {}
        self._known: dict[str, AvailableTool] = {}
        # Deferred tools that a search has found, by server label.
        self._found: dict[str, list[ToolFilter]] = {}

    def restore(self, items: Iterable[Any]) -> None:
        """Restore tool lists and search results from the context, so that servers need not be asked again."""
        for item in items:
            if isinstance(item, ToolSearchOutput):
                self._recall_found(item)
            if isinstance(item, McpListTools) and item.error is None and item.server_label in self.servers:
                tools = [ListedTool.parse(tool.model_dump()) for tool in item.tools]
                self.add_listing(self.servers[item.server_label], tools)

    def add_listing(self, server: RemoteServer, tools: Iterable[ListedTool]) -> list[ListedTool]:
        """Store the tools that a server has listed; returns those that the request allows."""
        allowed = [tool for tool in tools if server.offers(tool)]
        self._listed[server.label] = allowed
        # A new list replaces the old one: tools that are gone must not be called any more.
        self._known = {name: entry for name, entry in self._known.items() if entry.server.label != server.label}
        for tool in allowed:
            self._known[upstream_name(server.label, tool.name)] = AvailableTool(server=server, tool=tool)
        return allowed

    def unlisted(self) -> list[RemoteServer]:
        """Return the servers whose tools are not known yet."""
        return [server for server in self.servers.values() if server.label not in self._listed]

    def find(self, upstream_name: str) -> AvailableTool | None:
        """Return the tool with this upstream name, or None."""
        return self._known.get(upstream_name)

    def functions(self, choice: Any, *, first_turn: bool) -> tuple[FunctionTool, ...]:
        """Return the functions that a turn is offered.

        `allowed_tools` leaves only the tools it names. A server that `tool_choice` forces is offered alone in the first
        turn. A deferred tool is offered once a search has found it, or if the choice forces it.
        """
        return tuple(
            entry.function(name)
            for name, entry in self._known.items()
            if self.is_offered(entry, choice, first_turn=first_turn)
        )

    def deferred_tools(self, choice: Any) -> dict[str, AvailableTool]:
        """Return the tools that are offered only once a search has found them."""
        return {
            name: entry
            for name, entry in self._known.items()
            if _is_allowed(entry, choice) and not self._is_loaded(entry)
        }

    def load(self, names: Iterable[str]) -> None:
        """Offer these tools from now on; called with the results of a search."""
        for entry in [self._known[name] for name in names if name in self._known]:
            self._found.setdefault(entry.server.label, []).append(ToolFilter(names=frozenset({entry.tool.name})))

    def _recall_found(self, item: ToolSearchOutput) -> None:
        for tool in item.tools:
            if tool.get("type") == "mcp" and (label := tool.get("server_label")) in self.servers:
                found = ToolFilter.parse(tool.get("allowed_tools")) or ToolFilter()
                self._found.setdefault(label, []).append(found)

    def _is_loaded(self, known: AvailableTool) -> bool:
        found = self._found.get(known.server.label, ())
        return not known.server.is_deferred or any(tool_filter.matches(known.tool) for tool_filter in found)

    def is_offered(self, known: AvailableTool, choice: Any, *, first_turn: bool) -> bool:
        """Return True if the turn is offered the tool."""
        match choice:
            case {"type": "mcp"} if first_turn:
                return _matches_choice(choice, known)
        return _is_allowed(known, choice) and self._is_loaded(known)


def _is_allowed(known: AvailableTool, choice: Any) -> bool:
    match choice:
        case {"type": "allowed_tools", "tools": tools}:
            return any(_matches_choice(tool, known) for tool in tools)
    return True


def _matches_choice(choice: dict[str, Any], known: AvailableTool) -> bool:
    is_server = choice["type"] == "mcp" and choice["server_label"] == known.server.label
    return is_server and choice.get("name") in {None, known.tool.name}
