"""Union of all tools that `tools` may contain: validation, and the form in which responses show them."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import ConfigDict, Discriminator, Field, Tag, ValidationError

from conversations.items import AdditionalTools, ToolSearchOutput, Wire, by_type
from kernel.errors import BadRequest, InvalidValue, UnsupportedValue
from kernel.nulls import validate_without_nulls
from kernel.validation import TAG, first_defect, path
from responses.engine.calls.client_tools import MAX_NAME, upstream_name
from responses.engine.turn import Grammar
from responses.schema.containers import (
    AutoEnvironment,
    CodeInterpreterParam,
    ReferencedEnvironment,
    check_code_tools,
    check_container,
)
from responses.schema.file_search import FileSearchToolParam
from responses.schema.images import ImageGenerationParam, check_image_tool
from responses.schema.mcp import McpToolParam, check_servers
from responses.schema.web_search import WEB_SEARCH_FUNCTIONS, WEB_SEARCH_TYPES, WebSearchParam, WebSearchPreviewParam

NAME = Field(min_length=1, max_length=MAX_NAME, pattern=r"^[a-zA-Z0-9_-]+$")
MAX_TOOLS = 1_000
MAX_TEXT = 100_000
Callers = list[Literal["direct", "programmatic"]]
UNSUPPORTED_TYPES = {
    "programmatic_tool_calling": "this server does not run programs that call tools",
    "container_auto": "a shell added during a conversation can only use the 'local' environment",
    "container_reference": "a shell added during a conversation can only use the 'local' environment",
}
"""Tool types of the API that this server does not support, with the reason for the error message."""
# These tools cannot be added during a conversation, because they are set up before a run starts.
_REQUEST_ONLY = frozenset(
    {"tool_search", "mcp", "file_search", "code_interpreter", "image_generation", *WEB_SEARCH_TYPES}
)


def _loaded_tag(tool: Any) -> str:
    tag = by_type(tool)
    return tag if tag == f"{TAG}mcp" else f"{TAG}client"


def _present(**fields: Any) -> dict[str, Any]:
    # Optional fields are returned only to clients that sent them, as OpenAI does.
    return {name: value for name, value in fields.items() if value is not None}


class _Named(Wire):
    # `async` is a keyword of Python, so the SDK dumps the field as `async_`. Both names are accepted.
    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    name: Annotated[str, NAME]
    description: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    async_: bool | None = Field(default=None, alias="async")
    defer_loading: bool | None = None
    allowed_callers: Callers | None = None

    def _options(self) -> dict[str, Any]:
        sent = {"async": self.async_, "defer_loading": self.defer_loading, "allowed_callers": self.allowed_callers}
        return _present(**sent)


class FunctionToolParam(_Named):
    """Defines a function in your own code the model can choose to call."""

    type: Literal["function"]
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    output_schema: dict[str, Any] | None = None

    def shown(self) -> dict[str, Any]:
        """Return the tool as the response shows it."""
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": self.strict,
            **self._options(),
            **_present(output_schema=self.output_schema),
        }


class TextInput(Wire):
    """Unconstrained free-form text."""

    type: Literal["text"]


class GrammarInput(Wire):
    """A grammar defined by the user."""

    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Field(min_length=1)]


class CustomToolParam(_Named):
    """A custom tool that processes input using a specified format."""

    type: Literal["custom"]
    format: (
        Annotated[
            Annotated[TextInput, Tag(f"{TAG}text")] | Annotated[GrammarInput, Tag(f"{TAG}grammar")],
            Discriminator(by_type),
        ]
        | None
    ) = None

    def shown(self) -> dict[str, Any]:
        """Return the tool as the response shows it."""
        return {
            "type": "custom",
            "name": self.name,
            "description": self.description,
            "format": self.format.model_dump() if self.format else {"type": "text"},
            **self._options(),
        }


class NamespaceToolParam(Wire):
    """Groups function and custom tools under a shared namespace."""

    type: Literal["namespace"]
    name: Annotated[str, NAME]
    description: Annotated[str, Field(max_length=MAX_TEXT)]
    tools: Annotated[
        list[
            Annotated[
                Annotated[FunctionToolParam, Tag(f"{TAG}function")] | Annotated[CustomToolParam, Tag(f"{TAG}custom")],
                Discriminator(by_type),
            ]
        ],
        Field(min_length=1, max_length=MAX_TOOLS),
    ]

    def shown(self) -> dict[str, Any]:
        """Return the tool as the response shows it."""
        tools = [tool.shown() for tool in self.tools]
        return {"type": "namespace", "name": self.name, "description": self.description, "tools": tools}


class ToolSearchParam(Wire):
    """Tool search configuration: finds tools with deferred loading, on the server or by the client."""

    type: Literal["tool_search"]
    execution: Literal["server", "client"] | None = None
    description: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    parameters: dict[str, Any] | None = None

    def shown(self) -> dict[str, Any]:
        """Return the tool as the response shows it."""
        return {
            "type": "tool_search",
            "execution": self.execution or "server",
            "description": self.description,
            "parameters": self.parameters,
        }


class ComputerToolParam(Wire):
    """A tool that controls a virtual computer."""

    type: Literal["computer"]

    def shown(self) -> dict[str, Any]:
        """Return the tool as the response shows it."""
        return {"type": "computer"}


class ComputerUsePreviewParam(Wire):
    """A tool that controls a virtual computer, one action per call."""

    type: Literal["computer_use_preview"]
    display_width: Annotated[int, Field(ge=1)]
    display_height: Annotated[int, Field(ge=1)]
    environment: Literal["windows", "mac", "linux", "ubuntu", "browser"]

    def shown(self) -> dict[str, Any]:
        """Return the tool as the response shows it."""
        return self.model_dump()


class LocalSkill(Wire):
    """A skill: instructions in a folder on the client's machine."""

    name: str
    description: str
    path: str


