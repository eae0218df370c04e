"""Typical use of the OpenAI Agents SDK. Runs a scenario and prints its result as JSON.

OPENAI_BASE_URL=… OPENAI_API_KEY=… python client.py <scenario> '{"model": …}'
"""

import asyncio
import json
import sys
from typing import Any

from agents import Agent, HostedMCPTool, ModelSettings, Runner, function_tool, set_tracing_disabled
from openai.types.shared import Reasoning
from pydantic import BaseModel

OPTIONS = json.loads(sys.argv[2])


class Cat(BaseModel):
    """A cat."""

    name: str
    lives: int


@function_tool
def look(place: str) -> str:
    """Look at a place."""
    return f"a cat on the {place}"


def agent(**options: Any) -> Agent[Any]:
    """Return an agent."""
    return Agent(name="Watcher", instructions="Watch.", model=OPTIONS["model"], **options)


async def pieces(watcher: Agent[Any], prompt: str) -> list[str]:
    """Return the pieces of a streamed answer."""
    raw = [
        event.data
        async for event in Runner.run_streamed(watcher, prompt).stream_events()
        if event.type.startswith("raw")
    ]
    return [event.delta for event in raw if event.type == "response.output_text.delta"]


async def text() -> Any:
    return {"text": (await Runner.run(agent(), "Hi")).final_output}


async def streaming() -> Any:
    found = await pieces(agent(), "Hi")
    return {"pieces": found, "text": "".join(found)}


async def tools() -> Any:
    return {"text": (await Runner.run(agent(tools=[look]), "What is on the sofa?")).final_output}


async def structured() -> Any:
    return {"object": (await Runner.run(agent(output_type=Cat), "A cat!")).final_output.model_dump()}


async def chain() -> Any:
    first = await Runner.run(agent(), "I am Tom.")
    second = await Runner.run(agent(), "Who am I?", previous_response_id=first.last_response_id)
    return {"text": second.final_output}


async def reasoning() -> Any:
    settings = ModelSettings(reasoning=Reasoning(effort="low", summary="auto"))
    answer = await Runner.run(agent(model_settings=settings), "Hi")
    thoughts = [item.raw_item for item in answer.new_items if item.type == "reasoning_item"]
    return {"text": answer.final_output, "reasoning": "\n".join(part.text for one in thoughts for part in one.summary)}


async def mcp() -> Any:
    box: Any = {"type": "mcp", "server_label": "box", "server_url": OPTIONS["mcp"], "require_approval": "never"}
    adder = agent(tools=[HostedMCPTool(tool_config=box)])
    return {"text": (await Runner.run(adder, "2+3?")).final_output, "pieces": await pieces(adder, "2+3?")}


if __name__ == "__main__":
    set_tracing_disabled(disabled=True)
    sys.stdout.write(json.dumps(asyncio.run(globals()[sys.argv[1]]())))
