"""The tools that `tools` may contain: their validation, and the form in which responses show them.

Tools that the client runs are defined here. Each hosted tool defines its own schema, which `schema.add_tools` adds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import ConfigDict, Field, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema
from typing_extensions import override

from conversations.items import AdditionalTools, LocalSkill, ToolSearchOutput
from core.errors import BadRequest, InvalidFunctionParameters, InvalidValue, UnsupportedValue
from core.http.nulls import validate_without_nulls
from core.http.validation import first_defect, path
from core.http.wire import BY_TYPE, TAG, Wire, by_type, tagged
from engine.calls.client_tools import MAX_NAME, upstream_name
from engine.turn import Grammar

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
Label = tuple[str, str]
"""Identifies a tool in a tool choice: its type, and its name or the label of its server."""


def present(**fields: Any) -> dict[str, Any]:
    """Return the fields that have a value. So clients get an optional field back only if they have sent it."""
    return {name: value for name, value in fields.items() if value is not None}


def label_of(kind: str, name: str | None = None) -> Label:
    """Return the label of a tool."""
    # The computer tool has several types, and clients use different types for the tool and its choice.
    return ("computer" if kind.startswith("computer") else kind), name or ""


class ToolParam(Wire):
    """Base class of tools. Subclasses have a `type`, which is a Literal, and override methods where necessary."""

    has_name: ClassVar[bool] = False
    """True if a tool choice has to give a name in addition to the type."""
    is_loadable: ClassVar[bool] = False
    """True if a tool search may load the tool during a conversation."""

    type: str

    def shown(self) -> dict[str, Any]:
        """Return the tool in the form that the response shows: without secrets, and with every field."""
        return self.model_dump()

    def check(self, tools: "Sequence[ToolParam]", *, param: str) -> None:
        """Raise the API error of values that are invalid together or not supported.

        `param` is the path of the tool, `tools` the list that contains it.
        """

    def labels(self) -> list[Label]:
        """Return the labels by which a tool choice may select the tool or its parts."""
        return [label_of(self.type)]

    def upstream_names(self) -> list[tuple[str, str]]:
        """Return the upstream names of the tool's functions, each with its path below the tool."""
        return [(self.type, "")]

    @property
    def prefix(self) -> str:
        """Prefix of the upstream names of functions that are not known yet. No other tool may use this prefix."""
        return ""

    @property
    def only_one(self) -> str:
        """Name of a tool that a request may contain only once, even if it has several types."""
        return ""


class _Named(ToolParam):
    # `async` is a keyword of Python, so the SDK dumps the field as `async_`. Both names are accepted.
    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    has_name = True

    name: Annotated[str, NAME]
    description: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    async_: bool | None = Field(default=None, alias="async")
    defer_loading: bool | None = None
    allowed_callers: Callers | None = None

    @override
    def labels(self) -> list[Label]:
        return [label_of(self.type, self.name)]

    @override
    def upstream_names(self) -> list[tuple[str, str]]:
        return [(self.name, ".name")]

    def _options(self) -> dict[str, Any]:
        sent = {"async": self.async_, "defer_loading": self.defer_loading, "allowed_callers": self.allowed_callers}
        return present(**sent)


class FunctionToolParam(_Named):
    """Defines a function in your own code the model can choose to call."""

    type: Literal["function"]
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    output_schema: dict[str, Any] | None = None

    @override
    def shown(self) -> dict[str, Any]:
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": self.strict,
            **self._options(),
            **present(output_schema=self.output_schema),
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
    format: Annotated[TextInput | GrammarInput, BY_TYPE] | None = None

    @override
    def shown(self) -> dict[str, Any]:
        return {
            "type": "custom",
            "name": self.name,
            # In the types of openai-node, this field is not nullable, in contrast to the same field of a function.
            **present(description=self.description),
            "format": self.format.model_dump() if self.format else {"type": "text"},
            **self._options(),
        }


class NamespaceToolParam(ToolParam):
    """Groups function and custom tools under a shared namespace."""

    has_name = True

    type: Literal["namespace"]
    name: Annotated[str, NAME]
    description: Annotated[str, Field(max_length=MAX_TEXT)]
    tools: Annotated[
        list[Annotated[FunctionToolParam | CustomToolParam, BY_TYPE]],
        Field(min_length=1, max_length=MAX_TOOLS),
    ]

    @override
    def shown(self) -> dict[str, Any]:
        tools = [tool.shown() for tool in self.tools]
        return {"type": "namespace", "name": self.name, "description": self.description, "tools": tools}

    @override
    def labels(self) -> list[Label]:
        return [label for tool in self.tools for label in tool.labels()]

    @override
    def upstream_names(self) -> list[tuple[str, str]]:
        return [(upstream_name(self.name, tool.name), f".tools[{n}].name") for n, tool in enumerate(self.tools)]


