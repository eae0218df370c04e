"""Interface of a kind of hosted tool: how a request enables it, and the tools it adds to a run.

Every package of `tools` has a module `plugin` with one subclass of `ToolPlugin`; the setting `HOSTED_TOOLS` lists them.
Only the classes of items are elsewhere: stored items stay readable without the tools (docs/howto/add-a-tool.md).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from conversations.items import StoredItem
from engine.calls.toolbox import HostedTool
from providers.hosted_calls import PastCall
from responses.requests import tool_offer
from responses.runs.identity import UsageAccount
from responses.schema.tools import ToolParam
from responses.tools.approvals import ApprovalAnswer, GrantedApproval
from responses.tools.card import Card
from tenants.models import ToolKind
from tenants.principal import Principal

Tool = dict[str, Any]
"""A tool as the response shows it: every field present, no secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest:
    """The tools of one run, new or resumed.

    `tools` and `choice` are as the response shows them, `items` is the context the model reads, `account` is charged
    for what the tools use, `granted` are calls that the client has approved. `continues_without_servers` is the team's
    setting for MCP servers whose tools cannot be listed.
    """

    tools: Sequence[Tool]
    choice: Any
    items: Sequence[StoredItem]
    account: UsageAccount
    granted: Sequence[GrantedApproval] = ()
    continues_without_servers: bool = False

    def offered(self, types: Sequence[str]) -> list[Tool]:
        """Return the tools of these types that `tool_choice` does not leave out."""
        return [tool for tool in self.tools if tool["type"] in types and tool_offer.allows(self.choice, tool["type"])]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToolRequest(ToolRequest):
    """The tools of a response that is being created, with the client's parameters and answers to approval requests."""

    principal: Principal
    params: Sequence[ToolParam]
    answers: Sequence[ApprovalAnswer] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limitation:
    """Something that a tool of a request asks for and this server cannot provide.

    `param` is the path below the tool. `drops_tool` is true if nothing of the tool is left without it.
    """

    message: str
    param: str
    drops_tool: bool = True


class ToolPlugin:
    """A kind of hosted tool. The defaults suit a tool that needs nothing but its parameters.

    A run passes what `resolve` or `restore` returns to `tools` and `secrets`; the value is opaque to other code.
    """

    types: ClassVar[Sequence[str]]
    """The values of `type` in a request that enable the tool."""
    params: ClassVar[Sequence[type[ToolParam]]]
    """Schemas of the tool in a request."""
    history: ClassVar[Mapping[type[StoredItem], Callable[[Any], PastCall | None]]] = {}
    """Functions that convert its items for later turns, by class of item. A tool
    whose items are `mcp_call` needs none: those of the `mcp` tool serve it."""
    cards: ClassVar[Mapping[str, Callable[[dict[str, Any]], Card]]] = {}
    """Functions that make the console's cards of its items, by type, under the same condition."""
    kind: ClassVar[ToolKind | None] = None
    """The permission that teams and keys need; None if everyone may use the tool."""

    def permission(self, tool: ToolParam) -> ToolKind | None:
        """Return the permission that a tool of one of our `types` needs."""
        return self.kind

    async def limitation(self, tool: ToolParam, *, team_id: str) -> Limitation | None:
        """Return the limitation of a tool of one of our `types` on this server; None if it can be used as requested."""
        return None

    async def resolve(self, request: NewToolRequest) -> Any:
        """Check a new request and return the data for its tools; raise the API error of a tool that cannot be used."""
        return None

    def restore(self, request: ToolRequest, secrets: str) -> Any:
        """Return the data that the tools of a resumed run need; runs in a database thread.

        `secrets` is what `secrets` returned when the response was created.
        """
        return None

    def tools(self, request: ToolRequest, resolved: Any, earlier: Sequence[HostedTool]) -> list[HostedTool]:
        """Return the tools of a run. `earlier` are those of the plug-ins listed before this one."""
        raise NotImplementedError

    def secrets(self, resolved: Any) -> str:
        """Return encrypted data that a worker needs to execute the run; empty if there is none."""
        return ""
