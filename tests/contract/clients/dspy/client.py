"""Typical use of DSPy. Runs a scenario and prints its result as JSON.

OPENAI_BASE_URL=… OPENAI_API_KEY=… python client.py <scenario> '{"model": …}'
"""

import asyncio
import json
import sys
from typing import Any

import dspy
from dspy.streaming import StreamListener, StreamResponse

OPTIONS = json.loads(sys.argv[2])


def look(place: str) -> str:
    """Look at a place."""
    return f"a cat on the {place}"


def text() -> Any:
    return {"text": dspy.Predict("question -> answer")(question="Hi").answer}


def streaming() -> Any:
    program = dspy.Predict("question -> answer")
    stream = dspy.streamify(program, stream_listeners=[StreamListener(signature_field_name="answer")])

    async def pieces() -> list[str]:
        return [piece.chunk async for piece in stream(question="Hi") if isinstance(piece, StreamResponse)]

    found = asyncio.run(pieces())
    return {"pieces": found, "text": "".join(found)}


def tools() -> Any:
    return {"text": dspy.ReAct("question -> answer", tools=[look])(question="What is on the sofa?").answer}


def structured() -> Any:
    found = dspy.Predict("description -> name: str, lives: int")(description="A cat!")
    return {"object": {"name": found.name, "lives": found.lives}}


if __name__ == "__main__":
    adapter = dspy.JSONAdapter() if sys.argv[1] == "structured" else dspy.ChatAdapter()
    # Repeated runs would be answered from its cache on disk.
    dspy.configure(lm=dspy.LM(f"openai/{OPTIONS['model']}", cache=False, num_retries=0), adapter=adapter)
    sys.stdout.write(json.dumps(globals()[sys.argv[1]]()))
