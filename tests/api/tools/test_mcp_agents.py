"""The unmodified openai-agents SDK with its hosted MCP tool, streamed and not streamed, including approvals."""

from typing import Any

import pytest
from agents import Agent, HostedMCPTool, Runner, RunResult, set_tracing_disabled
from agents.models.openai_responses import OpenAIResponsesModel
from openai import AsyncOpenAI

from tests.support.api import Api
from tests.support.mcp_requests import calling, tool
from tests.support.mcp_servers import McpServer
from tests.support.upstream import Script
from tests.support.web import WebProcess

set_tracing_disabled(True)


async def run(agent: Agent[Any], streamed: bool) -> Any:
    """Run the agent, streamed or not, and return its result."""
    if not streamed:
        return await Runner.run(agent, "2+3?")
    result = Runner.run_streamed(agent, "2+3?")
    async for _ in result.stream_events():
        pass
    return result


def agent_of(web: WebProcess, api: Api, script: Script, hosted: HostedMCPTool) -> Agent[Any]:
    """Return an agent that uses this platform."""
    client = AsyncOpenAI(base_url=f"{web.url}/v1", api_key=api.caller.secret, max_retries=0)
    return Agent(name="sums", model=OpenAIResponsesModel(script.model, client), tools=[hosted])


def kinds(result: RunResult) -> list[str]:
    """Return the types of the items the agent produced."""
    return [item.type for item in result.new_items]


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_agent_calls_the_tools_of_a_server(
    reaching_web: WebProcess, reaching: Api, script: Script, served: McpServer, *, streamed: bool
) -> None:
    script.call(box__add='{"a":2,"b":3}').say("It is 5.")
    hosted = HostedMCPTool(tool_config=tool(served))  # type: ignore[arg-type] # the shape of the wire
    result = await run(agent_of(reaching_web, reaching, script, hosted), streamed)
    assert (result.final_output, served.names()) == ("It is 5.", ["add"])
    assert kinds(result) == ["mcp_list_tools_item", "tool_call_item", "message_output_item"]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("approve", [False, True])
async def test_an_agent_can_approve_a_call(
    reaching_web: WebProcess, reaching: Api, script: Script, served: McpServer, *, approve: bool, streamed: bool
) -> None:
    script.then(calling(("box__add", '{"a":2,"b":3}'))).say("As you say.")
    asked = []

    def answer(request: Any) -> Any:
        asked.append(request.data.name)
        return {"approve": True} if approve else {"approve": False, "reason": "Too dear."}

    config: Any = tool(served, require_approval="always")
    hosted = HostedMCPTool(tool_config=config, on_approval_request=answer)
    result = await run(agent_of(reaching_web, reaching, script, hosted), streamed)
    assert (result.final_output, asked) == ("As you say.", ["add"])
    assert served.names() == (["add"] if approve else [])
    tool_output = script.messages[1][-1]["content"]
    assert tool_output == ("5" if approve else "The user did not approve this call. The reason: Too dear.")
