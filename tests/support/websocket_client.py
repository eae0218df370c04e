"""A client of WebSocket mode that shows every frame, with no SDK between; and a server whose connections end soon."""

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

from kernel.asgi import with_request_id
from responses.api.websocket import ResponseSocket
from responses.providers.clients import close_clients
from responses.runs.runner import cancel_all
from tests.support.streams import TERMINAL, Retrieve, check_stream
from tests.support.validation import check_event

Event = dict[str, Any]
LAST = {"response.completed", "response.incomplete", "response.failed", "response.steer.failed", "error"}
_WAIT_SECONDS = 10.0


class Socket:
    """One open connection. What does not come in time fails the test.

    Each event is held to its types, and those of a whole response to what is stored, as `Api` does with streams.
    """

    def __init__(self, connection: Connection, retrieve: Retrieve) -> None:
        self._connection = connection
        self._retrieve = retrieve
        self._lanes: dict[str | None, list[tuple[Event, Any]]] = {}

    def send(self, event: Any) -> None:
        """Any frame: bytes go as they are in a binary one, strings as they are, everything else as JSON."""
        self._connection.send(event if isinstance(event, str | bytes) else orjson.dumps(event).decode())

    def ask(self, **body: Any) -> None:
        """A `response.create`, without waiting for what comes of it."""
        self.send({"type": "response.create", **body})

    def next(self) -> Event:
        """The next event."""
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
        """The events up to the next one that is the last of its request."""
        events = [self.next()]
        while events[-1]["type"] not in LAST:
            events.append(self.next())
        return events

    def create(self, **body: Any) -> list[Event]:
        """The events of a whole response, or the one that refuses it."""
        self.ask(**body)
        return self.rest_of_failed(self.rest())

    def rest_of_failed(self, events: list[Event]) -> list[Event]:
        """The events, with the terminal one that follows the error of a run that fails."""
        return [*events, self.next()] if "sequence_number" in events[-1] and events[-1]["type"] == "error" else events

    def respond(self, **body: Any) -> dict[str, Any]:
        """The completed response."""
        last = self.create(**body)[-1]
        assert last["type"] == "response.completed", last
        response: dict[str, Any] = last["response"]
        return response

    def refuse(self, event: Any) -> Event:
        """The error that a client event is answered with, without its message, which is there."""
        self.send(event)
        (error,) = self.rest()
        assert error["type"] == "error", error
        assert error["error"].keys() == {"type", "code", "message", "param"}
        assert error["error"].pop("message")
        return error

    def stay_silent(self, seconds: float) -> None:
        """Do nothing but answer the server's pings; nothing else may come."""
        with pytest.raises(TimeoutError):
            self._connection.recv(timeout=seconds)

    def close(self) -> None:
        """Say goodbye."""
        self._connection.close()

    def vanish(self) -> None:
        """Go away without a word, as a client whose process was killed."""
        self._connection.socket.shutdown(socket.SHUT_RDWR)


@contextmanager
def open_socket(url: str, *, secret: str = "", path: str = "/v1/responses", **headers: str) -> Iterator[Socket]:
    """A connection to the server at `url`, which begins with http; underscores in names of headers are hyphens."""
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
    """The URL of a server in this process on which connections last so long."""
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
        await cancel_all()
        await close_clients()
