"""ASGI apps of endpoints that are served without DRF: their JSON answers and their streams of server-sent events.

For these endpoints, the app replaces `tenants.views.ApiView`: it authenticates, checks the scope, parses the body and
sends errors, as the same declaration of the endpoint says. A `Call` does the work and returns the answer.
"""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from django.http import QueryDict

from core.admission.overload import admission
from core.http.asgi import ABORT, Receive, Send, header, send_error
from core.http.asgi import Scope as AsgiScope
from core.http.endpoints import Endpoint
from core.http.rendering import as_api_error
from core.http.sending import Client, JsonAnswer, send_events, send_json
from core.json.large_work import off_loop
from limits.throttle import add_headers
from responses.api.calls import Call
from tenants.authentication import authenticate
from tenants.models import Scope

_NO_QUERY = QueryDict()


class EndpointApp:
    """ASGI app of an endpoint that is `served_by` a class of calls. `ApiShell` has already read the request's body.

    If the endpoint has a body, its parameter `stream` decides whether the answer is JSON or a stream.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        # Skip the message with the body, which is in the scope already. The next message can only be a disconnect.
        await receive()
        endpoint, principal = self._endpoint, None
        client = Client(scope, receive)
        call: Call[Any] = endpoint.served_by(scope, client.disconnect)
        try:
            try:
                authorization = header(scope, b"authorization")
                principal = await authenticate(authorization)
                principal.require(Scope(endpoint.scope))
                await admission.turn(team_id=principal.team_id, weight=principal.weight, authorization=authorization)
                arguments: dict[str, Any] = endpoint.read_ids(scope["path"])
                # Keep no reference to the query, and free the body now: a run may take minutes.
                query = QueryDict(scope["query_string"]) if scope["query_string"] else _NO_QUERY
                arguments |= await off_loop(partial(endpoint.arguments, query, scope["body"]))
                scope["body"] = b""
                frames: AsyncIterator[bytes] | None = None
                answer: JsonAnswer | None = None
                body = arguments.pop("body", None)
                if body is None:
                    frames = await call.open(principal, arguments)
                elif body.stream:
                    frames = await call.open(principal, body)
                else:
                    answer = await call.answer(principal, body)
                # Free the parsed body as well.
                del body
            except Exception as error:
                client.release()
                await add_headers(principal)
                await send_error(as_api_error(error), send)
                return
            if frames is not None:
                await self._send_events(call, frames, client, send)
            elif answer is not None:
                client.release()
                await send_json(answer, send)
        except asyncio.CancelledError:
            call.disconnected()
            if not client.is_gone:
                raise
            # Otherwise, the connection to a client that does not read would stay open until it has read everything.
            scope[ABORT]()
        finally:
            client.release()
            call.close()

    async def _send_events(self, call: Call[Any], events: AsyncIterator[bytes], client: Client, send: Send) -> None:
        def close() -> None:
            client.release()
            # Release the reservation before the client receives the end of the stream, so that the limits have room for
            # its next request.
            call.close()

        admission.started()
        await send_events(
            events,
            send,
            headers=[(name.encode(), value.encode()) for name, value in call.headers.items()],
            last_event=lambda error: call.error_frame(as_api_error(error)),
            close=close,
        )
