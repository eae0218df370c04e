"""A chat-completions server over real HTTP with scripted answers.

A streamed answer of only chunks becomes one JSON document if the request is not streamed, as on real servers. A
`Script` belongs to one model name. It records every request, and fails the test if it is called more or less often than
scripted.
"""

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import orjson
from aiohttp import web

from gateway.chat.chunks import CompletionAccumulator
from tests.support.chunks import Chunk, calls, text
from tests.support.waiting import PATIENCE

WAIT_SECONDS = PATIENCE
_POLL_SECONDS = 0.003


class Gate:
    """A point in an answer where the server waits until the test calls `open`."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._opened = threading.Event()

    def open(self) -> None:
        """Let the answer continue."""
        self._opened.set()

    def wait_until_reached(self) -> None:
        """Wait until everything before the gate was sent."""
        assert self._reached.wait(WAIT_SECONDS), "the upstream has not reached the gate"

    async def pass_through(self) -> None:
        """Wait for `open`, on the server's side."""
        self._reached.set()
        while not self._opened.is_set():
            await asyncio.sleep(_POLL_SECONDS)


@dataclass(frozen=True)
class Cut:
    """Closes the connection."""


@dataclass(frozen=True)
class Pause:
    """Pauses the answer."""

    seconds: float


Piece = Chunk | bytes | Gate | Cut | Pause
"""A piece of an answer. Chunks become `data:` lines, bytes are sent unchanged."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer of the server.

    `done`: the stream ends with `[DONE]`. `delayed_head`: the status is not sent before the first bytes of the body.
    """

    pieces: Sequence[Piece] = ()
    status: int = 200
    content_type: str = "text/event-stream"
    headers: Mapping[str, str] = field(default_factory=dict)
    done: bool = True
    delayed_head: bool = False


def stream(*pieces: Piece, done: bool = True, headers: Mapping[str, str] | None = None) -> Answer:
    """Return a streamed answer."""
    return Answer(pieces=pieces, done=done, headers=headers or {})


