"""openai-agents with conversations: through its session, and with `conversation_id`."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents import (
    Agent,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI

from tests.support.api import Api, Caller
from tests.support.chunks import calls, chunk
from tests.support.conversations import items
from tests.support.upstream import Script, stream
from tests.support.web import WebProcess

UNTRACED = RunConfig(tracing_disabled=True)
QUESTION = "What is on the sofa?"
TURN = ["message", "reasoning", "message", "function_call", "function_call_output", "message"]
READ = ["system", "user", "assistant", "tool", "assistant", "user"]


@function_tool
def look(place: str) -> str:
    """Look at a place."""
    return f"a cat on the {place}"


@pytest.fixture
async def client(web: WebProcess, caller: Caller) -> AsyncIterator[AsyncOpenAI]:
    """The asynchronous SDK, which agents use."""
    async with AsyncOpenAI(base_url=f"{web.url}/v1", api_key=caller.secret, max_retries=0) as client:
        yield client


@pytest.fixture
def agent(client: AsyncOpenAI, script: Script) -> Agent[Any]:
    """An agent that calls a tool before it answers."""
    asked = calls(look='{"place": "sofa"}')
    script.then(stream(chunk(reasoning="Hm."), chunk(content="Let me see."), *asked)).say("A ", "cat.")
    model = OpenAIResponsesModel(model=script.model, openai_client=client)
    return Agent(name="Watcher", instructions="Watch.", model=model, tools=[look])


async def ask(agent: Agent[Any], question: str, *, streams: bool, **memory: Any) -> str:
    """Run the agent and return its final output."""
    if not streams:
        return str((await Runner.run(agent, question, run_config=UNTRACED, **memory)).final_output)
    result = Runner.run_streamed(agent, question, run_config=UNTRACED, **memory)
    raw = [event.data.type async for event in result.stream_events() if event.type == "raw_response_event"]
    assert "response.completed" in raw
    return str(result.final_output)


@pytest.mark.slow
@pytest.mark.parametrize("streams", [False, True])
async def test_a_session_remembers_tools_and_answers(
    agent: Agent[Any], client: AsyncOpenAI, api: Api, script: Script, streams: bool
) -> None:
    script.say("Bye.")
    session = OpenAIConversationsSession(openai_client=client)
    assert await ask(agent, QUESTION, streams=streams, session=session) == "A cat."
    assert await ask(agent, "Thanks.", streams=streams, session=session) == "Bye."
    assert [item["type"] for item in items(api, session.session_id)] == [*TURN, "message", "message"]
    assert [message["role"] for message in script.messages[2]] == READ


@pytest.mark.slow
async def test_items_of_a_session_can_be_popped_and_cleared(agent: Agent[Any], client: AsyncOpenAI, api: Api) -> None:
    session = OpenAIConversationsSession(openai_client=client)
    await ask(agent, QUESTION, streams=False, session=session)
    name = session.session_id
    popped: Any = await session.pop_item()
    assert popped["content"][0]["text"] == "A cat."
    assert [item["type"] for item in items(api, name)] == TURN[:-1]
    assert len(await session.get_items(limit=2)) == 2
    await session.clear_session()
    assert api.get(f"/conversations/{name}").status_code == 404


@pytest.mark.parametrize("streams", [False, True])
async def test_an_agent_keeps_its_history_in_a_conversation(
    agent: Agent[Any], client: AsyncOpenAI, api: Api, script: Script, streams: bool
) -> None:
    script.say("Bye.")
    name = (await client.conversations.create()).id
    assert await ask(agent, QUESTION, streams=streams, conversation_id=name) == "A cat."
    assert await ask(agent, "Thanks.", streams=streams, conversation_id=name) == "Bye."
    assert [item["type"] for item in items(api, name)] == [*TURN, "message", "message"]
    assert [message["role"] for message in script.messages[2]] == READ
