"""A client of WebSocket mode without an SDK, and a server with short-lived connections."""

import asyncio
import copy
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx2
import orjson
import pytest
import uvicorn
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from core.http.asgi import with_request_id
from providers.clients import close_clients
from responses.api.websocket import ResponseSocket
from responses.runs.runner import drain
from tests.support.streams import TERMINAL, Retrieve, check_stream
from tests.support.validation import check_event
from tests.support.waiting import PATIENCE

Event = dict[str, Any]
LAST = {"response.completed", "response.incomplete", "response.failed", "response.steer.failed", "error"}
_WAIT_SECONDS = PATIENCE


class Socket:
    """An open connection. A missing event fails the test.

    Like `Api`, it validates each event against its types and the events of a response against the stored response.
    """

    def __init__(self, connection: Connection, retrieve: Retrieve) -> None:
        self._connection = connection
        self._retrieve = retrieve
        self._lanes: dict[str | None, list[tuple[Event, Any]]] = {}

    def send(self, event: Any) -> None:
        """Send a frame: bytes as a binary frame, strings unchanged, everything else as JSON."""
        self._connection.send(event if isinstance(event, str | bytes) else orjson.dumps(event).decode())

    def ask(self, **body: Any) -> None:
        """Send `response.create` without waiting for events."""
        self.send({"type": "response.create", **body})

    def next(self) -> Event:
        """Return the next event."""
        text = self._connection.recv(timeout=_WAIT_SECONDS)
        assert isinstance(text, str), "the server sent a binary frame"
        event: Event = orjson.loads(text)
        self._check(event)
        return event

    def _check(self, event: Event) -> None:
        lane = self._lanes.setdefault(event.get("stream_id"), [])
        if event["type"] == "response.created":
            lane.clear()
        seen = check_event(event, socket=True)
        if "sequence_number" in event and not event["type"].startswith("response.steer."):
            lane.append((copy.deepcopy(event), seen))
        if event["type"] in TERMINAL:
            check_stream([event for event, _ in lane], [seen for _, seen in lane], self._retrieve)

    def rest(self) -> list[Event]:
        """Return the events up to the last one of a request."""
        events = [self.next()]
        while events[-1]["type"] not in LAST:
            events.append(self.next())
        return events

    def create(self, **body: Any) -> list[Event]:
        """Create a response and return its events, or the error event."""
        self.ask(**body)
        return self.rest_of_failed(self.rest())

    def rest_of_failed(self, events: list[Event]) -> list[Event]:
        """Return the events, with the terminal event after the error of a failed run."""
        return [*events, self.next()] if "sequence_number" in events[-1] and events[-1]["type"] == "error" else events

    def respond(self, **body: Any) -> dict[str, Any]:
        """Create a response that must complete, and return it."""
        last = self.create(**body)[-1]
        assert last["type"] == "response.completed", last
        response: dict[str, Any] = last["response"]
        return response

    def refuse(self, event: Any) -> Event:
        """Send an event that must be rejected, and return the error without its message."""
        self.send(event)
        (error,) = self.rest()
        assert error["type"] == "error", error
        # Errors that are not to be repeated say so in a header.
        assert error["error"].pop("headers", {}).keys() <= {"x-should-retry"}
        assert error["error"].keys() == {"type", "code", "message", "param"}
        assert error["error"].pop("message")
        return error

    def stay_silent(self, seconds: float) -> None:
        """Assert that no event arrives. Pings are answered."""
        with pytest.raises(TimeoutError):
            self._connection.recv(timeout=seconds)

    def close(self) -> None:
        """Close the connection properly."""
        self._connection.close()

    def vanish(self) -> None:
        """Drop the connection, like a client process that was killed."""
        self._connection.socket.shutdown(socket.SHUT_RDWR)


@contextmanager
def open_socket(url: str, *, secret: str = "", path: str = "/v1/responses", **headers: str) -> Iterator[Socket]:
    """Connect to the server at an http URL. Underscores in header names become hyphens."""
    authorization = {"Authorization": f"Bearer {secret}"} if secret else {}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with connect(
        url.replace("http", "ws", 1) + path,
        additional_headers=authorization | named,
        max_size=None,
        open_timeout=_WAIT_SECONDS,
        close_timeout=_WAIT_SECONDS,
    ) as connection:
        yield Socket(connection, lambda response_id: _stored(f"{url}/v1/responses/{response_id}", authorization))


@cache
def _http() -> httpx2.Client:
    return httpx2.Client(timeout=_WAIT_SECONDS)


def _stored(url: str, headers: dict[str, str]) -> dict[str, Any] | None:
    answer = _http().get(url, headers=headers)
    return answer.json() if answer.status_code == 200 else None


@contextmanager
def short_lived_server(*, seconds: float) -> Iterator[str]:
    """Run a server in this process that closes connections after a number of seconds, and yield its URL."""
    app = with_request_id(ResponseSocket.as_asgi(lifetime_seconds=seconds))
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(_serve(server, listener)), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(_WAIT_SECONDS)


async def _serve(server: uvicorn.Server, listener: socket.socket) -> None:
    try:
        await server.serve([listener])
    finally:
        await drain(seconds_left=lambda: 0, notify_workers=lambda: None)
        await close_clients()
