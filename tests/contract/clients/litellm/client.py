"""Start LiteLLM's proxy in front of the server, ask it by OpenAI's SDK, and print the results of scenarios as JSON.

OPENAI_BASE_URL=… OPENAI_API_KEY=… python client.py run '{"model": …, "scenarios": ["text", …]}'
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from openai import OpenAI
from pydantic import BaseModel

OPTIONS = json.loads(sys.argv[2])
KEY = "sk-proxy"
MODEL = "proxied"
START_SECONDS = 80
PARAMETERS = {
    "type": "object",
    "properties": {"place": {"type": "string"}},
    "required": ["place"],
    "additionalProperties": False,
}
LOOK: Any = {"name": "look", "description": "Look at a place.", "parameters": PARAMETERS, "strict": True}


class Cat(BaseModel):
    """A cat."""

    name: str
    lives: int


@contextmanager
def proxy(folder: Path) -> Iterator[OpenAI]:
    """Run the proxy on a free port."""
    model = f"openai/{OPTIONS['model']}"
    upstream = {"model": model, "api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
    settings = {
        "model_list": [{"model_name": MODEL, "litellm_params": upstream}],
        "general_settings": {"master_key": KEY},
        "litellm_settings": {"telemetry": False, "num_retries": 0},
    }
    # JSON is YAML as well.
    config = folder / "config.yaml"
    config.write_text(json.dumps(settings))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["litellm", "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
    # It would use the database of other tests.
    environment = {key: value for key, value in os.environ.items() if key != "DATABASE_URL"}
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        wait(f"http://127.0.0.1:{port}/health/liveliness", server, folder / "log")
        yield OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY, max_retries=0)
    finally:
        server.terminate()
        server.wait()


def wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the proxy answers."""
    end = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < end:
        try:
            if httpx.get(url).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise RuntimeError(log.read_text())


def text(client: OpenAI) -> Any:
    answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}])
    return {"text": answer.choices[0].message.content}


def streaming(client: OpenAI) -> Any:
    stream = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}], stream=True)
    pieces = [choice.delta.content for chunk in stream for choice in chunk.choices if choice.delta.content]
    return {"pieces": pieces}


def tools(client: OpenAI) -> Any:
    messages: list[Any] = [{"role": "user", "content": "What is on the sofa?"}]
    offered: list[Any] = [{"type": "function", "function": LOOK}]
    first = client.chat.completions.create(model=MODEL, messages=messages, tools=offered).choices[0].message
    messages.append(first)
    for call in first.tool_calls or []:
        place = json.loads(call.function.arguments)["place"]
        messages.append({"role": "tool", "tool_call_id": call.id, "content": f"a cat on the {place}"})
    second = client.chat.completions.create(model=MODEL, messages=messages, tools=offered)
    return {"text": second.choices[0].message.content}


def structured(client: OpenAI) -> Any:
    prompt: Any = [{"role": "user", "content": "A cat!"}]
    answer = client.chat.completions.parse(model=MODEL, messages=prompt, response_format=Cat)
    found = answer.choices[0].message.parsed
    return {"object": found.model_dump() if found else None}


def response(client: OpenAI) -> Any:
    return {"text": client.responses.create(model=MODEL, input="Hi").output_text}


def streamed_response(client: OpenAI) -> Any:
    stream = client.responses.create(model=MODEL, input="Hi", stream=True)
    return {"pieces": [event.delta for event in stream if event.type == "response.output_text.delta"]}


def response_with_tools(client: OpenAI) -> Any:
    offered: list[Any] = [{"type": "function", **LOOK}]
    first = client.responses.create(model=MODEL, input="What is on the sofa?", tools=offered)
    outputs: Any = [
        {
            "type": "function_call_output",
            "call_id": item.call_id,
            "output": f"a cat on the {json.loads(item.arguments)['place']}",
        }
        for item in first.output
        if item.type == "function_call"
    ]
    second = client.responses.create(model=MODEL, input=outputs, previous_response_id=first.id, tools=offered)
    return {"text": second.output_text}


if __name__ == "__main__":
    with TemporaryDirectory() as root, proxy(Path(root)) as started:
        sys.stdout.write(json.dumps([globals()[name](started) for name in OPTIONS["scenarios"]]))
