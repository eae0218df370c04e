"""Client tools that upstreams do not know (computer, shell, apply_patch, …), each offered as a hidden function.

The parameters of a hidden function are the fields of the item, so a valid call can be turned into its item directly.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from engine.calls.outcomes import parse_object
from engine.constraints.json_schema import mismatch
from engine.events.types import Body
from engine.turn import CallForm, FunctionTool

Schema = dict[str, Any]
MAX_NAME = 64
_DIGEST = 8
_ODD = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Properties of a call form whose item has fields of its own.

    `truncated`: fields of the item if its call was cut off, or None if such a call has no valid item and is not shown.
    """

    item: str
    prefix: str
    function: FunctionTool
    fields: Callable[[Body], Body]
    truncated: Body | None


def upstream_name(namespace: str | None, name: str) -> str:
    """Return the upstream's name of a tool in a namespace or of an MCP server.

    OpenAI allows at most 64 characters: letters, digits, `_` and `-`. The name is deterministic, so it is the same in
    later turns and responses.
    """
    if not namespace:
        return name
    whole = f"{namespace}__{name}"
    plain = _ODD.sub("_", whole)
    if plain == whole and len(whole) <= MAX_NAME:
        return whole
    # Replacing or cutting characters could make two names equal; the digest keeps them distinct.
    digest = hashlib.sha256(whole.encode()).hexdigest()[:_DIGEST]
    return f"{plain[: MAX_NAME - _DIGEST - 1]}_{digest}"


def called_name(namespace: str | None, name: str) -> str:
    """Return the name that the upstream knows for the tool of a call.

    A deferred function outside of a namespace is called with its name as the namespace.
    """
    return upstream_name(None if namespace == name else namespace, name)


def hidden_function(form: CallForm, *, description: str = "", parameters: Schema | None = None) -> FunctionTool:
    """Return the function that an upstream gets for a client tool. `description` follows the built-in description."""
    function = SHAPES[form].function
    full_description = "\n".join(part for part in (function.description, description) if part)
    return replace(function, description=full_description, parameters=parameters or function.parameters)


def item_fields(tool: FunctionTool, arguments: str) -> Body | None:
    """Return the fields of the item of a call; None if the call is invalid."""
    if shape_defect(tool, arguments) is not None:
        return None
    return SHAPES[tool.form].fields(parse_object(arguments or "{}") or {})


def shape_defect(tool: FunctionTool, arguments: str) -> str | None:
    """Return a sentence that says why a call cannot become the item of its tool; None for a valid call."""
    if tool.form not in SHAPES:
        return None
    document = parse_object(arguments or "{}")
    if document is None:
        return f"The arguments of '{tool.name}' are not a JSON object."
    # The client's own schema of a tool search only guides the model: the client checks the call.
    schema = {"type": "object"} if tool.form is CallForm.TOOL_SEARCH else tool.parameters
    defect = mismatch(schema or {}, document)
    return f"The arguments of '{tool.name}' do not match its schema: {defect}" if defect else None


# -- schemas -----------------------------------------------------------------------------------------------------------

_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_TEXTS: Schema = {"type": "array", "items": _TEXT}
_SOME_TEXTS: Schema = {**_TEXTS, "minItems": 1}


def _object(*, optional: Schema | None = None, **required: Schema) -> Schema:
    # Models often send null for an optional property instead of omitting it.
    nullable = {name: {"anyOf": [schema, {"type": "null"}]} for name, schema in (optional or {}).items()}
    return {
        "type": "object",
        "properties": {**required, **nullable},
        "required": list(required),
        "additionalProperties": False,
    }


def _kind(name: str, *, optional: Schema | None = None, **required: Schema) -> Schema:
    return _object(type={"type": "string", "enum": [name]}, optional=optional, **required)


_PLACE = {"x": _WHOLE, "y": _WHOLE}
_KEYS = {"keys": _TEXTS}
_BUTTON: Schema = {"type": "string", "enum": ["left", "right", "wheel", "back", "forward"]}
_ACTION: Schema = {
    "anyOf": [
        _kind("click", button=_BUTTON, **_PLACE, optional=_KEYS),
        _kind("double_click", **_PLACE, optional=_KEYS),
        _kind("drag", path={"type": "array", "items": _object(**_PLACE), "minItems": 1}, optional=_KEYS),
        _kind("keypress", keys=_SOME_TEXTS),
        _kind("move", **_PLACE, optional=_KEYS),
        _kind("screenshot"),
        _kind("scroll", **_PLACE, scroll_x=_WHOLE, scroll_y=_WHOLE, optional=_KEYS),
        _kind("type", text=_TEXT),
        _kind("wait"),
    ]
}
_OPERATION: Schema = {
    "anyOf": [
        _kind("create_file", path=_TEXT, diff=_TEXT),
        _kind("update_file", path=_TEXT, diff=_TEXT),
        _kind("delete_file", path=_TEXT),
    ]
}
_USE_COMPUTER = "Uses a computer: screen, mouse and keyboard. Coordinates are pixels from the top left of the screen."
_PATCH = (
    "Creates, changes or deletes one file. A diff is in the V4A format: each line begins with a space (context), '-' "
    "(removed) or '+' (added), and '@@', alone or followed by the line of a class or function, starts another section. "
    "In the diff of a new file every line begins with '+'."
)

