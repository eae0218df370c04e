"""The two targets of every cell: a server that fails as the cell's case says, and a healthy one. Both keep books.

They share a port; the path names the cell and the target. The answer to a request follows from its name, which is the
first word of its input, so that lost, doubled and foreign text is found by comparing.
"""

import asyncio
import socket
import struct
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any

import orjson
from aiohttp import web

from benchmarks.books.upstream import Body, Line, chunk, hang_up, send_completion, text_of, usage_of
from benchmarks.chaos.checking_upstream import answer_to
from benchmarks.failover.cases import EMBEDDINGS, Cell, Fault, Replica

TARGETS = ("primary", "replica")
PRICES: Mapping[str, Mapping[str, str]] = {
    "primary": {"input": "1.25", "output": "10"},
    "replica": {"input": "2.5", "output": "15"},
}
"""Dollars per million tokens."""
WORDS = 60
_LATE_SECONDS = 20
# Enough for the platform to forward the text before the connection breaks.
_BEFORE_BREAK_SECONDS = 0.3
# Pause after each word of another text, so that it is noticed if the platform does not read it to its end.
_OTHER_PACE_SECONDS = 0.02
_ERRORS: Mapping[Fault, tuple[int, str, str]] = {
    Fault.LIMITED_ONCE: (429, "rate_limit_exceeded", "Rate limit reached."),
    Fault.LIMITED: (429, "rate_limit_exceeded", "Rate limit reached."),
    Fault.ERROR_ONCE: (500, "internal_error", "Scripted."),
    Fault.UNAVAILABLE: (503, "unavailable", "Scripted."),
    Fault.TOO_LONG: (400, "context_length_exceeded", "This model's maximum context length is 4096 tokens."),
    Fault.POLICY: (400, "content_filter", "The prompt was filtered."),
}
_RETRY_AFTER = {Fault.LIMITED_ONCE: "1", Fault.LIMITED: "30"}
_PREFIX_REFUSED = (400, "invalid_request", "The last message must not be of the assistant.")
_BROKEN = frozenset({Fault.CUT, Fault.STALLED})
_GARBAGE = b'data: {"choices": [{"index": 0, "delta": {"content": "gar\n\n'


@dataclass(kw_only=True)
class Attempt(Line):
    """A request to a target. `began` is monotonic, `prefix` the text that the answer had to continue."""

    cell: str
    target: str
    began: float
    streamed: bool
    prefix: str = ""


def text_for(name: str) -> str:
    """Return the primary's answer to a request."""
    return answer_to(name, words=WORDS)


def other_text_for(name: str) -> str:
    """Return the answer of a replica that writes another text."""
    return answer_to(f"other:{name}", words=WORDS)


def words_of(text: str) -> list[str]:
    """Return the tokens of a text. They begin with the space before a word."""
    first, *others = text.split(" ")
    return [word for word in (first, *(f" {word}" for word in others)) if word]


