"""Requests over WebSocket with an idempotency key (`idempotency_key` in `response.create`): each is executed once."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from core.errors import ApiError, InvalidType, ServerError
from core.http.asgi import Scope, Send, send_error
from core.http.rendering import as_api_error
from core.http.sending import send_events
from core.http.validation import json_type
from core.ids import new_id
from core.json.large_work import off_loop
from core.load.draining import ConnectionCut
from idempotency import fingerprint
from idempotency.http import checked_key, recorded
from idempotency.recording import Recording
from idempotency.store import KeyedRequest
from responses.api.requests import info_of, warning_headers
from responses.api.restoration import RESTORATION
from responses.lifecycle.create import StartedRun
from responses.runs.identity import RequestInfo
from tenants.principal import Principal

Start = Callable[[RequestInfo], Awaitable[StartedRun]]
"""Starts the run of a request."""


def pop_key(values: dict[str, Any]) -> str | None:
    """Remove and return the idempotency key of a `response.create` event, or None. Raises for an invalid one."""
    key = values.pop("idempotency_key", None)
    if key is None:
        return None
    if not isinstance(key, str):
        raise InvalidType("idempotency_key", expected="a string", got=json_type(key))
    return checked_key(key, param="idempotency_key")


async def recording_of(scope: Scope, principal: Principal, values: dict[str, Any], key: str, start: Start) -> Recording:
    """Return the answer of a request as a stream of events, or as an error. It is executed by `start` at most once."""
    # Each request of a connection needs an id of its own.
    info = replace(info_of(scope), request_id=new_id("req"), has_key=True)
    keyed = await off_loop(partial(_keyed, values, principal, key, info))
    recording, _ = await recorded(keyed, partial(_execute, start, info), RESTORATION, principal, is_stream=True)
    return recording


async def recorded_error(recording: Recording, stream_id: str | None) -> bytes:
    """Return the event for an answer that is an error."""
    body = b"".join([data async for data in recording.body()])
    detail: Any = orjson.loads(body)["error"] if body else ServerError().detail()
    place = {} if stream_id is None else {"stream_id": stream_id}
    return orjson.dumps({"type": "error", "status": recording.status or ServerError.status, **place, "error": detail})


def _keyed(values: dict[str, Any], principal: Principal, key: str, info: RequestInfo) -> KeyedRequest:
    found = fingerprint.of_document(values, orjson.dumps(values, option=orjson.OPT_SORT_KEYS))
    return KeyedRequest(
        team_id=principal.team_id,
        api_key_id=principal.key_id,
        method="WEBSOCKET",
        path="/v1/responses",
        key=key,
        fingerprint=found.digest,
        request_id=info.request_id,
        is_stored=found.is_stored,
    )


async def _execute(start: Start, info: RequestInfo, send: Send) -> None:
    started: StartedRun | None = None
    try:
        started = await start(info)
        warnings = warning_headers(started.run.warnings)
        # The events are kept until the client has read them.
        events: AsyncIterator[bytes] = started.run.frames(_ignore)
        await send_events(
            events,
            send,
            headers=[(name.encode(), value.encode()) for name, value in warnings.items()],
            last_event=lambda error: _error_frame(as_api_error(error)),
            close=_ignore,
        )
    except ConnectionCut:
        raise
    except Exception as error:
        await send_error(as_api_error(error), send)
    finally:
        if started is not None:
            started.run.detach()


def _error_frame(error: ApiError) -> bytes:
    return b"event: error\ndata: %b\n\n" % orjson.dumps({"type": "error", "error": error.detail()})


def _ignore() -> None:
    """Take the place of a function that closes a connection."""
