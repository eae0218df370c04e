"""Plug-in of the tools that run code in containers: the code interpreter, under both of its names, and the shell."""

from collections.abc import Sequence

from typing_extensions import override

from conversations.items import CodeInterpreterCall
from engine.calls.toolbox import HostedTool
from responses.requests import tool_offer
from responses.schema.tools import ToolParam
from responses.tools.plugin import NewToolRequest, ToolPlugin, ToolRequest
from tenants.models import ToolKind
from tools.code_interpreter import card
from tools.code_interpreter.execution import CodeInterpreter
from tools.code_interpreter.history import past_call
from tools.code_interpreter.run_container import check_containers, container_requests, run_containers
from tools.code_interpreter.schema import AnyShellParam, CodeInterpreterParam
from tools.code_interpreter.shell import HostedShell
from tools.mcp.schema import is_built_in


class ContainerPlugin(ToolPlugin):
    """One plug-in for all container tools, because the tools of a run may share a container."""

    types = ("code_interpreter", "shell", "mcp")
    params = (AnyShellParam, CodeInterpreterParam)
    history = {CodeInterpreterCall: past_call}
    cards = {"code_interpreter_call": card.call}

    @override
    def permission(self, tool: ToolParam) -> ToolKind | None:
        if tool.type == "code_interpreter" or is_built_in(tool):
            return ToolKind.CODE_INTERPRETER
        # A shell without a container runs at the client and needs no permission.
        return ToolKind.SHELL if tool.type == "shell" and container_requests([tool.shown()]) else None

    @override
    async def resolve(self, request: NewToolRequest) -> None:
        await check_containers(request.tools, principal=request.principal)

    @override
    def tools(self, request: ToolRequest, resolved: None, earlier: Sequence[HostedTool]) -> list[HostedTool]:
        account = request.account
        containers = run_containers(request.tools, team_id=account.team_id, key_id=account.key_id)
        return [
            HostedShell(container) if needed.kind == "shell" else CodeInterpreter(container, kind=needed.kind)
            for needed, container in containers
            if tool_offer.allows(request.choice, needed.kind)
        ]