class FailingUpstream:
    """The server. `attempts` are the requests it has received; `is_dead` while targets with the fault DEAD reset."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.url = self.refusing_url = ""
        self.attempts: list[Attempt] = []
        self.is_dead = False
        self._cells = {cell.name: cell for cell in cells}
        self._seen: Counter[tuple[str, str]] = Counter()
        self._refusing: web.TCPSite | None = None
        self._fails = False

    async def listen(self, runner: web.AppRunner) -> None:
        """Accept connections on two free ports, one of which is for the targets that refuse them later."""
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self._refusing = web.TCPSite(runner, "127.0.0.1", 0)
        await self._refusing.start()
        self.url, self.refusing_url = (f"http://127.0.0.1:{address[1]}" for address in runner.addresses)

    async def begin_to_fail(self) -> None:
        """Begin to fail and to keep books. Until then all targets work, so that they can be added and tested."""
        self._fails = True
        self.attempts.clear()
        self._seen.clear()
        if self._refusing is not None:
            await self._refusing.stop()

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer a request, or fail."""
        body = orjson.loads(await request.read())
        cell, target = self._cells[request.match_info["cell"]], request.match_info["target"]
        attempt = self._begin(cell, target, body)
        fault = self._fault(cell, attempt) if self._fails and target == "primary" else None
        prefix = attempt.prefix
        if prefix and target == "replica" and cell.case.replica is Replica.REFUSES_PREFIX:
            return _refusal(attempt, *_PREFIX_REFUSED)
        try:
            match fault:
                case Fault.RESET | Fault.DEAD:
                    attempt.state = "dropped"
                    reset(request.transport)
                    return web.Response()
                case Fault.SILENT:
                    attempt.state = "dropped"
                    await asyncio.Event().wait()
                case Fault.POLICY if int(attempt.run.rpartition(".")[2]) % 2:
                    # The name that other servers have for it.
                    return _refusal(attempt, 400, "content_policy_violation", _ERRORS[fault][2])
                case Fault() if fault in _ERRORS:
                    return _refusal(attempt, *_ERRORS[fault], retry_after=_RETRY_AFTER.get(fault, ""))
            text = text_for(attempt.run)
            if target == "replica" and cell.case.replica is not Replica.REPRODUCES:
                text = text.removeprefix(prefix) if prefix and text.startswith(prefix) else other_text_for(attempt.run)
            attempt.output = 0 if cell.api == EMBEDDINGS else len(words_of(text))
            attempt.cost = cost_of(attempt, PRICES[attempt.target])
            if attempt.streamed:
                pace = _OTHER_PACE_SECONDS if text == other_text_for(attempt.run) else 0.0
                return await _stream(request, attempt, text, fault, pace=pace)
            if cell.api == EMBEDDINGS:
                return await _embedding(request, attempt, text, cuts=fault is Fault.CUT)
            return await _whole(request, attempt, text, fault)
        except (ConnectionResetError, asyncio.CancelledError) as left:
            attempt.state = "left" if attempt.state == "open" else attempt.state
            if isinstance(left, asyncio.CancelledError):
                raise
            return web.Response()

    def _begin(self, cell: Cell, target: str, body: Body) -> Attempt:
        messages = body.get("messages") or [{"role": "user", "content": body["input"]}]
        name = next(text_of(message) for message in messages if message["role"] == "user").split(" ")[0]
        attempt = Attempt(
            id=f"up-{uuid.uuid4().hex}",
            run=name,
            path="/chat/completions",
            number=self._seen[target, name],
            input=Random(name).randrange(10, 200),
            cell=cell.name,
            target=target,
            began=time.monotonic(),
            streamed=bool(body.get("stream")),
            prefix=text_of(messages[-1]) if messages[-1]["role"] == "assistant" else "",
        )
        # Charged even if the answer does not begin.
        attempt.output = 0 if cell.api == EMBEDDINGS else WORDS
        attempt.cost = cost_of(attempt, PRICES[attempt.target])
        self._seen[target, name] += 1
        self._seen[cell.name, target] += 1
        self.attempts.append(attempt)
        return attempt

    def _fault(self, cell: Cell, attempt: Attempt) -> Fault | None:
        """Return the fault of an attempt at the primary."""
        match cell.case.fault:
            case Fault.LIMITED_ONCE if attempt.number:
                return None
            # Once per cell: a failure of every request would be a reason to use the primary less.
            case Fault.ERROR_ONCE if self._seen[cell.name, "primary"] > 1:
                return None
            case Fault.DEAD if not self.is_dead:
                return None
            case fault:
                return fault

    def address(self, cell: Cell, target: str) -> str:
        """Return the base URL of a target."""
        is_refusing = target == "primary" and cell.case.fault is Fault.REFUSED
        return f"{self.refusing_url if is_refusing else self.url}/{cell.name}/{target}/v1"


def cost_of(attempt: Attempt, prices: Mapping[str, str]) -> Decimal:
    """Return what a target charges for an attempt, in dollars."""
    return (attempt.input * Decimal(prices["input"]) + attempt.output * Decimal(prices["output"])).scaleb(-6)


def _refusal(attempt: Attempt, status: int, code: str, message: str, *, retry_after: str = "") -> web.Response:
    attempt.state = "refused"
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    headers = {"x-request-id": attempt.id, **({"retry-after": retry_after} if retry_after else {})}
    return web.json_response({"error": error}, status=status, headers=headers)


def reset(transport: asyncio.Transport | None) -> None:
    """Close a connection with a reset instead of an orderly end."""
    if transport is not None:
        connection: socket.socket = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