class LocalShellEnvironment(Wire):
    """The client's own machine."""

    type: Literal["local"]
    skills: Annotated[list[LocalSkill], Field(max_length=MAX_TOOLS)] | None = None


class ShellToolParam(Wire):
    """A tool that allows the model to execute shell commands on the client's machine."""

    type: Literal["shell"]
    environment: Annotated[Annotated[LocalShellEnvironment, Tag(f"{TAG}local")], Discriminator(by_type)] | None = None
    allowed_callers: Callers | None = None

    def shown(self) -> dict[str, Any]:
        """Return the tool as the response shows it."""
        environment = self.environment.model_dump(exclude_none=True) if self.environment else {"type": "local"}
        return {"type": "shell", "environment": environment, **_present(allowed_callers=self.allowed_callers)}


class AnyShellParam(Wire):
    """A tool that allows the model to execute shell commands, on the client's machine or in a container."""

    type: Literal["shell"]
    environment: (
        Annotated[
            Annotated[LocalShellEnvironment, Tag(f"{TAG}local")]
            | Annotated[AutoEnvironment, Tag(f"{TAG}container_auto")]
            | Annotated[ReferencedEnvironment, Tag(f"{TAG}container_reference")],
            Discriminator(by_type),
        ]
        | None
    ) = None
    allowed_callers: Callers | None = None

    def shown(self) -> dict[str, Any]:
        """Return the tool as the response shows it."""
        match self.environment:
            case None:
                environment: dict[str, Any] = {"type": "local"}
            case LocalShellEnvironment() as local:
                environment = local.model_dump(exclude_none=True)
            case hosted:
                environment = hosted.shown()
        return {"type": "shell", "environment": environment, **_present(allowed_callers=self.allowed_callers)}