# -- calls -------------------------------------------------------------------------------------------------------------


def _tidy(value: Any) -> Any:
    # JSON schema accepts 3.0 as an integer and our schemas accept null for optional properties; the item type accepts
    # neither.
    match value:
        case dict():
            return {key: _tidy(entry) for key, entry in value.items() if entry is not None}
        case list():
            return [_tidy(entry) for entry in value]
        case float() if value.is_integer():
            return int(value)
    return value


def _action(untidy: Body) -> Body:
    action: Body = _tidy(untidy)
    return {"keys": [], **action} if action["type"] == "double_click" else action


def _shell(arguments: Body) -> Body:
    action = {"commands": [], "timeout_ms": None, "max_output_length": None, **_tidy(arguments)}
    return {"action": action, "environment": {"type": "local"}}


def _local_shell(arguments: Body) -> Body:
    return {"action": {"type": "exec", "command": [], "env": {}, **_tidy(arguments)}}


def _function(name: str, description: str, form: CallForm, parameters: Schema) -> FunctionTool:
    return FunctionTool(name=name, description=description, form=form, parameters=parameters)


SHAPES: dict[CallForm, Shape] = {
    CallForm.COMPUTER: Shape(
        item="computer_call",
        prefix="cu",
        function=_function(
            "computer",
            f"{_USE_COMPUTER} The actions are executed in order; the result is a screenshot taken after the last one.",
            CallForm.COMPUTER,
            _object(actions={"type": "array", "items": _ACTION, "minItems": 1}),
        ),
        fields=lambda arguments: {
            "actions": [_action(action) for action in arguments["actions"]],
            "pending_safety_checks": [],
        },
        truncated={"actions": [], "pending_safety_checks": []},
    ),
    CallForm.COMPUTER_PREVIEW: Shape(
        item="computer_call",
        prefix="cu",
        function=_function(
            "computer",
            f"{_USE_COMPUTER} The result is a screenshot taken after the action.",
            CallForm.COMPUTER_PREVIEW,
            _object(action=_ACTION),
        ),
        fields=lambda arguments: {"action": _action(arguments["action"]), "pending_safety_checks": []},
        truncated={"pending_safety_checks": []},
    ),
    CallForm.SHELL: Shape(
        item="shell_call",
        prefix="sh",
        function=_function(
            "shell",
            "Runs shell commands in order and returns the output of each.",
            CallForm.SHELL,
            _object(commands=_SOME_TEXTS, optional={"timeout_ms": _WHOLE, "max_output_length": _WHOLE}),
        ),
        fields=_shell,
        truncated=_shell({}),
    ),
    CallForm.LOCAL_SHELL: Shape(
        item="local_shell_call",
        prefix="lsh",
        function=_function(
            "local_shell",
            "Runs one command, given as a list of arguments, and returns its output.",
            CallForm.LOCAL_SHELL,
            _object(
                command=_SOME_TEXTS,
                optional={
                    "env": {"type": "object", "additionalProperties": _TEXT},
                    "timeout_ms": _WHOLE,
                    "user": _TEXT,
                    "working_directory": _TEXT,
                },
            ),
        ),
        fields=_local_shell,
        truncated=_local_shell({}),
    ),
    CallForm.APPLY_PATCH: Shape(
        item="apply_patch_call",
        prefix="apc",
        function=_function("apply_patch", _PATCH, CallForm.APPLY_PATCH, _object(operation=_OPERATION)),
        fields=lambda arguments: {"operation": _tidy(arguments["operation"])},
        truncated=None,
    ),
    CallForm.TOOL_SEARCH: Shape(
        item="tool_search_call",
        prefix="tsc",
        function=_function(
            "tool_search",
            "Searches for tools that are not loaded yet. Tools that it finds can be called from then on.",
            CallForm.TOOL_SEARCH,
            _object(query=_TEXT),
        ),
        fields=lambda arguments: {"execution": "client", "arguments": arguments},
        truncated={"execution": "client", "arguments": {}},
    ),
}
