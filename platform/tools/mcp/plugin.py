"""Plug-in of the `mcp` tool: remote servers, whose calls may need the client's approval."""

from collections.abc import Sequence

from typing_extensions import override

from conversations.items import McpApprovalRequest, McpCall
from core import egress
from engine.calls.toolbox import HostedTool
from responses.schema.tools import ToolParam
from responses.tools import approvals
from responses.tools.plugin import NewToolRequest, ToolPlugin, ToolRequest
from tenants.models import ToolKind
from tools.mcp import card
from tools.mcp import request as servers
from tools.mcp.execution import McpTools
from tools.mcp.history import past_call
from tools.mcp.schema import McpToolParam, is_built_in
from tools.mcp.servers import RemoteServer
from tools.mcp.sessions import McpSessions


class McpPlugin(ToolPlugin):
    """Servers named by URL or by connector."""

    types = ("mcp",)
    params = (McpToolParam,)
    history = {McpCall: past_call, McpApprovalRequest: past_call}
    cards = {
        "mcp_call": card.call,
        "mcp_list_tools": card.tool_list,
        "mcp_approval_request": card.approval_request,
        "mcp_approval_response": card.approval,
    }

    @override
    def permission(self, tool: ToolParam) -> ToolKind | None:
        # The built-in server is the code interpreter, which has its own permission.
        return None if is_built_in(tool) else ToolKind.MCP

    @override
    async def resolve(self, request: NewToolRequest) -> list[RemoteServer]:
        found = await servers.servers(request.params, principal=request.principal)
        approvals.check_labels(request.answers, [server.label for server in found])
        return found

    @override
    def restore(self, request: ToolRequest, secrets: str) -> list[RemoteServer]:
        # A server whose secrets were not stored is missing here, and cannot be called again.
        return servers.decrypt_servers(secrets, request.tools)

    @override
    def tools(
        self, request: ToolRequest, resolved: Sequence[RemoteServer], earlier: Sequence[HostedTool]
    ) -> list[HostedTool]:
        if not resolved:
            return []
        sessions = McpSessions(egress.default())
        return [
            McpTools(
                resolved,
                sessions,
                decided=request.decided,
                requires_approval=request.requires_approval,
                continues_without_servers=request.continues_without_servers,
            )
        ]

    @override
    def waits(self, resolved: Sequence[RemoteServer]) -> bool:
        return any(server.waits for server in resolved)

    @override
    def secrets(self, resolved: Sequence[RemoteServer]) -> str:
        return servers.encrypt_servers(resolved) if resolved else ""
