"""`tools` as clients send them: as dumped by the SDK, and as echoed in responses."""

from typing import Any

import pytest
from openai.types.responses import (
    ApplyPatchTool,
    ComputerTool,
    ComputerUsePreviewTool,
    CustomTool,
    FunctionShellTool,
    FunctionTool,
    NamespaceTool,
    ToolSearchTool,
)
from openai.types.responses.local_environment import LocalEnvironment
from openai.types.responses.tool import LocalShell
from openai.types.shared.custom_tool_input_format import Grammar
from pydantic import BaseModel

from engine.calls.client_tools import MAX_NAME, upstream_name
from responses.schema import parse_create

LOOK = FunctionTool(type="function", name="look", parameters=None, strict=None)
WRITE = CustomTool(
    type="custom", name="write", format=Grammar(type="grammar", syntax="regex", definition="a+"), **{"async": True}
)
LATE = FunctionTool(type="function", name="late", parameters={"type": "object"}, strict=True, defer_loading=True)
SDK_TOOLS: list[BaseModel] = [
    LOOK,
    WRITE,
    LATE,
    NamespaceTool.model_validate(
        {"type": "namespace", "name": "crm", "description": "", "tools": [tool.to_dict() for tool in (LOOK, WRITE)]}
    ),
    ToolSearchTool(type="tool_search"),
    ComputerTool(type="computer"),
    FunctionShellTool(type="shell", environment=LocalEnvironment(type="local")),
    FunctionShellTool(type="shell"),
    LocalShell(type="local_shell"),
    ApplyPatchTool(type="apply_patch"),
    ComputerUsePreviewTool(type="computer_use_preview", display_width=1, display_height=1, environment="mac"),
]


def shown(*tools: Any) -> list[dict[str, Any]]:
    """Return the echo of these tools in a valid request."""
    searches = [] if any(tool["type"] == "tool_search" for tool in tools) else [{"type": "tool_search"}]
    late = LATE.model_copy(update={"name": "later"}).model_dump()
    body = parse_create({"model": "m", "input": "Hi", "tools": [*tools, *searches, late]})
    return [tool.shown() for tool in body.tools or ()][: len(tools)]


@pytest.mark.parametrize("by_alias", [True, False])
@pytest.mark.parametrize("tool", SDK_TOOLS, ids=lambda tool: type(tool).__name__)
def test_sdk_tools_with_null_fields_are_accepted(tool: BaseModel, by_alias: bool) -> None:
    dumped = tool.model_dump(by_alias=by_alias)
    (echo,) = shown(dumped)
    kept = tool.model_dump(by_alias=True, exclude_none=True, exclude={"tools"})
    assert echo.items() >= kept.items()
    type(tool).model_validate(echo)


@pytest.mark.parametrize("tool", SDK_TOOLS, ids=lambda tool: type(tool).__name__)
def test_an_echoed_tool_is_accepted_as_input_unchanged(tool: BaseModel) -> None:
    (echo,) = shown(tool.model_dump())
    assert shown(echo) == [echo]


@pytest.mark.parametrize(
    ("namespace", "name"), [(None, "a" * MAX_NAME), ("a", "b"), ("n" * 40, "f" * 40), ("n" * 64, "f" * 64)]
)
def test_upstream_names_of_tools_have_at_most_64_allowed_characters(namespace: str | None, name: str) -> None:
    assert len(upstream_name(namespace, name)) <= MAX_NAME
    assert upstream_name(namespace, name) == upstream_name(namespace, name)
    assert upstream_name(namespace, name) != upstream_name(namespace, name[:-1] + "x")
