"""A hosted tool added as `docs/howto/add-a-tool.md` describes: a folder, here this module, and its registration."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Literal

import httpx2
import pytest
from asgiref.sync import sync_to_async
from typing_extensions import override

from engine.calls.outcomes import ToolResult, parse_object
from engine.calls.toolbox import HostedTool, hosted_function
from engine.turn import Call, FunctionTool
from providers.clients import close_clients
from responses.models import Response, ToolCall
from responses.schema import add_tools
from responses.schema.tools import TOOLS, ToolParam
from responses.tools import registry
from responses.tools.plugin import ToolPlugin, ToolRequest
from server.asgi import application
from tenants import scope
from tenants.models import Role
from tests.admin.rows import member, page_url, text
from tests.support.api import Caller
from tests.support.upstream import Script
from tests.support.waiting import PATIENCE

ROLL = "sample_dice__roll"


class DiceParam(ToolParam):
    """Schema of the tool in a request."""

    type: Literal["sample_dice"]
    sides: Literal[6, 20] = 6

    @override
    def upstream_names(self) -> list[tuple[str, str]]:
        return [(ROLL, "")]


class Dice(HostedTool):
    """The tool in one run. Its items are MCP calls, as for every tool that has no type of its own."""

    kind = "sample_dice"
    names = (ROLL,)

    def __init__(self, sides: int) -> None:
        self._sides = sides

    @override
    def functions(self) -> tuple[FunctionTool, ...]:
        return (hosted_function(ROLL, f"Rolls dice with {self._sides} sides.", count={"type": "integer"}),)

    @override
    async def call(self, call: Call) -> ToolResult:
        count = (parse_object(call.arguments) or {}).get("count")
        if not isinstance(count, int):
            return ToolResult(output="error: 'count' must be a number", error="invalid_arguments")
        return ToolResult(output=" ".join([str(self._sides)] * count))


class DicePlugin(ToolPlugin):
    """The plug-in: how a request enables the tool."""

    types = ("sample_dice",)
    params = (DiceParam,)

    @override
    def tools(self, request: ToolRequest, resolved: None, earlier: Sequence[HostedTool]) -> list[HostedTool]:
        return [Dice(tool["sides"]) for tool in request.offered(self.types)]


@pytest.fixture
def dice() -> Iterator[None]:
    """Register the tool for one test."""
    plugin = DicePlugin()
    registry.register(plugin)
    yield
    registry.PLUGINS.remove(plugin)
    del TOOLS["sample_dice"]
    add_tools()


@pytest.fixture
async def create(caller: Caller) -> AsyncIterator[Any]:
    """Create responses in this process, where the tool is registered."""

    async def send(**body: Any) -> httpx2.Response:
        transport = httpx2.ASGITransport(app=application)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            headers = {"Authorization": f"Bearer {caller.secret}"}
            return await client.post("/v1/responses", json=body, headers=headers, timeout=PATIENCE)

    yield send
    await close_clients()


def console_page(caller: Caller, response_id: str) -> str:
    """Return the transcript as the lead of the team sees it."""
    with scope.team(caller.team.pk):
        response = Response.objects.get(pk=response_id)
        assert [(row.kind, row.status) for row in ToolCall.objects.filter(response=response)] == [
            ("sample_dice", "completed")
        ]
    return text(member(caller.team, Role.TEAM_LEAD).get(page_url(response)))


@pytest.mark.slow
async def test_a_registered_tool_is_called_stored_remembered_and_shown(
    dice: None, create: Any, caller: Caller, script: Script
) -> None:
    tools = [{"type": "sample_dice", "sides": 20}]
    script.call(**{ROLL: '{"count":2}'}).say("Two twenties.").say("I rolled two.")
    answer = await create(model=script.model, input="Roll.", tools=tools, tool_choice={"type": "sample_dice"})
    response = answer.json()
    assert answer.status_code == 200, response
    assert response["tools"] == tools
    call, _ = response["output"]
    expected = {"type": "mcp_call", "server_label": "sample_dice", "name": "roll", "arguments": '{"count":2}'}
    assert {name: call[name] for name in expected} == expected
    assert (call["status"], call["output"], call["error"]) == ("completed", "20 20", None)
    # The model was offered the function, forced to call it, and read its output.
    first, second = script.bodies
    assert [tool["function"]["description"] for tool in first["tools"]] == ["Rolls dice with 20 sides."]
    assert first["tool_choice"] == {"type": "function", "function": {"name": ROLL}}
    assert second["messages"][-1] == {"role": "tool", "tool_call_id": "call_sample_dice__roll", "content": "20 20"}
    # A later response reads the call from the stored item.
    later = await create(model=script.model, input="What did you roll?", previous_response_id=response["id"])
    assert later.status_code == 200
    _, asked, output, said, _ = script.messages[-1]
    assert asked["tool_calls"][0]["function"] == {"name": ROLL, "arguments": '{"count":2}'}
    assert (output["content"], said["content"]) == ("20 20", "Two twenties.")
    page = await sync_to_async(console_page)(caller, response["id"])
    for shown in ("<b>roll</b>", "sample_dice", "Arguments", "20 20", "completed"):
        assert shown in page


async def test_a_registered_tool_is_validated_and_its_failures_are_results(
    dice: None, create: Any, script: Script
) -> None:
    wrong = await create(model=script.model, input="Roll.", tools=[{"type": "sample_dice", "sides": 7}])
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "tools[0].sides")
    script.call(**{ROLL: '{"count":"two"}'}).say("Sorry.")
    answer = await create(model=script.model, input="Roll.", tools=[{"type": "sample_dice"}])
    call, _ = answer.json()["output"]
    error = {"type": "mcp_tool_execution_error", "content": "error: 'count' must be a number"}
    assert (call["status"], call["output"], call["error"]) == ("failed", None, error)


@pytest.mark.slow
async def test_an_unregistered_tool_is_rejected(create: Any, script: Script) -> None:
    answer = await create(model=script.model, input="Roll.", tools=[{"type": "sample_dice"}])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools[0].type")
