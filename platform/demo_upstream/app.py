"""The HTTP application and its server, for `python -m demo_upstream` and for tests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web

from demo_upstream import embeddings, models
from demo_upstream.answer import Answer
from demo_upstream.errors import Code, DemoApiError
from demo_upstream.request import parse_chat, parse_embeddings

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

LARGEST_BODY = 128 * 1024 * 1024
# aiohttp waits this long for open requests, twice. Zero would mean forever.
PATIENCE = 0.1
# Load tests connect many clients at the same moment.
BACKLOG = 1024
# nginx's status for requests whose client has disconnected.
_CLIENT_CLOSED_REQUEST = 499


def create_app() -> web.Application:
    """Return the demo upstream as an aiohttp application.

    The runner needs `handler_cancellation=True`, as in `running`: only then handlers notice a disconnect.
    """
    app = web.Application(client_max_size=LARGEST_BODY, middlewares=[_envelopes])
    app.add_routes(
        [
            web.get("/health", _health),
            web.get("/v1/models", _list_models),
            web.get("/v1/models/{id}", _show_model),
            web.post("/v1/chat/completions", _chat),
            web.post("/v1/embeddings", _embed),
        ]
    )
    return app


@asynccontextmanager
async def running(*, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve inside the `async with` and yield the base URL, with the real port for port 0.

    Open requests are ended on exit. Raises OSError if the port is in use.
    """
    runner = web.AppRunner(create_app(), access_log=None, handler_cancellation=True, shutdown_timeout=PATIENCE)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, backlog=BACKLOG).start()
        name = f"[{host}]" if ":" in host else host
        yield f"http://{name}:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


@web.middleware
async def _envelopes(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Return every error in OpenAI's format, including errors that aiohttp raises."""
    try:
        return await handler(request)
    except DemoApiError as error:
        return error.response()
    except web.HTTPException as error:
        return DemoApiError(f"{error.reason}: {request.method} {request.path}", status=error.status).response()
    except ConnectionError:
        # The client has disconnected, but aiohttp requires a response.
        return web.Response(status=_CLIENT_CLOSED_REQUEST)


async def _health(_request: web.Request) -> web.Response:
    return _json({"status": "ok"})


async def _list_models(_request: web.Request) -> web.Response:
    return _json({"object": "list", "data": [models.card(name) for name in models.LISTED]})


async def _show_model(request: web.Request) -> web.Response:
    models.find(request.match_info["id"])
    return _json(models.card(request.match_info["id"]))


async def _chat(request: web.Request) -> web.StreamResponse:
    chat = parse_chat(await request.read())
    model = models.find(chat.model)
    if model.base == models.EMBEDDING:
        raise DemoApiError(f"'{chat.model}' does not chat.", param="model", code=Code.UNSUPPORTED_VALUE)
    answer = Answer(chat, model)
    if not chat.stream:
        # A single body takes as long as streaming its words.
        await asyncio.sleep(len(answer.tokens) * model.pace)
        return _json(answer.completion())
    headers = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    await response.write(_event(answer.chunk({"role": "assistant", "content": ""})))
    for position, _ in enumerate(answer.tokens):
        await asyncio.sleep(model.pace)
        await response.write(_event(answer.word(position)))
    for chunk in answer.closing():
        await response.write(_event(chunk))
    await response.write(b"data: [DONE]\n\n")
    return response


async def _embed(request: web.Request) -> web.Response:
    wanted = parse_embeddings(await request.read())
    models.find(wanted.model)
    return _json(embeddings.body(wanted))


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(data)


def _json(body: Mapping[str, Any]) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")
