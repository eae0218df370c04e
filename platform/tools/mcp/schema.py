"""The `mcp` tool: a remote server whose tools the model may call.

The URL beyond the origin, the headers and the authorization are secrets of the client. They are neither stored with the
response nor returned.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag, field_validator
from pydantic_core import PydanticCustomError
from typing_extensions import override

from conversations.items import origin
from core.egress_policy import parse_url
from core.errors import (
    EgressRefused,
    InvalidValue,
    MissingParameter,
    MutuallyExclusive,
    UnsupportedParameter,
    UnsupportedValue,
)
from core.http.wire import TAG, Wire
from responses.schema.tools import Label, ToolParam, label_of

MAX_TOOL_NAMES = 1000
BUILT_IN = frozenset({"code_interpreter"})
"""Labels that mean a built-in tool if no URL is given."""
_LABEL = Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")
# The characters that HTTP allows. Control characters would allow header injection.
_HeaderName = Annotated[str, StringConstraints(max_length=128, pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")]
_HeaderValue = Annotated[str, StringConstraints(max_length=8192, pattern=r"^[\t\x20-\x7e]*$")]
# Headers that control the connection or the encoding of messages; the HTTP client sets them itself.
_RESERVED = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


class McpToolFilter(Wire):
    """A filter object to specify which tools are allowed."""

    tool_names: Annotated[list[str], Field(max_length=MAX_TOOL_NAMES)] | None = None
    read_only: bool | None = None


class McpApprovalFilter(Wire):
    """Specify which of the MCP server's tools require approval."""

    always: McpToolFilter | None = None
    never: McpToolFilter | None = None


def _shape(value: Any) -> str | None:
    match value:
        case list():
            return f"{TAG}names"
        case str():
            return f"{TAG}word"
        case dict() | McpToolFilter() | McpApprovalFilter():
            return f"{TAG}filter"
    return None


AllowedMcpTools = Annotated[
    Annotated[list[str], Field(max_length=MAX_TOOL_NAMES), Tag(f"{TAG}names")]
    | Annotated[McpToolFilter, Tag(f"{TAG}filter")],
    Discriminator(_shape),
]
RequireApproval = Annotated[
    Annotated[Literal["always", "never"], Tag(f"{TAG}word")] | Annotated[McpApprovalFilter, Tag(f"{TAG}filter")],
    Discriminator(_shape),
]


class McpToolParam(ToolParam):
    """Give the model access to additional tools via remote Model Context Protocol (MCP) servers."""

    has_name = True
    is_loadable = True

    type: Literal["mcp"]
    server_label: Annotated[str, _LABEL]
    # repr=False on secrets: they must not appear in logs or tracebacks.
    server_url: Annotated[str, Field(max_length=8192)] | None = Field(default=None, repr=False)
    connector_id: Annotated[str, Field(max_length=200)] | None = None
    # Declared only so that a request with it gets an error that names it.
    tunnel_id: str | None = None
    server_description: Annotated[str, Field(max_length=10_000)] | None = None
    headers: Annotated[dict[_HeaderName, _HeaderValue], Field(max_length=64)] | None = Field(default=None, repr=False)
    authorization: Annotated[str, Field(max_length=16_384)] | None = Field(default=None, repr=False)
    allowed_tools: AllowedMcpTools | None = None
    require_approval: RequireApproval | None = None
    defer_loading: bool | None = None
    allowed_callers: list[Literal["direct", "programmatic"]] | None = None

    @field_validator("headers")
    @classmethod
    def _leaves_the_connection_alone(cls, headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
        for name in headers or ():
            # Headers of the MCP protocol and of proxies are reserved as well.
            if name.lower() in _RESERVED or name.lower().startswith(("mcp-", "proxy-")):
                raise PydanticCustomError("reserved_header", "the header '{name}' cannot be set.", {"name": name})
        return headers

    @field_validator("authorization")
    @classmethod
    def _is_a_header(cls, token: str | None) -> str | None:
        if token is not None and not (token.isascii() and token.isprintable()):
            raise PydanticCustomError("not_a_token", "it contains characters that cannot be sent in a header.")
        return token

    @property
    def built_in(self) -> bool:
        """True if the tool means a built-in tool instead of a remote server, as clients of vLLM expect."""
        return self.server_label in BUILT_IN and self.server_url is None and self.connector_id is None

    @property
    def name(self) -> str:
        """The label, which distinguishes the tool from others of the request."""
        return self.server_label

    @override
    def shown(self) -> dict[str, Any]:
        # Types of clients allow null for the headers and allowed tools only; OpenAI returns both.
        given = {
            "server_url": origin(self.server_url) if self.server_url else None,
            "connector_id": self.connector_id,
            "server_description": self.server_description,
            "defer_loading": self.defer_loading,
        }
        return {
            "type": "mcp",
            "server_label": self.server_label,
            **{name: value for name, value in given.items() if value is not None},
            "headers": None,
            "allowed_tools": _dumped(self.allowed_tools),
            "require_approval": _dumped(self.require_approval) or ("never" if self.built_in else "always"),
        }

    @override
    def check(self, tools: Sequence[ToolParam], *, param: str) -> None:
        if self.server_url is not None:
            try:
                parse_url(self.server_url)
            except EgressRefused as refused:
                raise EgressRefused(refused.message, param=f"{param}.server_url") from refused
        if self.tunnel_id is not None:
            raise UnsupportedParameter("Tunnels are not supported by this server.", param=f"{param}.tunnel_id")
        if self.built_in:
            _check_built_in(self, param=param)
        elif self.server_url is None and self.connector_id is None:
            raise MissingParameter(f"{param}.server_url")
        elif self.server_url is not None and self.connector_id is not None:
            raise MutuallyExclusive("server_url", "connector_id", param=param)
        # Items refer to a server by its label only.
        first = next(tool for tool in tools if tool.labels() == self.labels())
        if first is not self:
            raise InvalidValue(
                f"Invalid 'tools': the server label '{self.server_label}' is used more than once.",
                param=f"{param}.server_label",
            )

    @override
    def labels(self) -> list[Label]:
        return [label_of(self.type, self.server_label)]

    @override
    def upstream_names(self) -> list[tuple[str, str]]:
        # Known only when the server has listed its tools.
        return []

    @property
    @override
    def prefix(self) -> str:
        return f"{self.server_label}__"

    @property
    @override
    def only_one(self) -> str:
        return "code interpreter" if self.built_in else ""


def is_built_in(tool: object) -> bool:
    """Return True if an `mcp` tool means the built-in code interpreter instead of a remote server."""
    return isinstance(tool, McpToolParam) and tool.built_in


def _check_built_in(tool: McpToolParam, *, param: str) -> None:
    # A built-in tool has no connection to configure and never asks for approval. It has a description of its own.
    for name in ("headers", "authorization", "allowed_tools", "defer_loading"):
        if getattr(tool, name):
            raise UnsupportedParameter(
                f"'{tool.server_label}' without 'server_url' is a built-in tool, which does not support '{name}'.",
                param=f"{param}.{name}",
            )
    if tool.require_approval not in (None, "never"):
        raise UnsupportedValue(
            f"'{tool.server_label}' without 'server_url' is a built-in tool, which does not support approvals.",
            param=f"{param}.require_approval",
        )


def _dumped(value: Any) -> Any:
    return value.model_dump(exclude_none=True) if isinstance(value, Wire) else value
