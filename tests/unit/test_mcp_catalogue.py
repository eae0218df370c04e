"""MCP tools that a run knows from the items in its context."""

from typing import Any

from conversations.items import McpListTools, ToolSearchOutput
from tools.mcp.catalogue import ToolCatalogue
from tools.mcp.servers import RemoteServer

SHOWN = {"type": "mcp", "server_label": "box", "server_url": "https://box.test", "allowed_tools": None}
LISTED: list[dict[str, Any]] = [
    {"name": name, "description": None, "input_schema": {}, "annotations": None} for name in ("add", "note")
]


def knowing(*found: dict[str, Any], **fields: Any) -> ToolCatalogue:
    """Return the catalogue of a run whose context has the tool list and a search that found these tools."""
    catalogue = ToolCatalogue([RemoteServer(label="box", url="https://box.test/mcp", shown={**SHOWN, **fields})])
    search = ToolSearchOutput.model_validate({"type": "tool_search_output", "tools": list(found)})
    catalogue.restore([search, McpListTools.model_validate({"server_label": "box", "tools": LISTED})])
    return catalogue


def offered(catalogue: ToolCatalogue, choice: Any = "auto") -> list[str]:
    return [function.name for function in catalogue.functions(choice, first_turn=True)]


def test_a_server_that_is_not_deferred_offers_all_tools() -> None:
    assert offered(knowing()) == ["box__add", "box__note"]


def test_a_deferred_server_offers_the_tools_that_a_search_found() -> None:
    catalogue = knowing({**SHOWN, "allowed_tools": ["note"]}, defer_loading=True)
    assert offered(catalogue) == ["box__note"]
    assert list(catalogue.deferred_tools("auto")) == ["box__add"]


def test_a_search_may_load_a_whole_server() -> None:
    assert offered(knowing(SHOWN, defer_loading=True)) == ["box__add", "box__note"]


def test_tools_found_on_another_server_are_ignored() -> None:
    assert offered(knowing({**SHOWN, "server_label": "other"}, defer_loading=True)) == []


def test_disallowed_tools_cannot_be_found() -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "box", "name": "add"}]}
    catalogue = knowing(defer_loading=True)
    assert (offered(catalogue, choice), list(catalogue.deferred_tools(choice))) == ([], ["box__add"])
