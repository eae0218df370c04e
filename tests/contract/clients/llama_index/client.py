"""Typical use of LlamaIndex. Runs a scenario and prints its result as JSON.

OPENAI_BASE_URL=… OPENAI_API_KEY=… python client.py <scenario> '{"model": …}'
"""

import json
import os
import sys
from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAIResponses
from pydantic import BaseModel

OPTIONS = json.loads(sys.argv[2])
QUESTION = ChatMessage(role="user", content="What is on the sofa?")


class Cat(BaseModel):
    """A cat."""

    name: str
    lives: int


def look(place: str) -> str:
    """Look at a place."""
    return f"a cat on the {place}"


def llm(**options: Any) -> OpenAIResponses:
    """Return the model."""
    address = os.environ["OPENAI_BASE_URL"]
    # Unknown models need a window.
    return OpenAIResponses(model=OPTIONS["model"], api_base=address, max_retries=0, context_window=8192, **options)


def pieces(model: OpenAIResponses, prompt: str) -> list[str]:
    """Return the pieces of a streamed answer."""
    live = model.stream_chat([ChatMessage(role="user", content=prompt)])
    return [piece.delta for piece in live if piece.delta]


def text() -> Any:
    return {"text": llm().complete("Hi").text}


def streaming() -> Any:
    found = pieces(llm(), "Hi")
    return {"pieces": found, "text": "".join(found)}


def tools() -> Any:
    model, tool = llm(), FunctionTool.from_defaults(fn=look)
    first = model.chat_with_tools([tool], chat_history=[QUESTION])
    history = [QUESTION, first.message]
    for call in model.get_tool_calls_from_response(first):
        output = tool(**call.tool_kwargs).content
        history.append(ChatMessage(role="tool", content=output, additional_kwargs={"call_id": call.tool_id}))
    return {"text": model.chat_with_tools([tool], chat_history=history).message.content}


def structured() -> Any:
    return {"object": llm().structured_predict(Cat, PromptTemplate("A cat!")).model_dump()}


def chain() -> Any:
    model = llm(track_previous_responses=True)
    model.complete("I am Tom.")
    return {"text": model.complete("Who am I?").text}


def reasoning() -> Any:
    options = {"effort": "low", "summary": "auto"}
    message = llm(reasoning_options=options).chat([ChatMessage(role="user", content="Hi")]).message
    thoughts = [block.content for block in message.blocks if block.block_type == "thinking"]
    return {"text": message.content, "reasoning": "\n".join(thoughts)}


def mcp() -> Any:
    box = {"type": "mcp", "server_label": "box", "server_url": OPTIONS["mcp"], "require_approval": "never"}
    model = llm(built_in_tools=[box])
    return {"text": model.complete("2+3?").text, "pieces": pieces(model, "2+3?")}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(globals()[sys.argv[1]]()))
