"""Typical use of Instructor. Runs a scenario and prints its result as JSON.

OPENAI_BASE_URL=… OPENAI_API_KEY=… python client.py <scenario> '{"model": …}'
"""

import json
import sys
from typing import Any

import instructor
from openai import OpenAI
from pydantic import BaseModel

OPTIONS = json.loads(sys.argv[2])
PROMPT: Any = [{"role": "user", "content": "A cat!"}]


class Cat(BaseModel):
    """A cat."""

    name: str
    lives: int


def found(mode: instructor.Mode) -> Any:
    """Return the cat as one of Instructor's modes asks for it."""
    client = instructor.from_openai(OpenAI(max_retries=0), mode=mode)
    return {"object": client.create(model=OPTIONS["model"], messages=PROMPT, response_model=Cat).model_dump()}


def structured() -> Any:
    return found(instructor.Mode.TOOLS)


def schema() -> Any:
    return found(instructor.Mode.JSON_SCHEMA)


def responses() -> Any:
    return found(instructor.Mode.RESPONSES_TOOLS)


def streaming() -> Any:
    client = instructor.from_openai(OpenAI(max_retries=0))
    partial = client.create_partial(model=OPTIONS["model"], messages=PROMPT, response_model=Cat)
    pieces = [piece.model_dump() for piece in partial]
    return {"object": pieces[-1]}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(globals()[sys.argv[1]]()))
