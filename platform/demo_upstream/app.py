"""The HTTP application: routes, error responses and counters. `server.running()` serves it on a socket."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from hashlib import blake2b
from typing import Any

import orjson
from aiohttp import web

from demo_upstream import embeddings, faults, images, models
from demo_upstream.conversation import DemoConversation
from demo_upstream.delivery import deliver
from demo_upstream.errors import DemoApiError
from demo_upstream.generation import generate
from demo_upstream.models import DemoModel
from demo_upstream.request import DemoChatRequest, parse_chat, parse_embeddings
from demo_upstream.stats import Stats
from demo_upstream.stream import Presenter

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Clock = Callable[[], float]

LARGEST_BODY = 128 * 1024 * 1024
STATS: web.AppKey[Stats] = web.AppKey("stats", Stats)
CLOCK: web.AppKey[Clock] = web.AppKey("clock")
JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"


def create_app(*, clock: Clock = time.time) -> web.Application:
    """Return the demo upstream as an aiohttp application. `clock` is the source of the `created` fields.

    The runner needs `handler_cancellation=True`, as in `server.running`: only then handlers notice a disconnect.
    """
    app = web.Application(client_max_size=LARGEST_BODY, middlewares=[_envelopes])
    app[STATS] = Stats()
    app[CLOCK] = clock
    app.add_routes(
        [
            web.get("/health", _health),
            web.get("/stats", _stats),
            web.get("/v1/models", _list_models),
            web.get("/v1/models/{id}", _show_model),
            web.post("/v1/chat/completions", _chat),
            web.post("/v1/embeddings", _embed),
            web.post("/v1/images/generations", _draw),
            web.post("/v1/images/edits", _draw),
        ]
    )
    return app


@web.middleware
async def _envelopes(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Return every error in OpenAI's format, including those of the HTTP server."""
    try:
        return await handler(request)
    except DemoApiError as error:
        return error.response()
    except web.HTTPException as error:
        return DemoApiError(f"{error.reason}: {request.method} {request.path}", status=error.status).response()
    except ConnectionError:
        # The client has disconnected, but aiohttp requires a response.
        return web.Response(status=499)


async def _health(_request: web.Request) -> web.Response:
    return _json(b'{"status":"ok"}')


async def _stats(request: web.Request) -> web.Response:
    return _json(orjson.dumps(asdict(request.app[STATS])))


async def _list_models(_request: web.Request) -> web.Response:
    cards = [models.card(name) for name in models.LISTED]
    return _json(orjson.dumps({"object": "list", "data": cards}))


async def _show_model(request: web.Request) -> web.Response:
    return _json(orjson.dumps(models.card(models.find(request.match_info["id"]).id)))


async def _chat(request: web.Request) -> web.StreamResponse:
    with request.app[STATS].counting():
        chat = parse_chat(await request.read())
        model = models.find(chat.model)
        if not model.chats:
            raise DemoApiError(f"'{model.id}' does not chat.", param="model", code="unsupported_value")
        faults.raise_instead_of_answering(model.fault)
        return await _answer(request, chat, model)


async def _answer(request: web.Request, chat: DemoChatRequest, model: DemoModel) -> web.StreamResponse:
    """Answer a chat request."""
    # Everything except `created` is derived from the request, so answers are equal with and without streaming.
    seed = blake2b(chat.model_dump_json(exclude={"stream", "stream_options"}).encode(), digest_size=16).digest()
    presenter = Presenter(
        request=chat,
        generation=generate(DemoConversation(chat, model), seed=seed),
        id=f"chatcmpl-{seed.hex()[:24]}",
        created=int(request.app[CLOCK]()),
    )
    if chat.stream:
        steps = faults.streamed(presenter.script(), pace=model.pace, fault=model.fault)
        return await deliver(request, steps, content_type=EVENTS)
    seconds = len(presenter.generation.pieces) * model.pace
    steps = faults.whole(presenter.completion(), seconds=seconds, fault=model.fault)
    return await deliver(request, steps, content_type=JSON)


async def _embed(request: web.Request) -> web.StreamResponse:
    with request.app[STATS].counting():
        wanted = parse_embeddings(await request.read())
        model = models.find(wanted.model)
        faults.raise_instead_of_answering(model.fault)
        steps = faults.whole(embeddings.body(wanted), seconds=0, fault=model.fault)
        return await deliver(request, steps, content_type=JSON)


async def _draw(request: web.Request) -> web.StreamResponse:
    """Answer a request for images. Edits are sent as a multipart form with the images to change."""
    with request.app[STATS].counting():
        fields, given = await _image_fields(request)
        model = models.find(str(fields.get("model") or ""))
        faults.raise_instead_of_answering(model.fault)
        created = int(request.app[CLOCK]())
        if str(fields.get("stream")).lower() != "true":
            return _json(images.body(fields, pictures=given, created=created))
        response = web.StreamResponse(headers={"content-type": EVENTS})
        await response.prepare(request)
        for event in images.events(fields, pictures=given, created=created):
            await response.write(event)
        return response


async def _image_fields(request: web.Request) -> tuple[dict[str, Any], int]:
    if request.content_type != "multipart/form-data":
        try:
            sent = orjson.loads(await request.read())
        except orjson.JSONDecodeError as error:
            raise DemoApiError("We could not parse the JSON body of your request.") from error
        return (sent if isinstance(sent, dict) else {}), 0
    form = await request.post()
    files = [name for name, value in form.items() if isinstance(value, web.FileField) and name != "mask"]
    return {name: value for name, value in form.items() if isinstance(value, str)}, len(files)


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type=JSON)
