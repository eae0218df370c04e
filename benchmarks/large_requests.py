"""`python -m benchmarks large`: the delay of deltas of paced streams while large requests are served."""

import asyncio
import base64
import http.client
import os
import re
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson

from benchmarks.load import Target
from benchmarks.report import Floor
from benchmarks.stack import running

STREAMS = 50
# The paced streams take three seconds: 20 tokens per second, each with the time at which the upstream sent it.
PACED = "mock-t60-d50-f200-ts"
SHORT = "mock-t4"
MOST_LATE_MS = 30.0
_SENT_AT = re.compile(rb'"delta":"t(\d+) "')
_SENTENCE = "The quick brown fox jumps over the lazy dog. "
_LINE = 'log("Съешь ещё этих мягких булок")\n\t'


def _text(pattern: str, size: int) -> str:
    return pattern * (size // len(pattern.encode()))


def _image(size: int) -> str:
    return f"data:image/png;base64,{base64.b64encode(os.urandom(size * 3 // 4)).decode()}"


def _schema(width: int, depth: int) -> dict[str, Any]:
    if depth == 0:
        return {"type": "string", "description": _SENTENCE}
    names = [f"property_{number}" for number in range(width)]
    inner = _schema(width, depth - 1)
    return {
        "type": "object",
        "properties": dict.fromkeys(names, inner),
        "required": names,
        "additionalProperties": False,
    }


def requests() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the large requests: name, path and body of each."""
    # These are below the size from which text is worked on in a thread.
    yield "0.2 MB of text", "/responses", {"input": _text(_SENTENCE, 200_000)}
    yield "0.5 MB of text", "/responses", {"input": _text(_SENTENCE, 500_000)}
    yield "0.5 MB of escaped Cyrillic text", "/responses", {"input": _text(_LINE, 400_000)}
    small = {"type": "input_image", "image_url": _image(500_000)}
    yield "0.5 MB image", "/responses", {"input": [{"role": "user", "content": [small]}]}
    prose, code = _text(_SENTENCE, 9_000_000), _text(_LINE, 9_000_000)
    yield "9 MB of text", "/responses", {"input": prose}
    yield "9 MB of escaped Cyrillic text", "/responses", {"input": code}
    yield "9 MB of text, not stored", "/responses", {"input": prose, "store": False}
    yield "9 MB of instructions", "/responses", {"input": "Hello", "instructions": prose}
    parts = [{"type": "input_text", "text": "Describe it."}, {"type": "input_image", "image_url": _image(20_000_000)}]
    yield "an image of 20 MB", "/responses", {"input": [{"role": "user", "content": parts}]}
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": _SENTENCE * 4} for number in range(2_001)]
    yield "2,000 messages", "/responses", {"input": messages}
    # As many objects as a request may have that is served on the event loop, with its longest text.
    few = [{"role": roles[number % 2], "content": _SENTENCE * 45} for number in range(201)]
    yield "200 messages, 0.4 MB", "/responses", {"input": few}
    short = [{"role": roles[number % 2], "content": "Hi"} for number in range(2_501)]
    yield "2,500 short messages, 0.1 MB", "/responses", {"input": short}
    calls = [
        item
        for number in range(1_000)
        for item in (
            {"type": "function_call", "call_id": f"call_{number}", "name": "look_up", "arguments": '{"number": 1}'},
            {"type": "function_call_output", "call_id": f"call_{number}", "output": _SENTENCE},
        )
    ]
    yield "2,000 calls and outputs", "/responses", {"input": calls}
    text_format = {"type": "json_schema", "name": "answer", "strict": False, "schema": _schema(13, 3)}
    # Streamed, as a stream has the status 200 although the mock's answer is no JSON.
    schema_body = {"input": "Hello", "text": {"format": text_format}, "stream": True}
    yield "a schema of 2,500 objects", "/responses", schema_body
    tools = [
        {"type": "function", "name": f"tool_{number}", "parameters": _schema(5, 3), "strict": True}
        for number in range(128)
    ]
    yield "128 tools, 2 MB", "/responses", {"input": "Hello", "tools": tools}
    yield "9 MB of text, chat completion", "/chat/completions", {"messages": [{"role": "user", "content": prose}]}
    yield "2,000 messages, chat completion", "/chat/completions", {"messages": messages}
    yield "9 MB of text, Anthropic", "/messages", {"messages": [{"role": "user", "content": prose}], "max_tokens": 64}
    yield "2,000 messages, Anthropic", "/messages", {"messages": messages, "max_tokens": 64}


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Measure and print the figures. With `--check`, return 1 if a limit is exceeded."""
    parser = ArgumentParser(prog="python -m benchmarks large")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is exceeded")
    parser.add_argument("--server", choices=["daphne", "uvicorn"], default="uvicorn")
    parser.add_argument("--streams", type=int, default=STREAMS, help="number of paced streams beside each request")
    parser.add_argument("--times", type=int, default=2, help="how often each request is sent")
    parser.add_argument("--only", default="", help="only requests whose name contains this text")
    options = parser.parse_args(arguments)
    with running(directory=directory, server=options.server) as stack:
        figures = list(_measure(stack.platform, streams=options.streams, times=options.times, only=options.only))
    return 1 if options.check and not all(figure.holds for figure in figures) else 0


def _measure(platform: Target, *, streams: int, times: int, only: str) -> Iterator[Floor]:
    # The first round warms the process up.
    asyncio.run(_beside(platform, streams, []))
    for name, path, body in [("nothing", "", {}), *requests()]:
        if only not in name:
            continue
        raw = orjson.dumps({"model": SHORT, **body})
        late = asyncio.run(_beside(platform, streams, [(path, raw)] * times if path else []))
        load = f"{streams} paced streams beside {name}: deltas late"
        median, most = late[len(late) // 2], late[int(len(late) * 0.99)]
        figure = Floor(name=f"{load}, p50 {median:.1f}, p99 {most:.1f}, max ms", figure=late[-1], limit=MOST_LATE_MS)
        print(figure.text(), flush=True)
        yield figure


async def _beside(platform: Target, streams: int, sent: Sequence[tuple[str, bytes]]) -> list[float]:
    """Return by how many milliseconds each delta of some streams arrived late, while requests are sent."""
    late: list[float] = []

    async def follow() -> None:
        body = {"model": PACED, "input": "Hello", "stream": True}
        async with session.post(f"{platform.url}/v1/responses", json=body, headers=platform.headers) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                if found := _SENT_AT.search(line):
                    late.append((time.monotonic_ns() - int(found[1])) / 1e6)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(follow())
            await asyncio.sleep(0.5 / streams)
        await asyncio.sleep(0.3)
        # The streams have begun, and are measured until their end.
        late.clear()
        for path, raw in sent:
            await asyncio.to_thread(_send, platform, path, raw)
    return sorted(late)


def _send(platform: Target, path: str, raw: bytes) -> None:
    # Called in a thread, because sending the body must not delay the streams that this process reads.
    connection = http.client.HTTPConnection(urlsplit(platform.url).netloc, timeout=60)
    headers = {"Content-Type": "application/json", **platform.headers}
    connection.request("POST", f"/v1{path}", body=raw, headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    if answer.status != http.client.OK:
        raise RuntimeError(f"POST {path} was answered {answer.status}: {content[:500]!r}")
