"""Unmodified agent frameworks: openai-agents and LangChain call tools, with and without streaming."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents import Agent, OpenAIResponsesModel, RunConfig, Runner, RunResult, RunResultStreaming, function_tool
from langchain_core.messages import AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic import SecretStr

from tests.support.api import Api, Caller
from tests.support.chunks import calls, chunk
from tests.support.upstream import Script, stream
from tests.support.web import WebProcess

UNTRACED = RunConfig(tracing_disabled=True)
QUESTION = "What is on the sofa?"


@pytest.fixture
def answering(script: Script) -> Script:
    """The upstream makes two parallel tool calls, and answers after their outputs."""
    asked = calls(look='{"place": "sofa"}', listen='{"place": "sofa"}')
    return script.then(stream(chunk(reasoning="Hm."), chunk(content="Let me see."), *asked)).say("A ", "cat.")


def outputs(script: Script) -> list[str]:
    """Return the tool outputs that the upstream received in the second turn."""
    return [message["content"] for message in script.messages[1] if message["role"] == "tool"]


# -- openai-agents -----------------------------------------------------------------------------------------------------


@function_tool
def look(place: str) -> str:
    """Look at a place."""
    return f"a cat on the {place}"


@function_tool
def listen(place: str) -> str:
    """Listen at a place."""
    return f"purring on the {place}"


@pytest.fixture
async def agent(web: WebProcess, caller: Caller, answering: Script) -> AsyncIterator[Agent[Any]]:
    """An agent with both tools."""
    async with AsyncOpenAI(base_url=f"{web.url}/v1", api_key=caller.secret, max_retries=0) as client:
        model = OpenAIResponsesModel(model=answering.model, openai_client=client)
        yield Agent(name="Watcher", instructions="Watch.", model=model, tools=[look, listen])


@pytest.mark.slow
async def test_an_openai_agent_calls_its_tools(agent: Agent[Any], answering: Script) -> None:
    result: RunResult = await Runner.run(agent, QUESTION, run_config=UNTRACED)
    assert result.final_output == "A cat."
    assert outputs(answering) == ["a cat on the sofa", "purring on the sofa"]


@pytest.mark.slow
async def test_an_openai_agent_streams(agent: Agent[Any], answering: Script) -> None:
    result: RunResultStreaming = Runner.run_streamed(agent, QUESTION, run_config=UNTRACED)
    raw = [event.data.type async for event in result.stream_events() if event.type == "raw_response_event"]
    assert result.final_output == "A cat."
    assert raw.count("response.completed") == 2
    assert outputs(answering) == ["a cat on the sofa", "purring on the sofa"]


@pytest.mark.slow
async def test_an_openai_agent_uses_previous_response_id(agent: Agent[Any], answering: Script) -> None:
    answering.say("Bye.")
    first = await Runner.run(agent, QUESTION, run_config=UNTRACED, auto_previous_response_id=True)
    second = await Runner.run(agent, "Thanks.", run_config=UNTRACED, previous_response_id=first.last_response_id)
    assert second.final_output == "Bye."
    assert [message["role"] for message in answering.messages[2]][-2:] == ["assistant", "user"]


@pytest.mark.slow
async def test_an_openai_agent_sends_its_history_itself(agent: Agent[Any], answering: Script) -> None:
    answering.say("Bye.")
    first = await Runner.run(agent, QUESTION, run_config=UNTRACED)
    thanks: Any = {"role": "user", "content": "Thanks."}
    second = await Runner.run(agent, [*first.to_input_list(), thanks], run_config=UNTRACED)
    assert second.final_output == "Bye."
    assert outputs(answering) == ["a cat on the sofa", "purring on the sofa"]


# -- LangChain ---------------------------------------------------------------------------------------------------------


@tool("look")
def chain_look(place: str) -> str:
    """Look at a place."""
    return f"a cat on the {place}"


@tool("listen")
def chain_listen(place: str) -> str:
    """Listen at a place."""
    return f"purring on the {place}"


TOOLS = {"look": chain_look, "listen": chain_listen}


def chat(api: Api, web: WebProcess, script: Script, **options: Any) -> Any:
    """LangChain's model with both tools."""
    secret = SecretStr(api.caller.secret)
    model = ChatOpenAI(
        model=script.model, base_url=f"{web.url}/v1", api_key=secret, use_responses_api=True, max_retries=0, **options
    )
    return model.bind_tools(list(TOOLS.values()))


def run_tools(message: Any) -> list[BaseMessage]:
    """Run the tool calls of a message and return the outputs."""
    return [TOOLS[call["name"]].invoke(call) for call in message.tool_calls]


@pytest.mark.parametrize("version", ["v0", "responses/v1", "v1"])
def test_a_langchain_model_calls_its_tools(api: Api, web: WebProcess, answering: Script, version: str) -> None:
    model = chat(api, web, answering, output_version=version)
    first = model.invoke([HumanMessage(QUESTION)])
    last = model.invoke([HumanMessage(QUESTION), first, *run_tools(first)])
    assert (last.text, last.usage_metadata["total_tokens"]) == ("A cat.", 10)
    assert outputs(answering) == ["a cat on the sofa", "purring on the sofa"]


def test_a_langchain_model_streams(api: Api, web: WebProcess, answering: Script) -> None:
    model = chat(api, web, answering)
    first = gathered(list(model.stream([HumanMessage(QUESTION)])))
    last = gathered(list(model.stream([HumanMessage(QUESTION), first, *run_tools(first)])))
    assert last.text == "A cat."
    assert outputs(answering) == ["a cat on the sofa", "purring on the sofa"]


def gathered(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    """Return the chunks of a stream as one message."""
    message = chunks[0]
    for piece in chunks[1:]:
        message += piece
    return message


def test_a_langchain_model_uses_previous_response_id(api: Api, web: WebProcess, answering: Script) -> None:
    model = chat(api, web, answering, use_previous_response_id=True)
    first = model.invoke([HumanMessage(QUESTION)])
    assert model.invoke([HumanMessage(QUESTION), first, *run_tools(first)]).text == "A cat."
    assert [message["content"] for message in answering.messages[1]].count(QUESTION) == 1
