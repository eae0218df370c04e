"""The baseline: a proxy that only forwards bytes.

An ASGI application for uvicorn with an aiohttp client, without parsing, authentication or storage. ``UPSTREAM`` is the
address of the upstream. With uvloop and httptools installed, it is one and a half to two times as fast.
"""

import os
from collections.abc import Awaitable, Callable, MutableMapping
from functools import cache
from typing import Any

import aiohttp

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

UPSTREAM = os.environ.get("UPSTREAM", "")


async def app(scope: Message, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await _live(receive, send)
        return
    body = await _read(receive)
    url, headers = UPSTREAM + scope["path"], {"content-type": "application/json"}
    async with _client().request(scope["method"], url, data=body, headers=headers) as answer:
        content_type = answer.headers["content-type"].encode()
        await send(
            {"type": "http.response.start", "status": answer.status, "headers": [(b"content-type", content_type)]}
        )
        async for block in answer.content.iter_any():
            await send({"type": "http.response.body", "body": block, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@cache
def _client() -> aiohttp.ClientSession:
    """Return the client of this process, created inside the event loop, without a connection limit."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def _read(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return bytes(body)


async def _live(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await _client().close()
    await send({"type": "lifespan.shutdown.complete"})
