"""Test client for a demo upstream that runs in the event loop of the test, over a real socket."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from demo_upstream.app import running


@dataclass(frozen=True)
class DemoAnswer:
    """An HTTP response with its parsed body."""

    status: int
    headers: Mapping[str, str]
    json: Any

    @property
    def ok(self) -> bool:
        """True if the status is 200."""
        return self.status == 200


@dataclass(frozen=True)
class Demo:
    """Client of a running demo upstream. `url` ends in `/v1`."""

    url: str
    session: aiohttp.ClientSession

    async def get(self, path: str) -> DemoAnswer:
        """Send a GET request to a path below the root."""
        async with self.session.get(self.url.removesuffix("/v1") + path) as response:
            return DemoAnswer(response.status, response.headers, orjson.loads(await response.read()))

    async def post(self, path: str, body: object) -> DemoAnswer:
        """Send a POST request to a path below `/v1`. Bodies other than bytes are encoded as JSON."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(self.url + path, data=raw) as response:
            return DemoAnswer(response.status, response.headers, orjson.loads(await response.read()))

    async def complete(self, asked: str | list[dict[str, Any]], **parameters: Any) -> Any:
        """Return the completion for a text or a list of messages; the default model is `demo-d0`."""
        answer = await self.post("/chat/completions", _chat(asked, parameters))
        assert answer.ok, answer.json
        return answer.json

    async def ask(self, asked: str | list[dict[str, Any]], **parameters: Any) -> str:
        """Return the text of the completion."""
        completion = await self.complete(asked, **parameters)
        return str(completion["choices"][0]["message"]["content"])

    async def refusal(self, asked: str | list[dict[str, Any]], **parameters: Any) -> DemoAnswer:
        """Return the error response to a chat request."""
        answer = await self.post("/chat/completions", _chat(asked, parameters))
        assert not answer.ok, answer.json
        return answer

    async def lines(self, asked: str | list[dict[str, Any]], **parameters: Any) -> AsyncGenerator[str, None]:
        """Yield the data lines of a stream as they arrive, without `data: `."""
        body = _chat(asked, {"stream": True, **parameters})
        async with self.session.post(f"{self.url}/chat/completions", json=body) as response:
            assert response.ok, response.status
            async for line in response.content:
                if line.strip():
                    yield line.decode().rstrip("\n").removeprefix("data: ")

    async def chunks(self, asked: str | list[dict[str, Any]], **parameters: Any) -> list[Any]:
        """Return the chunks of a stream that ends with `[DONE]`."""
        *chunks, done = [line async for line in self.lines(asked, **parameters)]
        assert done == "[DONE]", done
        return [orjson.loads(chunk) for chunk in chunks]


@asynccontextmanager
async def talking() -> AsyncIterator[Demo]:
    """Start a demo upstream and yield a client of it."""
    async with running() as url, aiohttp.ClientSession() as session:
        yield Demo(url, session)


def _chat(asked: str | list[dict[str, Any]], parameters: Mapping[str, Any]) -> dict[str, Any]:
    messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    return {"model": "demo-d0", "messages": messages, **parameters}
