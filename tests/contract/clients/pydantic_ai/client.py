"""Typical use of pydantic-ai. Runs a scenario and prints its result as JSON.

OPENAI_BASE_URL=… OPENAI_API_KEY=… python client.py <scenario> '{"model": …}'
"""

import asyncio
import json
import sys
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.capabilities import NativeTool
from pydantic_ai.messages import ThinkingPart
from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.native_tools import MCPServerTool

OPTIONS = json.loads(sys.argv[2])
MODEL = OpenAIResponsesModel(OPTIONS["model"])


class Cat(BaseModel):
    """A cat."""

    name: str
    lives: int


def look(place: str) -> str:
    """Look at a place."""
    return f"a cat on the {place}"


async def pieces(agent: Agent[Any, Any], prompt: str) -> list[str]:
    """Return the pieces of a streamed answer."""
    async with agent.run_stream(prompt) as live:
        return [piece async for piece in live.stream_text(delta=True, debounce_by=None)]


async def text() -> Any:
    return {"text": (await Agent(MODEL).run("Hi")).output}


async def streaming() -> Any:
    found = await pieces(Agent(MODEL), "Hi")
    return {"pieces": found, "text": "".join(found)}


async def tools() -> Any:
    return {"text": (await Agent(MODEL, tools=[look]).run("What is on the sofa?")).output}


async def structured() -> Any:
    answer = await Agent(MODEL, output_type=NativeOutput(Cat)).run("A cat!")
    return {"object": answer.output.model_dump()}


async def chain() -> Any:
    agent = Agent(MODEL, model_settings=OpenAIResponsesModelSettings(openai_previous_response_id="auto"))
    first = await agent.run("I am Tom.")
    return {"text": (await agent.run("Who am I?", message_history=first.all_messages())).output}


async def reasoning() -> Any:
    settings = OpenAIResponsesModelSettings(openai_reasoning_summary="auto", openai_reasoning_effort="low")
    answer = await Agent(MODEL, model_settings=settings).run("Hi")
    parts = [part for message in answer.all_messages() for part in message.parts]
    return {
        "text": answer.output,
        "reasoning": "\n".join(one.content for one in parts if isinstance(one, ThinkingPart)),
    }


async def mcp() -> Any:
    agent = Agent(MODEL, capabilities=[NativeTool(MCPServerTool(id="box", url=OPTIONS["mcp"]))])
    return {"text": (await agent.run("2+3?")).output, "pieces": await pieces(agent, "2+3?")}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(globals()[sys.argv[1]]())))
