"""Typical use of CrewAI. Runs a scenario and prints its result as JSON.

OPENAI_BASE_URL=… OPENAI_API_KEY=… python client.py <scenario> '{"model": …}'
"""

import json
import sys
from typing import Any

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from pydantic import BaseModel

OPTIONS = json.loads(sys.argv[2])


class Cat(BaseModel):
    """A cat."""

    name: str
    lives: int


@tool("look")
def look(place: str) -> str:
    """Look at a place."""
    return f"a cat on the {place}"


def crew(description: str, *, tools: list[Any] | None = None, output: Any = None, stream: bool = False) -> Crew:
    """Return a crew of one agent with one task."""
    model = LLM(model=OPTIONS["model"], provider="openai", stream=stream)
    agent = Agent(role="Watcher", goal="Watch.", backstory="A watcher.", llm=model, tools=tools or [], verbose=False)
    task = Task(description=description, expected_output="An answer.", agent=agent, output_pydantic=output)
    return Crew(agents=[agent], tasks=[task], stream=stream, verbose=False)


def text() -> Any:
    return {"text": crew("Hi").kickoff().raw}


def streaming() -> Any:
    run = crew("Hi", stream=True).kickoff()
    pieces = [piece.content for piece in run if piece.content]
    return {"pieces": pieces, "text": run.result.raw}


def tools() -> Any:
    return {"text": crew("What is on the sofa?", tools=[look]).kickoff().raw}


def structured() -> Any:
    return {"object": crew("A cat!", output=Cat).kickoff().pydantic.model_dump()}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(globals()[sys.argv[1]]()))
