"""Typical use of Microsoft's Agent Framework. Runs a scenario and prints its result as JSON.

OPENAI_BASE_URL=… OPENAI_API_KEY=… python client.py <scenario> '{"model": …}'
"""

import asyncio
import json
import sys
from typing import Any

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient
from pydantic import BaseModel

OPTIONS = json.loads(sys.argv[2])


class Cat(BaseModel):
    """A cat."""

    name: str
    lives: int


def look(place: str) -> str:
    """Look at a place."""
    return f"a cat on the {place}"


def agent(**options: Any) -> Agent[Any]:
    """Return an agent."""
    return Agent(client=OpenAIChatClient(model=OPTIONS["model"]), instructions="Watch.", **options)


async def pieces(watcher: Agent[Any], prompt: str) -> list[str]:
    """Return the pieces of a streamed answer. Its last update repeats the whole text."""
    parts = [part async for update in watcher.run(prompt, stream=True) for part in update.contents]
    return [part.text for part in parts if part.type == "text" and part.text and part.merge_mode == "append"]


async def text() -> Any:
    return {"text": (await agent().run("Hi")).text}


async def streaming() -> Any:
    found = await pieces(agent(), "Hi")
    return {"pieces": found, "text": "".join(found)}


async def tools() -> Any:
    # The text of the answer would be that of all its messages.
    answer = await agent(tools=[look]).run("What is on the sofa?")
    return {"text": answer.messages[-1].text}


async def structured() -> Any:
    answer = await agent().run("A cat!", options={"response_format": Cat})
    return {"object": answer.value.model_dump()}


async def chain() -> Any:
    watcher = agent()
    session = watcher.create_session()
    await watcher.run("I am Tom.", session=session)
    return {"text": (await watcher.run("Who am I?", session=session)).text}


async def reasoning() -> Any:
    answer = await agent().run("Hi", options={"reasoning": {"effort": "low", "summary": "auto"}})
    thoughts = [part.text for message in answer.messages for part in message.contents if part.type == "text_reasoning"]
    return {"text": answer.text, "reasoning": "\n".join(thoughts)}


async def mcp() -> Any:
    box = OpenAIChatClient.get_mcp_tool(name="box", url=OPTIONS["mcp"], approval_mode="never_require")
    adder = agent(tools=[box])
    return {"text": (await adder.run("2+3?")).text, "pieces": await pieces(adder, "2+3?")}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(globals()[sys.argv[1]]())))