async def _whole(request: web.Request, attempt: Attempt, text: str, fault: Fault | None) -> web.StreamResponse:
    match fault:
        case Fault.LATE:
            await asyncio.sleep(_LATE_SECONDS)
        case Fault.STALLED:
            headers = {"content-type": "application/json", "x-request-id": attempt.id}
            response = web.StreamResponse(headers=headers)
            await response.prepare(request)
            await response.write(b'{"id": "chatcmpl-1", "choices": [{"index": 0, "message": {"content": "')
            attempt.state = "cut"
            await asyncio.Event().wait()
        case Fault.INVALID_EVENT | Fault.LOST_EVENT:
            attempt.state = "cut"
            return web.Response(
                body=b'{"choices": [gar', content_type="application/json", headers={"x-request-id": attempt.id}
            )
    return await send_completion(request, attempt, text, [], cuts=fault is Fault.CUT)


async def _stream(
    request: web.Request, attempt: Attempt, text: str, fault: Fault | None, *, pace: float
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-request-id": attempt.id})
    await response.prepare(request)
    if fault is Fault.LATE:
        for _ in range(_LATE_SECONDS):
            # Servers with a queue keep the connection alive.
            await response.write(b": waiting\n\n")
            await asyncio.sleep(1)
    words = words_of(text)
    middle = Random(attempt.run).randrange(WORDS // 4, 3 * WORDS // 4)
    for place, event in enumerate(text_events(attempt, words)):
        if place == middle and fault in _BROKEN:
            attempt.state = "cut"
            await asyncio.sleep(_BEFORE_BREAK_SECONDS)
            if fault is Fault.CUT:
                return hang_up(request, response)
            await asyncio.Event().wait()
        if place == middle and fault in {Fault.INVALID_EVENT, Fault.LOST_EVENT}:
            await response.write(_GARBAGE)
            if fault is Fault.LOST_EVENT:
                continue
        await response.write(event)
        if pace:
            await asyncio.sleep(pace)
    for document in (
        chunk(attempt, {}, finish="stop"),
        {**chunk(attempt, {}), "choices": [], "usage": usage_of(attempt)},
    ):
        await response.write(b"data: %b\n\n" % orjson.dumps(document))
    attempt.state = "sent"
    if fault is Fault.CUT_AT_END:
        return hang_up(request, response)
    if fault is not Fault.NO_DONE:
        await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


async def _embedding(request: web.Request, attempt: Attempt, text: str, *, cuts: bool) -> web.StreamResponse:
    """Answer with the code points of the text as an embedding, or with the first half of the document."""
    usage = {"prompt_tokens": attempt.input, "total_tokens": attempt.input}
    data = [{"object": "embedding", "index": 0, "embedding": [float(ord(character)) for character in text]}]
    content = orjson.dumps({"object": "list", "data": data, "model": "m", "usage": usage})
    response = web.StreamResponse(headers={"content-type": "application/json", "x-request-id": attempt.id})
    response.content_length = len(content)
    await response.prepare(request)
    if cuts:
        attempt.state = "cut"
        await response.write(content[: len(content) // 2])
        return hang_up(request, response)
    await response.write(content)
    attempt.state = "sent"
    await response.write_eof()
    return response


def text_events(attempt: Attempt, words: Sequence[str]) -> Iterator[bytes]:
    """Yield an event for each word."""
    for word in words:
        yield b"data: %b\n\n" % orjson.dumps(chunk(attempt, {"content": word}))


async def _models(request: web.Request) -> web.Response:
    models: list[dict[str, Any]] = [{"id": request.match_info["cell"], "object": "model"}]
    return web.json_response({"object": "list", "data": models})


@asynccontextmanager
async def running_upstream(cells: Sequence[Cell]) -> AsyncIterator[FailingUpstream]:
    """Run the server on the current event loop and free ports."""
    upstream = FailingUpstream(cells)
    app = web.Application()
    for path in ("chat/completions", "embeddings"):
        app.router.add_post(f"/{{cell}}/{{target}}/v1/{path}", upstream.complete)
    app.router.add_get("/{cell}/{target}/v1/models", _models)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await upstream.listen(runner)
        yield upstream
    finally:
        await runner.cleanup()
