"""An image generation server over real HTTP with scripted answers, which records its requests."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from tests.support.aiohttp_server import serving
from tests.support.upstream import Gate

USAGE = {"input_tokens": 7, "output_tokens": 40, "total_tokens": 47}


@dataclass
class Asked:
    """A request: path below /v1, fields of the body, files of the form as field, type and bytes, and the headers."""

    path: str
    fields: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    files: list[tuple[str, str, bytes]] = field(default_factory=list)


@dataclass
class ImageServer:
    """The server. `answers` are used one after the other: a JSON body, or events and gates of a stream."""

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    answers: list[tuple[int, Any]] = field(default_factory=list)

    def draw(self, content: str = "UE5H", **fields: Any) -> None:
        """Answer the next call with this image."""
        body = {"created": 1, "data": [{"b64_json": content}], "usage": USAGE, **fields}
        self.answers.append((200, body))

    def stream(self, *pieces: Any) -> None:
        """Answer the next call with these events. A `Gate` delays those after it."""
        self.answers.append((200, list(pieces)))

    def cut(self) -> None:
        """Close the connection of the next call once the request has arrived."""
        self.answers.append((0, None))

    def refuse(self, status: int, message: str, **fields: Any) -> None:
        """Answer the next call with an error."""
        self.answers.append((status, {"error": {"message": message, "type": "image_generation_user_error", **fields}}))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Handle a call."""
        self.asked.append(await _read(request))
        status, content = self.answers.pop(0)
        if content is None and request.transport:
            request.transport.abort()
        if isinstance(content, dict):
            return web.json_response(content, status=status, headers={"x-should-retry": "false"})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await _send(response, content)
        return response


async def _read(request: web.Request) -> Asked:
    path = request.path.removeprefix("/v1")
    if request.content_type != "multipart/form-data":
        return Asked(path=path, fields=orjson.loads(await request.read()), headers=request.headers)
    asked = Asked(path=path, fields={}, headers=request.headers)
    for name, value in (await request.post()).items():
        if isinstance(value, web.FileField):
            asked.files.append((name, value.content_type, value.file.read()))
        else:
            asked.fields[name] = value
    return asked


async def _send(response: web.StreamResponse, pieces: Sequence[Any]) -> None:
    for piece in pieces:
        if isinstance(piece, Gate):
            await piece.pass_through()
        else:
            await response.write(b"data: %b\n\n" % orjson.dumps(piece))


@contextmanager
def image_server() -> Iterator[ImageServer]:
    """Run the server. All scripted answers must be used."""
    server = ImageServer()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/images/generations", server.answer)
    app.router.add_post("/v1/images/edits", server.answer)
    with serving(app) as server.url:
        yield server
    assert server.answers == []
