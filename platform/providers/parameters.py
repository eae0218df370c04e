"""Sampling parameters, tools and tool choice of a turn as parameters of upstream requests."""

from typing import Any

from engine.converter.calls import CUSTOM_INPUT
from engine.turn import CallForm, FunctionTool, Grammar, Sampling
from tenants.capabilities import Capabilities


def common_parameters(sampling: Sampling) -> dict[str, Any]:
    """Return the parameters that chat completions and the Responses API have in common."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "service_tier": sampling.service_tier,
        "safety_identifier": sampling.safety_identifier,
        "prompt_cache_key": sampling.prompt_cache_key,
        "prompt_cache_options": sampling.prompt_cache_options,
        "prompt_cache_retention": sampling.prompt_cache_retention,
        "user": sampling.user,
        **(sampling.extra or {}),
    }


def tool_parameters(sampling: Sampling, can: Capabilities) -> dict[str, Any]:
    """Return the tool parameters of a chat completion."""
    body: dict[str, Any] = {"tools": [_tool(tool, can) for tool in sampling.tools]}
    choice = sampling.tool_choice
    if choice not in (None, "auto", "none") and not can.forced_tool_choice:
        # The upstream would reject it. The instructions ask for the call instead, and the loop enforces it.
        choice = "auto"
    if isinstance(choice, FunctionTool):
        kind = "custom" if _is_custom(choice, can) else "function"
        body["tool_choice"] = {"type": kind, kind: {"name": choice.name}}
    elif choice is not None:
        body["tool_choice"] = choice
    return body | filled(parallel_tool_calls=sampling.parallel_tool_calls)


def _tool(tool: FunctionTool, can: Capabilities) -> dict[str, Any]:
    parameters, grammar = tool.parameters, tool.grammar
    if _is_custom(tool, can):
        form: dict[str, Any] | None = None
        if grammar is not None:
            form = {"type": "grammar", "grammar": {"syntax": grammar.syntax, "definition": grammar.definition}}
        return {"type": "custom", "custom": filled(name=tool.name, description=tool.description, format=form)}
    if tool.form is CallForm.CUSTOM:
        # A function with one string property, whose description contains the grammar.
        description = grammar and _grammar_description(grammar)
        parameters = {
            "type": "object",
            "properties": {CUSTOM_INPUT: {"type": "string", **filled(description=description)}},
            "required": [CUSTOM_INPUT],
            "additionalProperties": False,
        }
    strict = None if tool.form is CallForm.CUSTOM else tool.strict
    function = filled(name=tool.name, description=tool.description, parameters=parameters, strict=strict)
    return {"type": "function", "function": function}


def _is_custom(tool: FunctionTool, can: Capabilities) -> bool:
    return tool.form is CallForm.CUSTOM and can.custom_tools


def _grammar_description(grammar: Grammar) -> str:
    if grammar.syntax == "regex":
        return f"The whole text must match this regular expression: {grammar.definition}"
    return f"The text must match this Lark grammar:\n{grammar.definition}"


def filled(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}
