"""The tools of a request in three forms: of the request, of the response object, and of the upstream's API."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from conversations.items import AdditionalTools, StoredItem, ToolSearchOutput
from core.errors import InvalidValue
from engine.calls.client_tools import hidden_function, upstream_name
from engine.constraints.grammar import definition_defect
from engine.turn import CallForm, FunctionTool, Grammar
from responses.schema import AllowedTools, CreateResponse
from responses.schema.tools import grammars, grammars_of_items, label_of, loaded_tools
from skills.schema import instructions

Shown = dict[str, Any]
_HIDDEN = {
    "computer": CallForm.COMPUTER,
    "computer_use_preview": CallForm.COMPUTER_PREVIEW,
    "shell": CallForm.SHELL,
    "local_shell": CallForm.LOCAL_SHELL,
    "apply_patch": CallForm.APPLY_PATCH,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOffer:
    """A tool that can be offered to an upstream.

    `label` is the type and name by which a tool choice refers to the tool. A `deferred` tool is offered only after a
    tool search has found it. `shown` is the tool in the form of the response object.
    """

    tool: FunctionTool
    label: tuple[str, str]
    deferred: bool = False
    shown: Shown


def public_tool_choice(body: CreateResponse) -> Any:
    """Return `tool_choice` as the response object contains it."""
    match body.tool_choice:
        case None:
            return "auto"
        case str() as mode:
            return mode
        case AllowedTools(mode=mode, tools=tools):
            return {"type": "allowed_tools", "mode": mode, "tools": [tool.model_dump() for tool in tools]}
        case forced:
            return forced.model_dump()


async def check_grammars(body: CreateResponse) -> None:
    """Raise `InvalidValue` for an invalid grammar in the tools of the request or in the tools of its input items."""
    own = grammars(body.tools or (), param="tools")
    added = () if isinstance(body.input, str) else grammars_of_items(body.input)
    for grammar, where in (*own, *added):
        if (wrong := await definition_defect(grammar)) is not None:
            raise InvalidValue(f"Invalid {grammar.syntax} grammar: {wrong}.", param=where)


def available_tools(tools: Sequence[Shown], choice: Any, items: Iterable[StoredItem] = ()) -> list[ToolOffer]:
    """Return the tools that may be offered to the model, including tools that items of its context have loaded.

    With `allowed_tools`, all other tools are left out. A deferred tool stays deferred until a search has loaded it,
    unless the tool choice forces the tool.
    """
    found = {offer.tool.name: offer for offer in client_tool_offers(tools)}
    # The tools that tool searches have found, or that developers have added.
    loaded = [
        tool.shown()
        for item in items
        if isinstance(item, ToolSearchOutput | AdditionalTools)
        for tool in loaded_tools(item, param=f"{item.type}.tools")
    ]
    for offer in client_tool_offers(loaded):
        # A loaded tool replaces its deferred definition in the request.
        found[offer.tool.name] = replace(offer, deferred=False)
    match choice:
        case {"type": "allowed_tools", "tools": list() as allowed}:
            labels = {_label(tool) for tool in allowed}
            return [offer for offer in found.values() if offer.label in labels]
        case dict():
            label = _label(choice)
            return [replace(offer, deferred=False) if offer.label == label else offer for offer in found.values()]
    return list(found.values())


def allows(choice: Any, kind: str) -> bool:
    """Return true if a tool choice permits a tool of this type without a name. `allowed_tools` may exclude it."""
    if not isinstance(choice, dict) or choice["type"] != "allowed_tools":
        return True
    return any(tool["type"] == kind for tool in choice["tools"])


def visible_tools(known_tools: Iterable[ToolOffer]) -> tuple[FunctionTool, ...]:
    """Return the tools that the model receives now."""
    return tuple(offer.tool for offer in known_tools if not offer.deferred)


def upstream_tool_choice(choice: Any, known_tools: Iterable[ToolOffer]) -> str | FunctionTool | None:
    """Return the tool choice as the upstream receives it."""
    match choice:
        # The other tools were already left out, so only the mode is needed.
        case {"type": "allowed_tools", "mode": str() as mode}:
            return mode
        case {"type": "mcp", "name": str()}:
            return FunctionTool(name=upstream_name(choice["server_label"], choice["name"]), form=CallForm.HOSTED)
        case {"type": str() as kind}:
            hosted = FunctionTool(name=kind, form=CallForm.HOSTED)
            return next((offer.tool for offer in known_tools if offer.label == _label(choice)), hosted)
        case str():
            return choice
    return None


def client_tool_offers(tools: Iterable[Shown]) -> Iterator[ToolOffer]:
    """Yield an offer for each client tool. Hosted tools are offered by their toolboxes."""
    for tool in tools:
        match tool:
            case {"type": "function" | "custom"}:
                yield _named(tool)
            case {"type": "namespace"}:
                for inner in tool["tools"]:
                    yield _named(inner, namespace=tool["name"], about=tool["description"])
            case {"type": "tool_search", "execution": "client"}:
                search = hidden_function(
                    CallForm.TOOL_SEARCH, description=tool["description"] or "", parameters=tool["parameters"]
                )
                yield ToolOffer(tool=search, label=("tool_search", ""), shown=tool)
            # The server runs this shell itself, in a container.
            case {"type": "shell", "environment": {"type": "container_auto" | "container_reference"}}:
                continue
            case {"type": str() as kind} if kind in _HIDDEN:
                function = hidden_function(_HIDDEN[kind], description=_about(tool))
                yield ToolOffer(tool=function, label=_label(tool), shown=tool)


def _label(tool: Shown) -> tuple[str, str]:
    return label_of(tool["type"], tool["server_label"] if tool["type"] == "mcp" else tool.get("name"))


def _named(tool: Shown, *, namespace: str | None = None, about: str = "") -> ToolOffer:
    # Upstreams support neither namespaces nor output schemas, so the description of the tool contains both.
    sentences = [tool.get("description") or ""]
    if namespace is not None:
        sentences.append(f"It belongs to {namespace}: {about}")
    if tool.get("output_schema") is not None:
        sentences.append(f"It returns JSON with this schema: {orjson.dumps(tool['output_schema']).decode()}")
    given, grammar = tool.get("format"), None
    if given is not None and given["type"] == "grammar":
        grammar = Grammar(syntax=given["syntax"], definition=given["definition"])
    function = FunctionTool(
        name=upstream_name(namespace, tool["name"]),
        description="\n".join(sentence for sentence in sentences if sentence) or tool.get("description"),
        parameters=tool.get("parameters"),
        strict=tool.get("strict"),
        form=CallForm.CUSTOM if tool["type"] == "custom" else CallForm.FUNCTION,
        label=tool["name"],
        # In OpenAI's API, calls of a deferred function outside of a namespace have the function's name as namespace.
        namespace=tool["name"] if namespace is None and _is_deferred_function(tool) else namespace,
        grammar=grammar,
        asynchronous=bool(tool.get("async")),
    )
    shown = (
        tool if namespace is None else {"type": "namespace", "name": namespace, "description": about, "tools": [tool]}
    )
    return ToolOffer(tool=function, label=_label(tool), deferred=bool(tool.get("defer_loading")), shown=shown)


def _is_deferred_function(tool: Shown) -> bool:
    return tool["type"] == "function" and bool(tool.get("defer_loading"))


def _about(tool: Shown) -> str:
    """Return a description for a tool that has none."""
    match tool:
        case {"type": "computer_use_preview"}:
            size = f"{tool['display_width']} by {tool['display_height']} pixels"
            return f"The screen is {size}; the environment is {tool['environment']}."
        case {"type": "shell", "environment": {"skills": list() as skills}} if skills:
            return instructions(skills)
    return ""
