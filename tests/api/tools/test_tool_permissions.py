"""The hosted tools that teams and keys are allowed to use."""

from typing import Any

import pytest

from tenants import scope
from tenants.models import Team
from tests.support.api import Api, MakeApi, error

TOOLS: dict[str, dict[str, Any]] = {
    "web_search": {"type": "web_search"},
    "mcp": {"type": "mcp", "server_label": "box", "server_url": "https://box.example/mcp"},
    "file_search": {"type": "file_search", "vector_store_ids": ["vs_1"]},
    "code_interpreter": {"type": "code_interpreter", "container": {"type": "auto"}},
    "code_interpreter of vLLM": {"type": "mcp", "server_label": "code_interpreter"},
    "shell": {"type": "shell", "environment": {"type": "container_auto"}},
}


def other_than(kind: str) -> list[str]:
    """Return an allowed tool other than the given one."""
    return ["web_search"] if kind == "mcp" else ["mcp"]


@pytest.mark.parametrize("kind", list(TOOLS))
@pytest.mark.parametrize("nothing", [False, True])
def test_a_key_without_the_tool_is_refused(make_api: MakeApi, kind: str, *, nothing: bool) -> None:
    api = make_api(tools=[] if nothing else other_than(kind))
    answer = api.post("/responses", {"model": "m", "input": "Hi", "tools": [TOOLS[kind]]})
    assert error(answer) == (403, "tools[0].type", "tool_not_allowed")
    assert answer.json()["error"]["type"] == "permission_error"


@pytest.mark.parametrize("kind", list(TOOLS))
def test_a_team_without_the_tool_is_refused(make_api: MakeApi, kind: str) -> None:
    api = make_api()
    with scope.every_team():
        Team.objects.filter(pk=api.caller.team.pk).update(tools=other_than(kind))
    client_tool = {"type": "function", "name": "f", "parameters": None, "strict": None}
    answer = api.post("/responses", {"model": "m", "input": "Hi", "tools": [client_tool, TOOLS[kind]]})
    assert error(answer) == (403, "tools[1].type", "tool_not_allowed")


def test_containers_require_permission_for_a_tool_that_uses_them(make_api: MakeApi) -> None:
    for path in ("/containers", "/containers/cntr_1/files"):
        answer = make_api(tools=["web_search"]).post(path, {"name": "work"})
        assert error(answer) == (403, None, "tool_not_allowed")
        assert error(make_api(tools=["shell"]).post(path, {"nothing": 1}))[0] == 400


def test_a_key_with_the_tool_passes_the_check(make_api: MakeApi) -> None:
    api: Api = make_api(tools=["web_search"])
    tool = TOOLS["web_search"]
    answer = api.post("/responses", {"model": "m", "input": "Hi", "tools": [tool], "tool_choice": tool})
    assert error(answer) == (400, "tools[0].type", "unsupported_value")
