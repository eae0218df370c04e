"""Interface for a kind of hosted tool. A plug-in defines the request that enables the tool, and the tools of the run.

Every package of `tools` has a module `plugin` with one subclass of `ToolPlugin`. The setting `HOSTED_TOOLS` lists these
subclasses. Only the classes of items are defined elsewhere, so that stored items can be read without the tools (see
docs/howto/add-a-tool.md).
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
from responses.tools.approvals import ApprovalAnswer, DecidedApproval
from responses.tools.card import Card
from tenants.models import ToolKind
from tenants.principal import Principal

Tool = dict[str, Any]
"""A tool in the form that the response shows: with every field, and without secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest:
    """The tools of one run, new or resumed.

    - `tools`, `choice`: the tools and the tool choice in the form that the response shows.
    - `items`: the context that the model reads.
    - `account`: the account to which upstream calls of the tools are charged.
    - `decided`: the approval requests that were answered. The tools make the approved calls.
    - `requires_approval`: the team's setting of tools and servers whose calls require approval.
    - `continues_without_servers`: the team's setting for MCP servers whose tools cannot be listed.
    """

    tools: Sequence[Tool]
    choice: Any
    items: Sequence[StoredItem]
    account: UsageAccount
    decided: Sequence[DecidedApproval] = ()
    requires_approval: frozenset[str] = frozenset()
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
    """A feature that a tool of a request needs and that this server cannot provide.

    `param` is the path of the parameter below the tool. `drops_tool` is true if the tool is useless without it.
    """

    message: str
    param: str
    drops_tool: bool = True


class ToolPlugin:
    """A kind of hosted tool. The default methods suit a tool that needs only its parameters.

    The value that `resolve` or `restore` returns is passed to `tools` and `secrets`. Other code does not look into it.
    """

    types: ClassVar[Sequence[str]]
    """The values of `type` in a request that enable the tool."""
    params: ClassVar[Sequence[type[ToolParam]]]
    """Schemas of the tool in a request."""
    history: ClassVar[Mapping[type[StoredItem], Callable[[Any], PastCall | None]]] = {}
    """Functions that convert items of the tool for later turns, by class of item.

    A tool whose items have the type `mcp_call` needs none, because the functions of the `mcp` tool are used.
    """
    cards: ClassVar[Mapping[str, Callable[[dict[str, Any]], Card]]] = {}
    """Functions that make the console's cards for items of the tool, by type of item.

    A tool whose items have the type `mcp_call` needs none, because the functions of the `mcp` tool are used.
    """
    kind: ClassVar[ToolKind | None] = None
    """The permission that teams and keys need; None if everyone may use the tool."""

    def permission(self, tool: ToolParam) -> ToolKind | None:
        """Return the permission that a tool of one of the plug-in's `types` needs."""
        return self.kind

    async def limitation(self, tool: ToolParam, *, team_id: str) -> Limitation | None:
        """Return the limitation of a requested tool of one of the `types` on this server, or None if there is none."""
        return None

    async def resolve(self, request: NewToolRequest) -> Any:
        """Check a new request and return the data for its tools. Raise an API error if a tool cannot be used."""
        return None

    def restore(self, request: ToolRequest, secrets: str) -> Any:
        """Return the data that the tools of a resumed run need. Called in a database thread.

        `secrets` is the result of the method `secrets` from the creation of the response.
        """
        return None

    def tools(self, request: ToolRequest, resolved: Any, earlier: Sequence[HostedTool]) -> list[HostedTool]:
        """Return the tools of a run. `earlier` are the tools of the plug-ins that are listed before this one."""
        raise NotImplementedError

    def waits(self, resolved: Any) -> bool:
        """Return true if a background run of these tools waits for decisions about their calls by default."""
        return False

    def secrets(self, resolved: Any) -> str:
        """Return encrypted data that a worker needs to execute the run; empty if there is none."""
        return ""
