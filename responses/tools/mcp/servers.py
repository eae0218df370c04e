"""An MCP server as a request names it: where it is, what it is told, which of its tools may be used, and how."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_SECRET = re.compile(r"auth|cookie|key|pass|secret|session|token", re.IGNORECASE)
# What is shorter stands in many texts by chance.
_SHORTEST_SECRET = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFilter:
    """Some tools of a server: those of these names, those that only read, or those that are both.

    `names` None and `read_only` None let every tool through.
    """

    names: frozenset[str] | None = None
    read_only: bool | None = None

    def matches(self, tool: "ListedTool") -> bool:
        """Whether the tool is one of them. A tool that says nothing is taken to write."""
        named = self.names is None or tool.name in self.names
        return named and (self.read_only is None or tool.read_only is self.read_only)

    @classmethod
    def parse(cls, shown: Any) -> "ToolFilter | None":
        """From the shape of the wire: a list of names, or an object; None for neither."""
        match shown:
            case list() as names:
                return cls(names=frozenset(names))
            case dict():
                only = shown.get("tool_names")
                return cls(names=None if only is None else frozenset(only), read_only=shown.get("read_only"))
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalPolicy:
    """Which calls a person has to allow. Without a word of the client: all of them."""

    always: ToolFilter | None = None
    never: ToolFilter | None = None
    otherwise: bool = True

    def asks_for(self, tool: "ListedTool") -> bool:
        """Whether a call of the tool needs approval; where both filters match, it does."""
        if self.always is not None and self.always.matches(tool):
            return True
        if self.never is not None and self.never.matches(tool):
            return False
        return self.otherwise

    @classmethod
    def parse(cls, shown: Any) -> "ApprovalPolicy":
        """From the shape of the wire. With only an `always` filter, what it does not name runs."""
        match shown:
            case "never":
                return cls(otherwise=False)
            case dict():
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
        """Whether it changes nothing, by what the server says."""
        return bool((self.annotations or {}).get("readOnlyHint"))

    @property
    def may_repeat(self) -> bool:
        """Whether a second call does no more than the first, by what the server says."""
        return self.read_only or bool((self.annotations or {}).get("idempotentHint"))

    def shown(self) -> dict[str, Any]:
        """The tool in an `mcp_list_tools` item."""
        return {
            "name": self.name,
            "description": self.description,
            "input_schema": self.input_schema,
            "annotations": self.annotations,
        }

    @classmethod
    def parse(cls, shown: Mapping[str, Any]) -> "ListedTool":
        """From an `mcp_list_tools` item."""
        return cls(
            name=shown["name"],
            description=shown.get("description"),
            input_schema=shown.get("input_schema") or {},
            annotations=shown.get("annotations"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteServer:
    """A server with everything that a run needs of it. `headers` are secrets: they stay in memory.

    `vouched`: an operator has chosen where it is, and it may be at a private address. `shown` is the tool as the
    response echoes it.
    """

    label: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    description: str | None = None
    allowed: ToolFilter | None = None
    approval: ApprovalPolicy = ApprovalPolicy()
    vouched: bool = False
    shown: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_deferred(self) -> bool:
        """Whether the model hears of its tools only once a search has found them."""
        return bool(self.shown.get("defer_loading"))

    def redact(self, text: str) -> str:
        """What the server said, without the credentials that it was sent: some servers repeat them in their errors."""
        for name, value in self.headers.items():
            if _SECRET.search(name):
                for secret in sorted({value, value.rpartition(" ")[2]}, key=len, reverse=True):
                    if len(secret) >= _SHORTEST_SECRET:
                        text = text.replace(secret, "[redacted]")
        return text

    def offers(self, tool: ListedTool) -> bool:
        """Whether the request lets the model use the tool."""
        return self.allowed is None or self.allowed.matches(tool)