class LocalShellParam(Wire):
    """A tool that allows the model to execute shell commands in a local environment."""

    type: Literal["local_shell"]

    def shown(self) -> dict[str, Any]:
        """Return the tool as the response shows it."""
        return {"type": "local_shell"}


class ApplyPatchParam(Wire):
    """Allows the assistant to create, delete, or update files using unified diffs."""

    type: Literal["apply_patch"]
    allowed_callers: Callers | None = None

    def shown(self) -> dict[str, Any]:
        """Return the tool as the response shows it."""
        return {"type": "apply_patch", **_present(allowed_callers=self.allowed_callers)}


ClientToolParam = Annotated[
    Annotated[FunctionToolParam, Tag(f"{TAG}function")]
    | Annotated[CustomToolParam, Tag(f"{TAG}custom")]
    | Annotated[NamespaceToolParam, Tag(f"{TAG}namespace")]
    | Annotated[ComputerToolParam, Tag(f"{TAG}computer")]
    | Annotated[ComputerUsePreviewParam, Tag(f"{TAG}computer_use_preview")]
    | Annotated[ShellToolParam, Tag(f"{TAG}shell")]
    | Annotated[LocalShellParam, Tag(f"{TAG}local_shell")]
    | Annotated[ApplyPatchParam, Tag(f"{TAG}apply_patch")],
    Discriminator(by_type),
]
"""Tools that an `additional_tools` item may add during a conversation: tools that the client runs."""

LoadedToolParam = Annotated[
    Annotated[ClientToolParam, Tag(f"{TAG}client")] | Annotated[McpToolParam, Tag(f"{TAG}mcp")],
    Discriminator(_loaded_tag),
]
"""Tools that a search may load: tools that the client runs, and tools of an MCP server in the request."""

ToolParam = Annotated[
    Annotated[FunctionToolParam, Tag(f"{TAG}function")]
    | Annotated[CustomToolParam, Tag(f"{TAG}custom")]
    | Annotated[NamespaceToolParam, Tag(f"{TAG}namespace")]
    | Annotated[ToolSearchParam, Tag(f"{TAG}tool_search")]
    | Annotated[FileSearchToolParam, Tag(f"{TAG}file_search")]
    | Annotated[McpToolParam, Tag(f"{TAG}mcp")]
    | Annotated[WebSearchParam, Tag(f"{TAG}web_search")]
    | Annotated[WebSearchParam, Tag(f"{TAG}web_search_2025_08_26")]
    | Annotated[WebSearchPreviewParam, Tag(f"{TAG}web_search_preview")]
    | Annotated[WebSearchPreviewParam, Tag(f"{TAG}web_search_preview_2025_03_11")]
    | Annotated[ComputerToolParam, Tag(f"{TAG}computer")]
    | Annotated[ComputerUsePreviewParam, Tag(f"{TAG}computer_use_preview")]
    | Annotated[AnyShellParam, Tag(f"{TAG}shell")]
    | Annotated[CodeInterpreterParam, Tag(f"{TAG}code_interpreter")]
    | Annotated[ImageGenerationParam, Tag(f"{TAG}image_generation")]
    | Annotated[LocalShellParam, Tag(f"{TAG}local_shell")]
    | Annotated[ApplyPatchParam, Tag(f"{TAG}apply_patch")],
    Discriminator(by_type),
]


class _AddedTools(Wire):
    tools: Annotated[list[ClientToolParam], Field(max_length=MAX_TOOLS)]


class _LoadedTools(Wire):
    tools: Annotated[list[LoadedToolParam], Field(max_length=MAX_TOOLS)]