class ComputerToolParam(ToolParam):
    """A tool that controls a virtual computer."""

    type: Literal["computer"]


class ComputerUsePreviewParam(ToolParam):
    """A tool that controls a virtual computer, one action per call."""

    type: Literal["computer_use_preview"]
    display_width: Annotated[int, Field(ge=1)]
    display_height: Annotated[int, Field(ge=1)]
    environment: Literal["windows", "mac", "linux", "ubuntu", "browser"]

    @override
    def upstream_names(self) -> list[tuple[str, str]]:
        # The upstream name is the same for both types of the computer tool.
        return [("computer", "")]


class LocalShellEnvironment(Wire):
    """The client's own machine."""

    type: Literal["local"]
    skills: Annotated[list[LocalSkill], Field(max_length=MAX_TOOLS)] | None = None


class ShellToolParam(ToolParam):
    """A tool that allows the model to execute shell commands on the client's machine."""

    type: Literal["shell"]
    environment: Annotated[LocalShellEnvironment, BY_TYPE] | None = None
    allowed_callers: Callers | None = None

    @override
    def shown(self) -> dict[str, Any]:
        environment = self.environment.model_dump(exclude_none=True) if self.environment else {"type": "local"}
        return {"type": "shell", "environment": environment, **present(allowed_callers=self.allowed_callers)}


class LocalShellParam(ToolParam):
    """A tool that allows the model to execute shell commands in a local environment."""

    type: Literal["local_shell"]


class ApplyPatchParam(ToolParam):
    """Allows the assistant to create, delete, or update files using unified diffs."""

    type: Literal["apply_patch"]
    allowed_callers: Callers | None = None

    @override
    def shown(self) -> dict[str, Any]:
        return {"type": "apply_patch", **present(allowed_callers=self.allowed_callers)}


class UnavailableTool(ToolParam):
    """Placeholder for a tool that was left out of a request, so that errors of later tools have the right positions."""

    type: str = "unavailable"

    @override
    def labels(self) -> list[Label]:
        return []

    @override
    def upstream_names(self) -> list[tuple[str, str]]:
        return []


def shown_tools(tools: Sequence[ToolParam] | None) -> list[dict[str, Any]]:
    """Return the tools of a request as the response shows them."""
    return [tool.shown() for tool in tools or () if not isinstance(tool, UnavailableTool)]


_CLIENT_TOOLS: dict[str, type[ToolParam]] = {
    "function": FunctionToolParam,
    "custom": CustomToolParam,
    "namespace": NamespaceToolParam,
    "computer": ComputerToolParam,
    "computer_use_preview": ComputerUsePreviewParam,
    "shell": ShellToolParam,
    "local_shell": LocalShellParam,
    "apply_patch": ApplyPatchParam,
}
TOOLS = {**_CLIENT_TOOLS}
"""All tools by type. `responses.tools.registry` adds the hosted tools; import it before the first request."""


def _loadable() -> Mapping[str, type[ToolParam]]:
    return _CLIENT_TOOLS | {kind: tool for kind, tool in TOOLS.items() if tool.is_loadable}


