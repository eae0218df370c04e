"""A client of the HTTP API without an SDK, with access to statuses, headers, bytes and events.

It validates every response and event with the types of the endpoint, and compares every complete stream with the stored
response.
"""

import copy
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx2
import orjson

from tenants.models import ApiKey, Team
from tests.support.anthropic_types import check_message_event
from tests.support.streams import Retrieve, check_stream
from tests.support.validation import check_answer, check_chunk, check_event
from tests.support.waiting import HANGS_AFTER

Event = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Caller:
    """A team and one of its keys."""

    team: Team
    key: ApiKey
    secret: str = field(repr=False)


MakeCaller = Callable[..., Caller]


class LiveStream:
    """An open stream. `raw` collects its lines, `events` yields its parsed events.

    `retrieve` fetches the stored response for comparison. Without it, `check` validates each event.
    """

    def __init__(
        self,
        response: httpx2.Response,
        *,
        check: Callable[[Event], None] = check_chunk,
        retrieve: Retrieve | None = None,
    ) -> None:
        self.headers = response.headers
        self.raw: list[str] = []
        self.events = self._checked(response, retrieve) if retrieve else self._pieces(response, check)

    def next(self) -> Event:
        """The next event."""
        return next(self.events)

    def rest(self) -> list[Event]:
        """The events until the end of the stream."""
        return list(self.events)

    def _read(self, response: httpx2.Response) -> Iterator[Event]:
        for line in _lines(response):
            self.raw.append(line)
            if line.startswith("data: ") and line != "data: [DONE]":
                yield orjson.loads(line.removeprefix("data: "))

    def _pieces(self, response: httpx2.Response, check: Callable[[Event], None]) -> Iterator[Event]:
        for piece in self._read(response):
            if "error" not in piece or check is not check_chunk:
                check(piece)
            yield piece

    def _checked(self, response: httpx2.Response, retrieve: Retrieve) -> Iterator[Event]:
        events, seen = [], []
        for event in self._read(response):
            seen.append(check_event(event))
            events.append(copy.deepcopy(event))
            yield event
        check_stream(events, seen, retrieve)


def _lines(response: httpx2.Response) -> Iterator[str]:
    # Not `iter_lines`, which also splits at U+2028.
    rest = b""
    for piece in response.iter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        yield from (line.decode() for line in lines)
    assert not rest, f"the stream ends in the middle of a line: {rest!r}"


class Api:
    """Client of one web process with one API key."""

    def __init__(self, http: httpx2.Client, *, url: str, caller: Caller | None = None, secret: str = "") -> None:
        self._http = http
        self._url = f"{url}/v1"
        self._caller = caller
        secret = caller.secret if caller else secret
        self.headers = {"Authorization": f"Bearer {secret}"} if secret else {}

    @property
    def caller(self) -> Caller:
        """The team and key of the client."""
        assert self._caller is not None
        return self._caller

    def request(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """Send a request. `path` is below `/v1`."""
        headers = {**self.headers, **options.pop("headers", {})}
        answer = self._http.request(method, self._url + path, headers=headers, **options)
        path = path.partition("?")[0]
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            LiveStream(answer, check=self._check_of(path), retrieve=self._retrieve(path, options.get("params"))).rest()
        else:
            check_answer(method, path, answer)
        return answer

    def _retrieve(self, path: str, query: Mapping[str, Any] | None = None) -> Retrieve | None:
        include = {name: value for name, value in (query or {}).items() if name in {"include", "include[]"}}
        return partial(self.stored, **include) if path.startswith("/responses") else None

    @staticmethod
    def _check_of(path: str) -> Callable[[Event], None]:
        return check_message_event if path.startswith("/messages") else check_chunk

    def stored(self, response_id: str, **include: Any) -> dict[str, Any] | None:
        """Return a stored response, or None if it does not exist for this key."""
        answer = self.get(f"/responses/{response_id}", **include)
        return answer.json() if answer.status_code == 200 else None

    def get(self, path: str, **query: Any) -> httpx2.Response:
        """Send a GET request."""
        return self.request("GET", path, params=query or None)

    def post(self, path: str, body: Any, headers: Mapping[str, str | bytes] | None = None) -> httpx2.Response:
        """Send a POST request. Bodies other than bytes are encoded as JSON."""
        raw = body if isinstance(body, bytes) else orjson.dumps(body)
        return self.request("POST", path, content=raw, headers={"Content-Type": "application/json", **(headers or {})})

    def delete(self, path: str) -> httpx2.Response:
        """Send a DELETE request."""
        return self.request("DELETE", path)

    def create(self, **body: Any) -> dict[str, Any]:
        """Create a response without streaming."""
        return ok(self.post("/responses", body))

    def retrieve(self, response_id: str) -> dict[str, Any]:
        """Return a stored response."""
        return ok(self.get(f"/responses/{response_id}"))

    def input_items(self, response_id: str, **query: Any) -> list[dict[str, Any]]:
        """Return the input items of a response, oldest first."""
        found: list[dict[str, Any]] = ok(self.get(f"/responses/{response_id}/input_items", order="asc", **query))[
            "data"
        ]
        return found

    @contextmanager
    def stream(self, path: str = "/responses", **body: Any) -> Iterator[LiveStream]:
        """Open a stream. Leaving the block early disconnects the client."""
        headers = {**self.headers, "Content-Type": "application/json"}
        raw = orjson.dumps({"stream": True, **body})
        with self._http.stream("POST", self._url + path, content=raw, headers=headers) as response:
            if response.status_code != 200:
                raise AssertionError(f"{response.status_code}: {response.read()!r}")
            yield LiveStream(response, check=self._check_of(path), retrieve=self._retrieve(path))

    @contextmanager
    def open(self, path: str, body: dict[str, Any]) -> Iterator[None]:
        """Send a POST request without reading the response. Leaving the block disconnects the client."""
        host, port = self._url.removeprefix("http://").removesuffix("/v1").split(":")
        raw = orjson.dumps(body)
        headers = {**self.headers, "Host": host, "Content-Type": "application/json", "Content-Length": str(len(raw))}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        with socket.create_connection((host, int(port)), timeout=HANGS_AFTER) as peer:
            peer.sendall(f"POST /v1{path} HTTP/1.1\r\n{head}\r\n".encode() + raw)
            yield

    @contextmanager
    def follow(self, response_id: str, **query: Any) -> Iterator[LiveStream]:
        """Stream the events of a response, first from its log and then live."""
        url = f"{self._url}/responses/{response_id}"
        with self._http.stream("GET", url, params={"stream": "true", **query}, headers=self.headers) as response:
            assert response.status_code == 200, response.read()
            yield LiveStream(response, retrieve=self.stored)

    def events(self, **body: Any) -> list[Event]:
        """Create a streamed response and return all events."""
        with self.stream(**body) as live:
            return live.rest()


MakeApi = Callable[..., Api]


def ok(response: httpx2.Response) -> dict[str, Any]:
    """Return the body of a response that must be a 200."""
    assert response.status_code == 200, f"{response.status_code}: {response.text}"
    body: dict[str, Any] = response.json()
    return body


def error(response: httpx2.Response) -> tuple[int, str | None, str | None]:
    """Return status, param and code of a response that must be an error in OpenAI's format."""
    assert response.headers["content-type"] == "application/json", response.text
    assert response.headers["x-request-id"].startswith("req_")
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["message"], str)
    assert body["error"]["message"]
    return response.status_code, body["error"]["param"], body["error"]["code"]
