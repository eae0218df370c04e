"""Tools, their choice and thinking, as parameters of a response."""

from collections.abc import Sequence
from typing import Any, assert_never, get_args

import orjson

from gateway.anthropic.schema import (
    AnyChoice,
    AutoChoice,
    BashTool,
    CountTokens,
    CustomTool,
    MemoryTool,
    NoChoice,
    TextEditorTool,
    ThinkingDisabled,
    ThinkingEnabled,
    ToolChoice,
    WebSearchTool,
)
from responses.schema.options import Effort
from tenants.directory import Route

Body = dict[str, Any]
_STRING: Body = {"type": "string"}
_INTEGER: Body = {"type": "integer"}
_LINES: Body = {"type": "array", "items": _INTEGER, "minItems": 2, "maxItems": 2}
_EFFORTS: tuple[str, ...] = get_args(Effort)


def _object(required: Sequence[str], **properties: Body) -> Body:
    return {"type": "object", "properties": properties, "required": [*required]}


# Claude knows these tools by their type; other models need a description and a schema.
_BASH = (
    "Runs a command in a persistent bash session and returns its output. `restart` starts a new session.",
    _object((), command=_STRING, restart={"type": "boolean"}),
)
_EDITOR = (
    (
        "Views, creates and edits files. `view` shows a file or directory, optionally only the lines `view_range`; "
        "`create` writes `file_text` to a new file; `str_replace` replaces the only occurrence of `old_str` by "
        "`new_str`; `insert` inserts `insert_text` after the line `insert_line`."
    ),
    _object(
        ("command", "path"),
        command={"type": "string", "enum": ["view", "create", "str_replace", "insert"]},
        path=_STRING,
        view_range=_LINES,
        file_text=_STRING,
        old_str=_STRING,
        new_str=_STRING,
        insert_line=_INTEGER,
        insert_text=_STRING,
    ),
)
_MEMORY = (
    (
        "Keeps notes in files below /memories, which remain available in later conversations. View the directory "
        "before you start, and save what will be useful later."
    ),
    _object(
        ("command",),
        command={"type": "string", "enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
        path=_STRING,
        view_range=_LINES,
        file_text=_STRING,
        old_str=_STRING,
        new_str=_STRING,
        insert_line=_INTEGER,
        insert_text=_STRING,
        old_path=_STRING,
        new_path=_STRING,
    ),
)


def tool_parameters(body: CountTokens) -> Body:
    """Return the tools and the tool choice of a request."""
    values: Body = {}
    if body.tools:
        values["tools"] = [_tool(tool) for tool in body.tools]
        # The limit of the tool becomes the limit of the request, because web search is the only hosted tool here.
        uses = [tool.max_uses for tool in body.tools if isinstance(tool, WebSearchTool) and tool.max_uses is not None]
        values |= {"max_tool_calls": uses[0]} if uses else {}
    match body.tool_choice:
        case None:
            return values
        case AutoChoice():
            choice: str | Body = "auto"
        case AnyChoice():
            choice = "required"
        case NoChoice():
            choice = "none"
        case ToolChoice(name=name):
            searches = any(isinstance(tool, WebSearchTool) for tool in body.tools or ())
            is_search = searches and name == "web_search"
            choice = {"type": "web_search"} if is_search else {"type": "function", "name": name}
        case never:
            assert_never(never)
    values["tool_choice"] = choice
    if getattr(body.tool_choice, "disable_parallel_tool_use", None):
        values["parallel_tool_calls"] = False
    return values


def _tool(tool: CustomTool | BashTool | TextEditorTool | MemoryTool | WebSearchTool) -> Body:
    match tool:
        case WebSearchTool():
            values: Body = {"type": "web_search"}
            filters = {"allowed_domains": tool.allowed_domains, "blocked_domains": tool.blocked_domains}
            if any(filters.values()):
                values["filters"] = {name: domains for name, domains in filters.items() if domains}
            if tool.user_location is not None:
                values["user_location"] = tool.user_location.model_dump(exclude_none=True)
            return values
        case CustomTool():
            description, schema = tool.description, tool.input_schema
        case BashTool():
            description, schema = _BASH
        case TextEditorTool():
            description, schema = _EDITOR
            if tool.max_characters is not None:
                description += f" At most {tool.max_characters} characters of a file are shown."
        case MemoryTool():
            description, schema = _MEMORY
        case never:
            assert_never(never)
    if tool.input_examples:
        lines = [orjson.dumps(example).decode() for example in tool.input_examples]
        description = "\n".join([*([description] if description else []), "Examples of its input:", *lines])
    function: Body = {"type": "function", "name": tool.name, "parameters": schema}
    if description is not None:
        function["description"] = description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return function


def reasoning(body: CountTokens, route: Route) -> Body:
    """Return the `reasoning` parameter; empty if the model's defaults apply."""
    can, values = route.capabilities, Body()
    if body.output_config is not None and body.output_config.effort is not None:
        values["effort"] = body.output_config.effort
    elif can.reasoning_efforts:
        # A budget is a maximum. It is only translated for models whose efforts are known: others may reject any effort.
        match body.thinking:
            case ThinkingEnabled(budget_tokens=budget):
                values["effort"] = _nearest(budget, can.reasoning_efforts)
            case ThinkingDisabled() if "none" in can.reasoning_efforts:
                values["effort"] = "none"
    if body.shows_thinking and can.reasoning_summaries and route.upstream.speaks_responses:
        values["summary"] = "auto"
    for edit in (body.context_management.edits if body.context_management else None) or ():
        values["context"] = "all_turns" if edit.keep == "all" else "current_turn"
    return values


def _nearest(budget: int, known: Sequence[str]) -> str:
    wanted = _EFFORTS.index("low" if budget < 4096 else "medium" if budget < 16384 else "high")
    return min(known, key=lambda effort: abs(_EFFORTS.index(effort) - wanted) if effort in _EFFORTS else len(_EFFORTS))