@dataclass(frozen=True)
class _OneOf:
    """Annotation for a field that contains one of these tools. It is read whenever the schema of the model is built."""

    tools: Callable[[], Mapping[str, type[ToolParam]]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(tagged(self.tools(), by_type))


AnyTool = Annotated[ToolParam, _OneOf(lambda: TOOLS)]


class _AddedTools(Wire):
    """Tools that an `additional_tools` item may add during a conversation: tools that the client runs."""

    tools: Annotated[list[Annotated[ToolParam, _OneOf(lambda: _CLIENT_TOOLS)]], Field(max_length=MAX_TOOLS)]


class LoadedTools(Wire):
    """Tools that a search may load: tools that the client runs, and tools of an MCP server in the request."""

    tools: Annotated[list[Annotated[ToolParam, _OneOf(_loadable)]], Field(max_length=MAX_TOOLS)]


def loaded_tools(item: ToolSearchOutput | AdditionalTools, *, param: str) -> list[Any]:
    """Validate the tools of an item.

    Raises the API error of the first defect, with its path below `param`, which ends in `tools`. Unknown fields with
    the value null are removed from the item, as they are from requests.
    """
    allowed: type[_AddedTools | LoadedTools] = LoadedTools if isinstance(item, ToolSearchOutput) else _AddedTools
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
    if detail["type"] != "union_tag_invalid" or kind not in UNSUPPORTED_TYPES | TOOLS or kind in _CLIENT_TOOLS:
        return None
    reason = UNSUPPORTED_TYPES.get(kind, "it can only be used in the 'tools' of a request")
    param = f"{prefix}{path(detail['loc'])}.type"
    return UnsupportedValue(f"The tool type '{kind}' is not supported here: {reason}.", param=param)


def check_tools(tools: Sequence[Any], *, param: str) -> None:
    """Raise the API error of tools that are invalid together or not supported; `param` is the path of the list."""
    for index, tool in enumerate(tools):
        tool.check(tools, param=f"{param}[{index}]")
        if tool.only_one and any(tool.only_one == earlier.only_one for earlier in tools[:index]):
            raise InvalidValue(f"Invalid 'tools': only one {tool.only_one} is allowed.", param=f"{param}[{index}]")
    taken: set[str] = set()
    names = [(name, f"{param}[{i}]{where}") for i, tool in enumerate(tools) for name, where in tool.upstream_names()]
    for name, where in names:
        if name in taken:
            raise InvalidValue(f"Invalid '{param}': the name '{name}' is used more than once.", param=where)
        taken.add(name)
    # Upstream, tools of a server are named "<label>__<tool>". No other tool or server may have such a name.
    prefixes = {tool.prefix: f"{param}[{index}].server_label" for index, tool in enumerate(tools) if tool.prefix}
    for name, where in (*names, *((prefix.removesuffix("__"), where) for prefix, where in prefixes.items())):
        if name.startswith(tuple(prefixes)):
            raise InvalidValue(
                f"Invalid '{param}': the name '{name}' conflicts with the tools of an MCP server.", param=where
            )
    has_search = any(tool.type == "tool_search" for tool in tools)
    for tool, where in walk(tools, param):
        callers = getattr(tool, "allowed_callers", None)
        # The model cannot call tools from programs here, so any other value would have no effect.
        if callers is not None and callers != ["direct"]:
            raise UnsupportedValue(
                "Programmatic tool calling is not supported by this server: 'allowed_callers' must be ['direct'].",
                param=f"{where}.allowed_callers",
            )
        if isinstance(tool, FunctionToolParam) and (wrong := _parameters_defect(tool.parameters or {})) is not None:
            raise InvalidFunctionParameters(
                f"Invalid schema for function '{tool.name}': {wrong}.",
                param=f"{where}.parameters",
            )
        # Without a tool search, the model could never find a deferred tool.
        if param == "tools" and getattr(tool, "defer_loading", None) and not has_search:
            raise InvalidValue(
                "Tools with 'defer_loading' require a 'tool_search' tool.", param=f"{where}.defer_loading"
            )


def _parameters_defect(schema: dict[str, Any]) -> str | None:
    # Only the top level is checked here. The upstream validates the rest, because it depends on its model.
    kind = schema.get("type", "object")
    if kind != "object":
        return f"schema must be a JSON Schema of 'type: \"object\"', got 'type: {orjson.dumps(kind).decode()}'"
    if not isinstance(schema.get("properties", {}), dict):
        return "'properties' must be an object"
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        return "'required' must be an array of strings"
    return None


def walk(tools: Sequence[Any], param: str) -> Iterator[tuple[Any, str]]:
    """Yield each tool with its path, including tools in namespaces."""
    for index, tool in enumerate(tools):
        where = f"{param}[{index}]"
        yield tool, where
        if isinstance(tool, NamespaceToolParam):
            for inner, child in enumerate(tool.tools):
                yield child, f"{where}.tools[{inner}]"


def grammars(tools: Sequence[Any], *, param: str) -> Iterator[tuple[Grammar, str]]:
    """Yield the grammars of custom tools, each with its path."""
    for tool, where in walk(tools, param):
        if isinstance(tool, CustomToolParam) and isinstance(tool.format, GrammarInput):
            grammar = Grammar(syntax=tool.format.syntax, definition=tool.format.definition)
            yield grammar, f"{where}.format.definition"


def grammars_of_items(given: Sequence[Any]) -> Iterator[tuple[Grammar, str]]:
    """Yield the grammars of the tools that input items add, each with its path."""
    for index, item in enumerate(given):
        if isinstance(item, ToolSearchOutput | AdditionalTools):
            param = f"input[{index}].tools"
            yield from grammars(loaded_tools(item, param=param), param=param)
