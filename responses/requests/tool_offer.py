"""The tools of a request in three views: what the client sent, what is echoed, what the upstream sees."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from conversations.items import AdditionalTools, StoredItem, ToolSearchOutput
from kernel.errors import InvalidValue
from responses.engine.calls.client_tools import hidden_function, upstream_name
from responses.engine.constraints.grammar import definition_defect
from responses.engine.turn import CallForm, FunctionTool, Grammar
from responses.schema import AllowedTools, CreateResponse
from responses.schema.choices import label_of
from responses.schema.tools import grammars, grammars_of_items, loaded_tools

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
    """A tool that an upstream can be told of. `label` is how a choice points at it; `deferred`: a search finds it."""

    tool: FunctionTool
    label: tuple[str, str]
    deferred: bool = False
    shown: Shown


def public_tool_choice(body: CreateResponse) -> Any:
    """`tool_choice` as the response object echoes it."""
    match body.tool_choice:
        case None:
            return "auto"
        case str() as mode:
            return mode
        case AllowedTools(mode=mode, tools=tools):
            return {"type": "allowed_tools", "mode": mode, "tools": [one.model_dump() for one in tools]}
        case one:
            return one.model_dump()


async def check_grammars(body: CreateResponse) -> None:
    """Refuse grammars that are none. What input items bring is checked like the tools of the request themselves."""
    own = grammars(body.tools or (), param="tools")
    added = () if isinstance(body.input, str) else grammars_of_items(body.input)
    for grammar, where in (*own, *added):
        if (wrong := await definition_defect(grammar)) is not None:
            raise InvalidValue(f"Invalid {grammar.syntax} grammar: {wrong}.", param=where)


def available_tools(tools: Sequence[Shown], choice: Any, items: Iterable[StoredItem] = ()) -> list[ToolOffer]:
    """The tools that the model may hear of, with those that came to be known in the conversation.

    `allowed_tools` is a hard constraint: the others are not among them. A deferred tool is not there before a search
    has found it, unless the choice forces it.
    """
    found = {offer.tool.name: offer for offer in offers(tools)}
    for offer in offers(loaded(items)):
        found[offer.tool.name] = replace(offer, deferred=False)
    match choice:
        case {"type": "allowed_tools", "tools": list() as allowed}:
            labels = {_label(one) for one in allowed}
            return [offer for offer in found.values() if offer.label in labels]
        case dict():
            label = _label(choice)
            return [replace(offer, deferred=False) if offer.label == label else offer for offer in found.values()]
    return list(found.values())


def allows(choice: Any, kind: str) -> bool:
    """Whether a choice leaves the model a tool of this kind, which has no name: `allowed_tools` may leave it out."""
    if not isinstance(choice, dict) or choice["type"] != "allowed_tools":
        return True
    return any(one["type"] == kind for one in choice["tools"])


def visible_tools(known_tools: Iterable[ToolOffer]) -> tuple[FunctionTool, ...]:
    """The tools that the model gets to see."""
    return tuple(offer.tool for offer in known_tools if not offer.deferred)


def upstream_tool_choice(choice: Any, known_tools: Iterable[ToolOffer]) -> str | FunctionTool | None:
    """The choice as the upstream is told of it."""
    match choice:
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


def loaded(items: Iterable[StoredItem]) -> list[Shown]:
    """The tools that searches have found by now, or developers added."""
    return [
        tool.shown()
        for item in items
        if isinstance(item, ToolSearchOutput | AdditionalTools)
        for tool in loaded_tools(item, param=f"{item.type}.tools")
    ]


def offers(tools: Iterable[Shown]) -> Iterator[ToolOffer]:
    """Each tool that clients run. Those of the server's are offered by whoever runs them."""
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
            case {"type": "shell", "environment": {"type": "container_auto" | "container_reference"}}:
                continue
            case {"type": str() as kind} if kind in _HIDDEN:
                function = hidden_function(_HIDDEN[kind], description=_about(tool))
                yield ToolOffer(tool=function, label=_label(tool), shown=tool)


def _label(one: Shown) -> tuple[str, str]:
    return label_of(one["type"], one["server_label"] if one["type"] == "mcp" else one.get("name"))


def _named(tool: Shown, *, namespace: str | None = None, about: str = "") -> ToolOffer:
    """A function or a custom tool. What there is to know of its namespace and of its answers stands in its words."""
    words = [tool["description"] or ""]
    if namespace is not None:
        words.append(f"It belongs to {namespace}: {about}")
    if tool.get("output_schema") is not None:
        words.append(f"It answers with JSON of this schema: {orjson.dumps(tool['output_schema']).decode()}")
    function = FunctionTool(
        name=upstream_name(namespace, tool["name"]),
        description="\n".join(word for word in words if word) or tool["description"],
        parameters=tool.get("parameters"),
        strict=tool.get("strict"),
        form=CallForm.CUSTOM if tool["type"] == "custom" else CallForm.FUNCTION,
        label=tool["name"],
        namespace=namespace,
        grammar=_grammar(tool.get("format")),
        asynchronous=bool(tool.get("async")),
    )
    shown = (
        tool if namespace is None else {"type": "namespace", "name": namespace, "description": about, "tools": [tool]}
    )
    return ToolOffer(tool=function, label=_label(tool), deferred=bool(tool.get("defer_loading")), shown=shown)


def _grammar(given: Shown | None) -> Grammar | None:
    if given is None or given["type"] != "grammar":
        return None
    return Grammar(syntax=given["syntax"], definition=given["definition"])


def _about(tool: Shown) -> str:
    """What a request says of a tool that has no description."""
    match tool:
        case {"type": "computer_use_preview"}:
            size = f"{tool['display_width']} by {tool['display_height']} pixels"
            return f"The screen has {size}; the environment is {tool['environment']}."
        case {"type": "shell", "environment": {"skills": list() as skills}} if skills:
            lines = [f"- {skill['name']} in {skill['path']}: {skill['description']}" for skill in skills]
            return "\n".join(["Folders that tell how to do something; read them before you do it:", *lines])
    return ""
