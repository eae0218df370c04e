"""The tools of a request in three views: what the client sent, what is echoed, what the upstream sees."""

from typing import Any

from responses.engine.turns import FunctionTool
from responses.schema import AllowedTools, CreateResponse, FunctionChoice, FunctionToolParam


def shown_tool(tool: FunctionToolParam) -> dict[str, Any]:
    """A tool as the response object echoes it."""
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }


def shown_choice(body: CreateResponse) -> Any:
    """`tool_choice` as the response object echoes it."""
    match body.tool_choice:
        case FunctionChoice(name=name):
            return {"type": "function", "name": name}
        case AllowedTools(mode=mode, tools=tools):
            named = [{"type": "function", "name": tool.name} for tool in tools]
            return {"type": "allowed_tools", "mode": mode, "tools": named}
    return body.tool_choice or "auto"


def offered(tools: list[dict[str, Any]], choice: Any) -> tuple[FunctionTool, ...]:
    """The tools that the model gets to see. `allowed_tools` is a hard constraint: it never hears of the others."""
    if isinstance(choice, dict) and choice["type"] == "allowed_tools":
        allowed = {tool["name"] for tool in choice["tools"]}
        tools = [tool for tool in tools if tool["name"] in allowed]
    return tuple(_function(tool) for tool in tools)


def _function(tool: dict[str, Any]) -> FunctionTool:
    return FunctionTool(
        name=tool["name"], description=tool["description"], parameters=tool["parameters"], strict=tool["strict"]
    )


def forced(choice: Any) -> str | FunctionTool | None:
    """The choice as the upstream is told of it."""
    match choice:
        case {"type": "allowed_tools", "mode": str() as mode}:
            return mode
        case {"name": str() as name}:
            return FunctionTool(name=name)
        case str():
            return choice
    return None
