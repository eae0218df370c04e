"""Typical use of Semantic Kernel. Runs a scenario and prints its result as JSON.

OPENAI_BASE_URL=… OPENAI_API_KEY=… python client.py <scenario> '{"model": …}'
"""

import asyncio
import json
import sys
from typing import Any

from pydantic import BaseModel
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.functions import KernelArguments, kernel_function

OPTIONS = json.loads(sys.argv[2])


class Cat(BaseModel):
    """A cat."""

    name: str
    lives: int


class Eyes:
    """A plugin."""

    @kernel_function(name="look", description="Look at a place.")
    def look(self, place: str) -> str:
        """Look at a place."""
        return f"a cat on the {place}"


def agent(**options: Any) -> ChatCompletionAgent:
    """Return an agent."""
    service = OpenAIChatCompletion(ai_model_id=OPTIONS["model"])
    return ChatCompletionAgent(service=service, name="Watcher", instructions="Watch.", **options)


async def text() -> Any:
    return {"text": str(await agent().get_response("Hi"))}


async def streaming() -> Any:
    pieces = [str(piece.content) async for piece in agent().invoke_stream("Hi") if str(piece.content)]
    return {"pieces": pieces, "text": "".join(pieces)}


async def tools() -> Any:
    return {"text": str(await agent(plugins=[Eyes()]).get_response("What is on the sofa?"))}


async def structured() -> Any:
    settings = OpenAIChatPromptExecutionSettings(response_format=Cat)
    answer = await agent(arguments=KernelArguments(settings=settings)).get_response("A cat!")
    return {"object": json.loads(str(answer))}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(globals()[sys.argv[1]]())))
