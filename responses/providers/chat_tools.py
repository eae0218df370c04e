"""Tools and tool choice of a turn as parameters of a chat completion."""

from typing import Any

from responses.engine.converter.calls import CUSTOM_INPUT
from responses.engine.turn import CallForm, FunctionTool, Grammar, Sampling
from tenants.capabilities import Capabilities


def tool_parameters(sampling: Sampling, can: Capabilities) -> dict[str, Any]:
    """Return the tool parameters of the request body."""
    body: dict[str, Any] = {"tools": [_tool(tool, can) for tool in sampling.tools]}
    choice = sampling.tool_choice
    if choice is not None:
        body["tool_choice"] = _choice(choice, can)
    if sampling.parallel_tool_calls is not None:
        body["parallel_tool_calls"] = sampling.parallel_tool_calls
    return body


def _choice(choice: str | FunctionTool, can: Capabilities) -> Any:
    if isinstance(choice, str) and choice in {"auto", "none"}:
        return choice
    if not can.forced_tool_choice:
        # The upstream would reject it. The instructions ask for the call instead, and the loop enforces it.
        return "auto"
    if isinstance(choice, str):
        return choice
    kind = "custom" if _is_custom(choice, can) else "function"
    return {"type": kind, kind: {"name": choice.name}}


def _tool(tool: FunctionTool, can: Capabilities) -> dict[str, Any]:
    if _is_custom(tool, can):
        return {"type": "custom", "custom": _filled(name=tool.name, description=tool.description, format=_format(tool))}
    if tool.form is CallForm.CUSTOM:
        return {"type": "function", "function": _emulated(tool)}
    function = _filled(name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict)
    return {"type": "function", "function": function}


def _is_custom(tool: FunctionTool, can: Capabilities) -> bool:
    return tool.form is CallForm.CUSTOM and can.custom_tools


def _format(tool: FunctionTool) -> dict[str, Any] | None:
    if tool.grammar is None:
        return None
    return {"type": "grammar", "grammar": {"syntax": tool.grammar.syntax, "definition": tool.grammar.definition}}


def _emulated(tool: FunctionTool) -> dict[str, Any]:
    # A custom tool as a function with one string property, whose description contains the grammar.
    description = tool.grammar and _grammar_description(tool.grammar)
    text = {"type": "string", **_filled(description=description)}
    parameters = {
        "type": "object",
        "properties": {CUSTOM_INPUT: text},
        "required": [CUSTOM_INPUT],
        "additionalProperties": False,
    }
    return _filled(name=tool.name, description=tool.description, parameters=parameters)


def _grammar_description(grammar: Grammar) -> str:
    if grammar.syntax == "regex":
        return f"The whole text must match this regular expression: {grammar.definition}"
    return f"The text must match this Lark grammar:\n{grammar.definition}"


def _filled(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
