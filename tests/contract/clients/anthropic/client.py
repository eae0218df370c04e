"""Typical use of Anthropic's SDK. Runs a scenario and prints its result as JSON.

ANTHROPIC_BASE_URL=… ANTHROPIC_API_KEY=… python client.py <scenario> '{"model": …}'
"""

import asyncio
import json
import sys
from typing import Any

import anthropic
from anthropic import Anthropic, AsyncAnthropic, beta_tool
from pydantic import BaseModel

OPTIONS = json.loads(sys.argv[2])
CLIENT = Anthropic(max_retries=0)
ASKED: Any = {"model": OPTIONS["model"], "max_tokens": 1000, "messages": [{"role": "user", "content": "Hi"}]}
LOOK: Any = {
    "name": "look",
    "description": "Look at a place.",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}


class Cat(BaseModel):
    """A cat."""

    name: str
    lives: int


def words(message: Any) -> str:
    """Return the text of a message."""
    return "".join(block.text for block in message.content if block.type == "text")


def text() -> Any:
    message = CLIENT.messages.create(**ASKED)
    usage = message.usage
    return {"text": words(message), "stop": message.stop_reason, "tokens": [usage.input_tokens, usage.output_tokens]}


def streaming() -> Any:
    with CLIENT.messages.stream(**ASKED) as stream:
        pieces = list(stream.text_stream)
        message = stream.get_final_message()
    tokens = [message.usage.input_tokens, message.usage.output_tokens]
    return {"pieces": pieces, "text": words(message), "stop": message.stop_reason, "tokens": tokens}


def raw_streaming() -> Any:
    return {"events": [event.type for event in CLIENT.messages.create(**ASKED, stream=True)]}


def tools() -> Any:
    asked = {**ASKED, "tools": [LOOK], "thinking": {"type": "adaptive"}}
    with CLIENT.messages.stream(**asked) as stream:
        first = stream.get_final_message()
    (call,) = [block for block in first.content if block.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": f"a cat on the {call.input['place']}"}
    # The blocks are sent back unchanged, including thinking.
    after = [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = CLIENT.messages.create(**{**asked, "messages": [*ASKED["messages"], *after]})
    return {"stop": [first.stop_reason, second.stop_reason], "text": words(second)}


def tool_runner() -> Any:
    @beta_tool
    def look(place: str) -> str:
        """Look at a place."""
        return f"a cat on the {place}"

    return {"text": words(CLIENT.beta.messages.tool_runner(**ASKED, tools=[look]).until_done())}


def structured() -> Any:
    parsed = CLIENT.messages.parse(**ASKED, output_format=Cat).parsed_output
    return {"object": parsed and parsed.model_dump()}


def chain() -> Any:
    first = CLIENT.messages.create(**{**ASKED, "messages": [{"role": "user", "content": "I am Tom."}]})
    messages = [
        {"role": "user", "content": "I am Tom."},
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": "Who am I?"},
    ]
    return {"text": words(CLIENT.messages.create(**{**ASKED, "messages": messages}))}


def thinking() -> Any:
    budget: Any = {"type": "enabled", "budget_tokens": 1024}
    asked = {**ASKED, "max_tokens": 2000, "thinking": budget}
    with CLIENT.messages.stream(**asked) as stream:
        message = stream.get_final_message()
    (thought,) = [block for block in message.content if block.type == "thinking"]
    return {"thinking": thought.thinking, "signed": bool(thought.signature), "text": words(message)}


def stop_sequence() -> Any:
    message = CLIENT.messages.create(**ASKED, stop_sequences=["END"])
    return {"text": words(message), "stop": message.stop_reason, "sequence": message.stop_sequence}


def count() -> Any:
    counted = CLIENT.messages.count_tokens(model=OPTIONS["model"], messages=ASKED["messages"], tools=[LOOK])
    return {"counted": counted.input_tokens > 0}


async def _concurrently() -> list[str]:
    async with AsyncAnthropic(max_retries=0) as client:

        async def streamed() -> str:
            async with client.messages.stream(**ASKED) as stream:
                return "".join([piece async for piece in stream.text_stream])

        created = words(await client.messages.create(**ASKED))
        return [created, await streamed()]


def asynchronous() -> Any:
    return {"texts": asyncio.run(_concurrently())}


def errors() -> Any:
    wrong: dict[str, Any] = {
        "a wrong key": lambda: Anthropic(api_key="sk-wrong", max_retries=0).messages.create(**ASKED),
        "an unknown model": lambda: CLIENT.messages.create(**{**ASKED, "model": "gone"}),
        "a wrong value": lambda: CLIENT.messages.create(**{**ASKED, "max_tokens": -1}),
        "a full upstream": lambda: CLIENT.messages.create(**ASKED),
        "a busy upstream": lambda: CLIENT.messages.create(**ASKED),
        "a broken stream": lambda: list(CLIENT.messages.create(**ASKED, stream=True)),
    }
    found = {}
    for name, call in wrong.items():
        try:
            call()
        except anthropic.APIStatusError as error:
            found[name] = [type(error).__name__, error.type, bool(error.request_id)]
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(globals()[sys.argv[1]]()))
