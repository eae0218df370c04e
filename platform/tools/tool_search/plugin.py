"""Plug-in of the `tool_search` tool on the server, which finds the deferred tools of the other plug-ins."""

from collections.abc import Sequence

from typing_extensions import override

from engine.calls.toolbox import HostedTool
from responses.tools.plugin import ToolPlugin, ToolRequest
from tools.tool_search import card
from tools.tool_search.execution import NAME, DeferredTools, searches
from tools.tool_search.schema import ToolSearchParam


class ToolSearchPlugin(ToolPlugin):
    """Search among the tools that the model does not see at first. Needs no permission: it runs nothing."""

    types = (NAME,)
    params = (ToolSearchParam,)
    cards = {"tool_search_call": card.call, "tool_search_output": card.found}

    @override
    def tools(self, request: ToolRequest, resolved: None, earlier: Sequence[HostedTool]) -> list[HostedTool]:
        deferred_tools = [tool for tool in earlier if isinstance(tool, DeferredTools)]
        return [*searches(request.tools, request.choice, request.items, deferred_tools)]