def loaded_tools(item: ToolSearchOutput | AdditionalTools, *, param: str) -> list[Any]:
    """Validate the tools of an item.

    Raises the API error of the first defect, with its path below `param`, which ends in `tools`. Unknown nulls are
    removed from the item, as they are from requests.
    """
    allowed: type[_AddedTools | _LoadedTools] = _LoadedTools if isinstance(item, ToolSearchOutput) else _AddedTools
    try:
        typed: list[Any] = list(validate_without_nulls(allowed, {"tools": item.tools}).tools)
    except ValidationError as error:
        prefix = param.removesuffix("tools")
        # A known but unsupported type gets a specific message instead of a list of all valid types.
        raise tool_defect(error, prefix=prefix) or first_defect(error, prefix=prefix) from error
    check_tools(typed, param=param)
    return typed


def added_tools(given: Any, *, param: str = "input") -> list[Any]:
    """Return the tools that items add: results of tool searches and `additional_tools`; `param` is the path of the
    items."""
    if isinstance(given, str):
        return []
    return [
        tool
        for index, item in enumerate(given)
        if isinstance(item, ToolSearchOutput | AdditionalTools)
        for tool in loaded_tools(item, param=f"{param}[{index}].tools")
    ]


def tool_defect(error: ValidationError, *, prefix: str = "") -> BadRequest | None:
    """Return the error for a tool type that the API has but this server does not support; None for other defects."""
    detail = error.errors(include_url=False)[0]
    kind = str(detail.get("ctx", {}).get("tag", "")).removeprefix(TAG)
    if detail["type"] != "union_tag_invalid" or kind not in {*UNSUPPORTED_TYPES, *_REQUEST_ONLY}:
        return None
    reason = UNSUPPORTED_TYPES.get(kind, "it can only be used in the 'tools' of a request")
    param = f"{prefix}{path(detail['loc'])}.type"
    return UnsupportedValue(f"The tool type '{kind}' is not supported here: {reason}.", param=param)


def check_tools(tools: Sequence[Any], *, param: str) -> None:
    """Raise the API error of tools that are invalid together or not supported; `param` is the path of the list."""
    check_servers(tools)
    check_code_tools(tools, param=param)
    taken: set[str] = set()
    for name, where in _upstream_names(tools, param):
        if name in taken:
            raise InvalidValue(f"Invalid '{param}': the name '{name}' is used more than once.", param=where)
        taken.add(name)
    _check_prefixes(tools, param)
    for tool, where in _walk(tools, param):
        _check_hosted(tool, where)
        callers = getattr(tool, "allowed_callers", None)
        # The model cannot call tools from programs here, so any other value would have no effect.
        if callers is not None and callers != ["direct"]:
            message = "Programmatic tool calling is not supported by this server: 'allowed_callers' must be ['direct']."
            raise UnsupportedValue(message, param=f"{where}.allowed_callers")
        if isinstance(tool, FunctionToolParam) and (wrong := _parameters_defect(tool.parameters or {})) is not None:
            message = f"Invalid schema for function '{tool.name}': {wrong}."
            raise BadRequest(message, param=f"{where}.parameters", code="invalid_function_parameters")
    _check_search(tools, param)


def _check_hosted(tool: Any, where: str) -> None:
    if isinstance(tool, CodeInterpreterParam):
        check_container(tool.container, param=f"{where}.container")
    if isinstance(tool, ImageGenerationParam):
        check_image_tool(tool, where=where)
    if isinstance(tool, AnyShellParam):
        check_container(tool.environment, param=f"{where}.environment")
    if isinstance(tool, WebSearchParam) and tool.external_web_access is False:
        message = "Web search without external web access is not supported by this server."
        raise UnsupportedValue(message, param=f"{where}.external_web_access")
    if isinstance(tool, WebSearchPreviewParam) and "image" in (tool.search_content_types or ()):
        message = "Searching for images is not supported by this server."
        raise UnsupportedValue(message, param=f"{where}.search_content_types")


def _parameters_defect(schema: dict[str, Any]) -> str | None:
    # Only the top level is checked: the upstream validates the rest and knows what its model supports.
    kind = schema.get("type", "object")
    if kind != "object":
        return f"schema must be a JSON Schema of 'type: \"object\"', got 'type: {orjson.dumps(kind).decode()}'"
    if not isinstance(schema.get("properties", {}), dict):
        return "'properties' must be an object"
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        return "'required' must be an array of strings"
    return None


