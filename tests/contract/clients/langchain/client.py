"""Typical use of LangChain. Runs a scenario and prints its result as JSON.

OPENAI_BASE_URL=… OPENAI_API_KEY=… python client.py <scenario> '{"model": …}'
"""

import json
import sys
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

OPTIONS = json.loads(sys.argv[2])
QUESTION = HumanMessage("What is on the sofa?")


class Cat(BaseModel):
    """A cat."""

    name: str
    lives: int


@tool
def look(place: str) -> str:
    """Look at a place."""
    return f"a cat on the {place}"


def chat(**options: Any) -> ChatOpenAI:
    """Return the model."""
    return ChatOpenAI(model=OPTIONS["model"], use_responses_api=True, max_retries=0, **options)


def text() -> Any:
    return {"text": chat().invoke("Hi").text}


def streaming() -> Any:
    pieces = [piece.text for piece in chat().stream("Hi") if piece.text]
    return {"pieces": pieces, "text": "".join(pieces)}


def tools() -> Any:
    model = chat().bind_tools([look])
    history: list[BaseMessage] = [QUESTION, model.invoke([QUESTION])]
    history += [look.invoke(call) for call in history[1].tool_calls]
    return {"text": model.invoke(history).text}


def structured() -> Any:
    found = chat().with_structured_output(Cat, method="json_schema").invoke("A cat!")
    return {"object": found.model_dump()}


def chain() -> Any:
    model = chat(use_previous_response_id=True)
    first = model.invoke([HumanMessage("I am Tom.")])
    return {"text": model.invoke([HumanMessage("I am Tom."), first, HumanMessage("Who am I?")]).text}


def reasoning() -> Any:
    answer = chat(reasoning={"summary": "auto"}, output_version="v1").invoke("Hi")
    thoughts = [block["reasoning"] for block in answer.content_blocks if block["type"] == "reasoning"]
    return {"text": answer.text, "reasoning": "\n".join(thoughts)}


def mcp() -> Any:
    box = {"type": "mcp", "server_label": "box", "server_url": OPTIONS["mcp"], "require_approval": "never"}
    model = chat().bind_tools([box])
    answer = model.invoke("2+3?").text
    return {"text": answer, "pieces": [piece.text for piece in model.stream("2+3?") if piece.text]}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(globals()[sys.argv[1]]()))
