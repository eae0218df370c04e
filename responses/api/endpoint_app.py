"""ASGI apps of endpoints that are served without DRF: their JSON answers and their streams of server-sent events.

An app does for its endpoint what `tenants.views.ApiView` does for the others, from the same declaration: it
authenticates, checks the scope, parses the body and sends errors. A `Call` does the work and returns the answer.
"""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import orjson
from django.http import QueryDict

from core.admission.overload import admission
from core.http.asgi import ABORT, Receive, Send, header, headers_of, send_error
from core.http.asgi import Scope as AsgiScope
from core.http.endpoints import Endpoint
from core.http.rendering import JSON, as_api_error
from core.json.large_work import off_loop
from core.load.draining import ConnectionCut
from core.telemetry import metrics
from limits.throttle import add_headers
from responses.api.calls import Call
from tenants.authentication import authenticate
from tenants.models import Scope

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    # nginx would otherwise collect events before it passes them on.
    (b"x-accel-buffering", b"no"),
]

_PIECE_BYTES = 256 * 1024
_OPEN = metrics.OPEN_STREAMS.labels("sse")


class EndpointApp:
    """ASGI app of an endpoint that is `served_by` a class of calls, for requests whose body `ApiShell` has read.

    If the endpoint has a body, its parameter `stream` decides whether the answer is JSON or a stream.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        # Skip the message with the body, which is in the scope already. The next message can only be a disconnect.
        await receive()
        endpoint, principal = self._endpoint, None
        client = _Client(receive)
        call: Call = endpoint.served_by(scope, client.disconnect)
        try:
            try:
                authorization = header(scope, b"authorization")
                principal = await authenticate(authorization)
                principal.require(Scope(endpoint.scope))
                await admission.turn(team_id=principal.team_id, weight=principal.weight, authorization=authorization)
                arguments: dict[str, Any] = endpoint.read_ids(scope["path"])
                # Keep no reference to the query, and free the body now: a run may take minutes.
                arguments |= await off_loop(
                    partial(endpoint.arguments, QueryDict(scope["query_string"]), scope["body"])
                )
                scope["body"] = b""
                frames = answer = None
                if "body" not in arguments or arguments["body"].stream:
                    frames = await call.open(principal, **arguments)
                else:
                    answer = await call.answer(principal, **arguments)
                # Free the parsed body as well.
                arguments.clear()
            except Exception as error:
                client.release()
                await add_headers(principal)
                await send_error(as_api_error(error), send)
                return
            if frames is not None:
                await _send_events(call, frames, client, send)
            else:
                client.release()
                await _send_json(answer, send)
        except asyncio.CancelledError:
            call.disconnected()
            if not client.is_gone:
                raise
            # Otherwise, the connection of a client that does not read would stay open until it has read the rest.
            scope[ABORT]()
        finally:
            client.release()
            call.close()


class _Client:
    """The client of a request. When it disconnects, the task that serves it is cancelled."""

    def __init__(self, receive: Receive) -> None:
        self.is_gone = False
        self._task = asyncio.current_task()
        self._watch: asyncio.Task[None] | None = asyncio.create_task(self._wait_until_gone(receive))

    async def _wait_until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.disconnect()

    def disconnect(self) -> None:
        """Stop serving the client."""
        if self._task is not None:
            self.is_gone = True
            self._task.cancel()

    def release(self) -> None:
        """Stop watching for a disconnect, because servers report the end of a response as one."""
        self._task = None
        if self._watch is not None:
            self._watch.cancel()
            # A cancelled task keeps its exception, whose traceback refers to this object. This cycle kept the 54
            # objects of a request until a garbage collection, which took 7 % of the CPU of JSON requests.
            self._watch = None


async def _send_json(answer: Any, send: Send) -> None:
    body = await off_loop(partial(orjson.dumps, answer.data))
    # Django's default content type is HTML.
    headers = [(name, value) for name, value in headers_of(answer) if name != b"content-type"]
    headers += [(b"content-type", JSON.encode()), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_events(call: Call, frames: AsyncIterator[bytes], client: _Client, send: Send) -> None:
    headers = [*_HEADERS, *((name.encode(), value.encode()) for name, value in call.headers.items())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    admission.started()
    _OPEN.inc()
    try:
        async for data in frames:
            # Sent in pieces, because a server copies the bytes that its socket does not accept at once.
            for start in range(0, len(data), _PIECE_BYTES):
                piece = data if len(data) <= _PIECE_BYTES else data[start : start + _PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
    except ConnectionCut:
        raise
    except Exception as error:
        # The status has been sent, so the error can only be an event, after which the stream is closed.
        data = call.error_frame(as_api_error(error))
        await send({"type": "http.response.body", "body": data, "more_body": True})
    finally:
        _OPEN.dec()
    client.release()
    # Closed before the client receives the end, so that its next request finds the place free.
    call.close()
    await send({"type": "http.response.body", "body": b"", "more_body": False})