def whole(body: Chunk | bytes, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Return an answer with a single JSON body."""
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    return Answer(pieces=[raw], status=status, content_type="application/json", headers=headers or {}, done=False)


def refusal(status: int, message: str = "No.", *, headers: Mapping[str, str] | None = None) -> Answer:
    """Return an HTTP error that clients do not retry, unless `headers` allow it."""
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
    return whole(body, status=status, headers={"x-should-retry": "false", **(headers or {})})


@dataclass
class Received:
    """A received request. `closed` is set if the client disconnects early, `answered` after the whole answer.

    `body` has the fields of a form, as lists where there are several, and `files` its files: name, type and content.
    """

    body: dict[str, Any]
    headers: Mapping[str, str]
    files: dict[str, tuple[str, str, bytes]] = field(default_factory=dict)
    closed: threading.Event = field(default_factory=threading.Event)
    answered: threading.Event = field(default_factory=threading.Event)

    def was_closed(self, *, within: float = PATIENCE) -> bool:
        """Return whether the client disconnects within a number of seconds."""
        return self.closed.wait(within)


class Script:
    """The answers for one model name. `only_streams`: chunks are streamed even if the request asks for a document."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.only_streams = False
        self.received: list[Received] = []
        self._answers: list[Answer] = []
        self._always: Callable[[dict[str, Any]], Answer] | None = None
        self._unexpected = 0
        self._changed = threading.Condition()

    def then(self, *answers: Answer) -> "Script":
        """Add answers for the next calls."""
        self._answers += answers
        return self

    def always(self, answer: Answer) -> "Script":
        """Set the answer for all further calls."""
        return self.by_request(lambda _: answer)

    def by_request(self, choose: Callable[[dict[str, Any]], Answer]) -> "Script":
        """Set a function that returns the answer for all further calls, from their bodies."""
        self._always = choose
        return self

    def say(self, *pieces: str, **options: Any) -> "Script":
        """Answer the next call with this text, a chunk for each piece."""
        return self.then(stream(*text(*pieces, **options)))

    def call(self, **functions: str) -> "Script":
        """Answer the next call with calls of these functions. Values are arguments as JSON."""
        return self.then(stream(*calls(**functions)))

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The body of each request."""
        return [received.body for received in self.received]

    @property
    def messages(self) -> list[list[dict[str, Any]]]:
        """The messages of each request."""
        return [body["messages"] for body in self.bodies]

    def wait_for_call(self, number: int = 0) -> Received:
        """Wait for the call with this number and return it."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.received) > number, WAIT_SECONDS), "no call has come"
        return self.received[number]

    def take(self, received: Received) -> Answer:
        """Record a request and return its answer, on the server's side."""
        with self._changed:
            self.received.append(received)
            self._changed.notify_all()
            if self._answers:
                return self._answers.pop(0)
            if self._always is not None:
                return self._always(received.body)
            self._unexpected += 1
        return refusal(500, "The test did not expect this call.")

    def verify(self) -> None:
        """Assert that there were no unexpected calls and no unused answers."""
        assert self._unexpected == 0, f"{self._unexpected} calls of {self.model} were not expected"
        assert not self._answers, f"{len(self._answers)} answers of {self.model} were never asked for"


class ScriptedUpstream:
    """The server. Model names without a script do not exist. `listed` are the names in its list of models."""

    def __init__(self) -> None:
        self.url = ""
        self.listed: list[str] = []
        self._scripts: dict[str, Script] = {}

    @contextmanager
    def script(self, model: str | None = None) -> Iterator[Script]:
        """Create a script, by default with a unique model name. It is verified if the block ends without an error."""
        script = Script(model or f"scripted-{uuid.uuid4().hex[:12]}")
        self._scripts[script.model] = script
        try:
            yield script
        finally:
            del self._scripts[script.model]
        script.verify()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Handle a request."""
        received = await _read(request)
        script = self._scripts.get(received.body.get("model", ""))
        answer = script.take(received) if script else refusal(404, "The model does not exist.")
        if received.body.get("stream") is False and not (script and script.only_streams):
            answer = _unstreamed(answer)
        headers = {"content-type": answer.content_type, **answer.headers}
        response = web.StreamResponse(status=answer.status, headers=headers)
        try:
            if not answer.delayed_head:
                await response.prepare(request)
            await _send(request, response, answer)
            received.answered.set()
        except (asyncio.CancelledError, ConnectionResetError):
            received.closed.set()
            raise
        return response


def _unstreamed(answer: Answer) -> Answer:
    chunks = [piece for piece in answer.pieces if isinstance(piece, dict) and "choices" in piece]
    if answer.content_type != "text/event-stream" or not answer.done or len(chunks) < len(answer.pieces):
        return answer
    accumulator = CompletionAccumulator()
    for chunk in chunks:
        accumulator.add(chunk)
    return replace(whole(accumulator.completion(), headers=answer.headers), delayed_head=answer.delayed_head)


async def _read(request: web.Request) -> Received:
    if request.content_type != "multipart/form-data":
        return Received(body=orjson.loads(await request.read()), headers=dict(request.headers))
    received, form = Received(body={}, headers=dict(request.headers)), await request.post()
    for name in form:
        for value in form.getall(name):
            if isinstance(value, web.FileField):
                received.files[name] = (value.filename, value.content_type, value.file.read())
            elif name.endswith("[]"):
                received.body.setdefault(name, []).append(value)
            else:
                received.body[name] = value
    return received


async def _send(request: web.Request, response: web.StreamResponse, answer: Answer) -> None:
    for piece in answer.pieces:
        if isinstance(piece, bytes | dict) and not response.prepared:
            await response.prepare(request)
        match piece:
            case bytes():
                await response.write(piece)
            case dict():
                await response.write(b"data: %b\n\n" % orjson.dumps(piece))
            case Pause():
                await asyncio.sleep(piece.seconds)
            case Gate():
                await piece.pass_through()
            case Cut():
                if request.transport is not None:
                    request.transport.close()
                return
    if answer.done:
        await response.write(b"data: [DONE]\n\n")


@contextmanager
def running_upstream(*, path: str = "/v1/chat/completions", host: str = "127.0.0.1") -> Iterator[ScriptedUpstream]:
    """Run the server in a separate thread on a free port. `path` is the path that it serves."""
    upstream, loop = ScriptedUpstream(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="scripted-upstream", daemon=True)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(_serve(upstream, path, host), loop).result(WAIT_SECONDS)
    try:
        yield upstream
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(WAIT_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_SECONDS)
        loop.close()


async def _list(upstream: ScriptedUpstream, _: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in upstream.listed]})


async def _serve(upstream: ScriptedUpstream, path: str, host: str) -> web.AppRunner:
    app = web.Application(client_max_size=128 * 1024 * 1024)
    app.router.add_post(path, upstream.answer)
    app.router.add_get("/v1/models", partial(_list, upstream))
    # Without `handler_cancellation`, handlers do not notice disconnects.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, host, 0)
    await site.start()
    upstream.url = f"http://{host}:{runner.addresses[0][1]}/v1"
    return runner
