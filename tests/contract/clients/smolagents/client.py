"""Typical use of smolagents. Runs a scenario and prints its result as JSON.

OPENAI_BASE_URL=… OPENAI_API_KEY=… python client.py <scenario> '{"model": …}'
"""

import json
import os
import sys
from typing import Any

from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool

OPTIONS = json.loads(sys.argv[2])


@tool
def look(place: str) -> str:
    """Look at a place.

    Args:
        place: The place.
    """
    return f"a cat on the {place}"


def model() -> OpenAIModel:
    """Return the model."""
    address = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
    return OpenAIModel(model_id=OPTIONS["model"], **address)


def messages(prompt: str) -> Any:
    """Return a prompt as messages."""
    return [{"role": "user", "content": [{"type": "text", "text": prompt}]}]


def text() -> Any:
    return {"text": model().generate(messages("Hi")).content}


def streaming() -> Any:
    pieces = [piece.content for piece in model().generate_stream(messages("Hi")) if piece.content]
    return {"pieces": pieces, "text": "".join(pieces)}


def tools() -> Any:
    agent = ToolCallingAgent(tools=[look], model=model(), verbosity_level=LogLevel.OFF)
    return {"text": agent.run("What is on the sofa?")}


def structured() -> Any:
    properties = {"name": {"type": "string"}, "lives": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "cat", "strict": True, "schema": schema}}
    return {"object": json.loads(model().generate(messages("A cat!"), response_format=form).content)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(globals()[sys.argv[1]]()))
