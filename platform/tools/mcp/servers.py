"""MCP servers as a request describes them: address, credentials, tool filter and approval policy."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from core.redaction import SECRET_NAME, redact, secrets_of_url

EFFECT_ID = "responses-platform/effect-id"
"""Key in the `_meta` of a call with the id of its effects."""
HONOURS_EFFECT_ID = "responses-platform/honours-effect-id"
"""Key in the `_meta` of a tool, which declares with `true` that it acts once for calls with the same effect id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFilter:
    """Selects tools of a server by name, by the read-only hint, or by both. None means no condition."""

    names: frozenset[str] | None = None
    read_only: bool | None = None

    def matches(self, tool: "ListedTool") -> bool:
        """Return True if the tool passes the filter. A tool without a read-only hint is assumed to write."""
        named = self.names is None or tool.name in self.names
        return named and (self.read_only is None or tool.read_only is self.read_only)

    @classmethod
    def parse(cls, shown: Any) -> "ToolFilter | None":
        """Parse a list of names or a filter object; None for anything else."""
        match shown:
            case list() as names:
                return cls(names=frozenset(names))
            case dict():
                only = shown.get("tool_names")
                return cls(names=None if only is None else frozenset(only), read_only=shown.get("read_only"))
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalPolicy:
    """Decides which calls need approval. Without any setting, all of them do."""

    always: ToolFilter | None = None
    never: ToolFilter | None = None
    otherwise: bool = True

    def asks_for(self, tool: "ListedTool") -> bool:
        """Return True if calls of the tool need approval. If both filters match, they do."""
        if self.always is not None and self.always.matches(tool):
            return True
        if self.never is not None and self.never.matches(tool):
            return False
        return self.otherwise

    @classmethod
    def parse(cls, shown: Any) -> "ApprovalPolicy":
        """Parse `require_approval`."""
        match shown:
            case "never":
                return cls(otherwise=False)
            case dict():
                # With only an `always` filter, tools it does not match run without approval.
                always, never = ToolFilter.parse(shown.get("always")), ToolFilter.parse(shown.get("never"))
                return cls(always=always, never=never, otherwise=always is None or never is not None)
        return cls()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTool:
    """A tool as its server describes it."""

    name: str
    description: str | None
    input_schema: dict[str, Any]
    annotations: dict[str, Any] | None = None

    @property
    def read_only(self) -> bool:
        """True if the server declares that the tool changes nothing."""
        return bool((self.annotations or {}).get("readOnlyHint"))

    @property
    def may_repeat(self) -> bool:
        """True if the server declares that repeating a call has no further effect."""
        annotations = self.annotations or {}
        return self.read_only or bool(annotations.get("idempotentHint")) or annotations.get(HONOURS_EFFECT_ID) is True

    def shown(self) -> dict[str, Any]:
        """Return the tool as an `mcp_list_tools` item shows it."""
        optional = {"description": self.description, "annotations": self.annotations}
        # OpenAI leaves out what the server did not send; some clients reject null.
        given = {name: value for name, value in optional.items() if value is not None}
        return {"name": self.name, "input_schema": self.input_schema, **given}

    @classmethod
    def parse(cls, shown: Mapping[str, Any]) -> "ListedTool":
        """Parse a tool of an `mcp_list_tools` item."""
        return cls(
            name=shown["name"],
            description=shown.get("description"),
            input_schema=shown.get("input_schema") or {},
            annotations=shown.get("annotations"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteServer:
    """An MCP server with everything a run needs to use it.

    `headers` are secrets and stay in memory. `vouched` is true if an operator chose the address, which may then be
    private. `shown` is the tool as the response shows it. `always_asks` and `waits` are the settings of a connector:
    each call requires approval, and background responses wait for approvals.
    `honours_effect_ids`: an operator declared this for all tools of the server.
    """

    label: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    description: str | None = None
    allowed: ToolFilter | None = None
    approval: ApprovalPolicy = ApprovalPolicy()
    vouched: bool = False
    always_asks: bool = False
    waits: bool = False
    honours_effect_ids: bool = False
    shown: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_deferred(self) -> bool:
        """True if the tools are offered to the model only after a search has found them."""
        return bool(self.shown.get("defer_loading"))

    def redact(self, text: str) -> str:
        """Remove the credentials sent to the server from a text."""
        headers = [value for name, value in self.headers.items() if SECRET_NAME.search(name)]
        return redact(text, [*headers, *secrets_of_url(self.url)])

    def asks_for(self, tool: ListedTool, *, required: AbstractSet[str]) -> bool:
        """Return True if calls of the tool need approval. `required` are the tools and servers of the team's setting.

        A request can require approval for more tools than the connector and the team, but not for fewer.
        """
        names = {"*", tool.name, self.label, self.shown.get("connector_id"), urlsplit(self.url).hostname}
        return self.always_asks or not names.isdisjoint(required) or self.approval.asks_for(tool)

    def offers(self, tool: ListedTool) -> bool:
        """Return True if the request allows the model to use the tool."""
        return self.allowed is None or self.allowed.matches(tool)