def _check_prefixes(tools: Sequence[Any], param: str) -> None:
    servers = [
        (tool.server_label, f"{param}[{index}].server_label")
        for index, tool in enumerate(tools)
        if isinstance(tool, McpToolParam)
    ]
    # Upstream, tools of a server are named "<label>__<tool>". No other tool may have such a name.
    prefixes = tuple(f"{label}__" for label, _ in servers)
    for name, where in (*_upstream_names(tools, param), *servers):
        if prefixes and name.startswith(prefixes):
            message = f"Invalid '{param}': the name '{name}' conflicts with the tools of an MCP server."
            raise InvalidValue(message, param=where)


def _check_search(tools: Sequence[Any], param: str) -> None:
    deferred = [where for tool, where in _walk(tools, param) if getattr(tool, "defer_loading", None)]
    searches = [(tool, f"{param}[{i}]") for i, tool in enumerate(tools) if isinstance(tool, ToolSearchParam)]
    # Without a search the model could never learn of a deferred tool.
    if deferred and not searches and param == "tools":
        message = "Tools with 'defer_loading' require a 'tool_search' tool."
        raise InvalidValue(message, param=f"{deferred[0]}.defer_loading")
    for search, where in searches:
        if search.execution == "client":
            continue
        if not deferred:
            raise InvalidValue("A 'tool_search' tool requires at least one tool with 'defer_loading'.", param=where)
        if search.parameters is not None:
            message = "'parameters' can only be set if 'execution' is 'client'."
            raise InvalidValue(message, param=f"{where}.parameters")


def _upstream_names(tools: Sequence[Any], param: str) -> Iterator[tuple[str, str]]:
    """Yield the upstream name of each tool and its path. Tools of MCP servers are not known yet."""
    for index, tool in enumerate(tools):
        where = f"{param}[{index}]"
        match tool:
            case NamespaceToolParam():
                for inner, child in enumerate(tool.tools):
                    yield upstream_name(tool.name, child.name), f"{where}.tools[{inner}].name"
            case FunctionToolParam() | CustomToolParam():
                yield tool.name, f"{where}.name"
            case McpToolParam():
                continue
            case ComputerUsePreviewParam():
                # The upstream name is the same for both types of the computer tool.
                yield "computer", where
            case WebSearchParam() | WebSearchPreviewParam():
                yield from ((name, where) for name in WEB_SEARCH_FUNCTIONS)
            case _:
                yield tool.type, where


def _walk(tools: Sequence[Any], param: str) -> Iterator[tuple[Any, str]]:
    """Yield each tool with its path, including tools in namespaces."""
    for index, tool in enumerate(tools):
        where = f"{param}[{index}]"
        yield tool, where
        if isinstance(tool, NamespaceToolParam):
            for inner, child in enumerate(tool.tools):
                yield child, f"{where}.tools[{inner}]"


def grammars(tools: Sequence[Any], *, param: str) -> Iterator[tuple[Grammar, str]]:
    """Yield the grammars of custom tools, each with its path."""
    for tool, where in _walk(tools, param):
        if isinstance(tool, CustomToolParam) and isinstance(tool.format, GrammarInput):
            grammar = Grammar(syntax=tool.format.syntax, definition=tool.format.definition)
            yield grammar, f"{where}.format.definition"


def grammars_of_items(given: Sequence[Any]) -> Iterator[tuple[Grammar, str]]:
    """Yield the grammars of the tools that input items add, each with its path."""
    for index, item in enumerate(given):
        if isinstance(item, ToolSearchOutput | AdditionalTools):
            param = f"input[{index}].tools"
            yield from grammars(loaded_tools(item, param=param), param=param)
