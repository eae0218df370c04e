"""Targets that are killed, revived and stalled at random times while they answer. They keep books.

Each target has a port of its own. A killed one breaks its open answers and refuses connections; a stalled one accepts
requests and sends nothing, in the middle of answers as well, until it runs again. All write the same text.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from random import Random

import orjson
from aiohttp import web

from benchmarks.books.upstream import Body, chunk, send_completion, text_of, usage_of
from benchmarks.failover.upstream import Attempt, cost_of, reset, text_events, text_for, words_of
from launcher.address import any_free_port

MODEL = "outages"
PRICES: Mapping[str, str] = {"input": "2.5", "output": "15"}
"""Dollars per million tokens, at every target."""
# Seconds between two words, so that an answer takes two and a half seconds.
_PACE = 0.04
_SHORTEST, _LONGEST = 1.0, 8.0
# The next target that lives has run for some time when the one before it may fail.
_OVERLAP = (3.0, 8.0)
_TURN = (8.0, 20.0)


class State(StrEnum):
    """The state of a target."""

    RUNNING = "running"
    KILLED = "killed"
    STALLED = "stalled"


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of a target's state, in seconds after the start."""

    at: float
    target: str
    state: State


def schedule(targets: Sequence[str], *, seconds: float, chance: Random) -> list[Change]:
    """Return changes in the order of their times. At each moment at least one target runs.

    The target that lives changes every 8 to 20 seconds. The others fail and return on their own.
    """
    changes: list[Change] = []
    kept: dict[str, list[tuple[float, float]]] = {target: [] for target in targets}
    at, alive = 0.0, chance.choice(targets)
    while at < seconds:
        until = at + chance.uniform(*_TURN)
        kept[alive].append((at, until + chance.uniform(*_OVERLAP)))
        at, alive = until, chance.choice([target for target in targets if target != alive])
    for target in targets:
        changes += _failures(target, kept[target], seconds=seconds, chance=chance)
    return sorted(changes, key=lambda change: change.at)


def _failures(target: str, kept: Sequence[tuple[float, float]], *, seconds: float, chance: Random) -> Iterator[Change]:
    """Yield the failures of a target outside of the times in which it has to live, and its returns."""
    at = chance.uniform(0, _SHORTEST)
    while at < seconds:
        began, ended = at, at + chance.uniform(_SHORTEST, _LONGEST)
        # It has run for a moment when it begins to be the one that lives.
        lives = next((span for span in kept if span[0] - _SHORTEST < ended and began < span[1]), None)
        if lives is not None:
            if lives[0] - _SHORTEST <= began:
                at = lives[1]
                continue
            ended = lives[0] - _SHORTEST
        yield Change(at=began, target=target, state=chance.choice([State.KILLED, State.STALLED]))
        yield Change(at=ended, target=target, state=State.RUNNING)
        at = ended + chance.uniform(_SHORTEST, _LONGEST)


class OutageTarget:
    """A target. `attempts` are the requests it has received; it continues an assistant message if it `takes_prefix`."""

    def __init__(self, name: str, *, takes_prefix: bool) -> None:
        self.name, self.takes_prefix = name, takes_prefix
        self.port = any_free_port()
        self.attempts: list[Attempt] = []
        self._runner = web.AppRunner(
            self._application(), handler_cancellation=True, access_log=None, shutdown_timeout=0.1
        )
        self._site: web.TCPSite | None = None
        self._runs = asyncio.Event()

    def _application(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        return app

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def set_state(self, state: State) -> None:
        """Run, stall, or break all connections and refuse new ones."""
        if state is State.RUNNING:
            self._runs.set()
        else:
            self._runs.clear()
        if state is State.KILLED and self._site is not None:
            await self._site.stop()
            self._site = None
            for connection in self._connections():
                reset(connection)
        elif state is not State.KILLED and self._site is None:
            self._site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
            await self._site.start()

    def _connections(self) -> list[asyncio.Transport]:
        server = self._runner.server
        return [] if server is None else [handler.transport for handler in server.connections if handler.transport]

    @asynccontextmanager
    async def running(self) -> AsyncIterator["OutageTarget"]:
        """Run the server on the current event loop."""
        await self._runner.setup()
        try:
            await self.set_state(State.RUNNING)
            yield self
        finally:
            await self._runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        attempt = self._begin(orjson.loads(await request.read()))
        sent = 0
        try:
            await self._runs.wait()
            if not attempt.streamed:
                self._charge(attempt, len(words_of(text_for(attempt.run))))
                await asyncio.sleep(_PACE * attempt.output)
                return await send_completion(request, attempt, text_for(attempt.run), [], cuts=False)
            response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-request-id": attempt.id})
            await response.prepare(request)
            words = words_of(text_for(attempt.run).removeprefix(attempt.prefix))
            for event in text_events(attempt, words):
                await self._runs.wait()
                await response.write(event)
                sent += 1
                await asyncio.sleep(_PACE)
            self._charge(attempt, sent)
            usage = {**chunk(attempt, {}), "choices": [], "usage": usage_of(attempt)}
            for document in (chunk(attempt, {}, finish="stop"), usage):
                await response.write(b"data: %b\n\n" % orjson.dumps(document))
            attempt.state = "sent"
            await response.write(b"data: [DONE]\n\n")
            await response.write_eof()
        except (ConnectionResetError, asyncio.CancelledError) as left:
            if attempt.state == "open":
                attempt.state = "cut" if sent else "dropped"
                self._charge(attempt, sent)
            if isinstance(left, asyncio.CancelledError):
                raise
            return web.Response()
        return response

    def _begin(self, body: Body) -> Attempt:
        messages = body["messages"]
        name, _, instruction = next(text_of(row) for row in messages if row["role"] == "user").partition(" ")
        attempt = Attempt(
            id=f"up-{uuid.uuid4().hex}",
            run=name,
            path="/chat/completions",
            number=len(self.attempts),
            input=len(f"{name} {instruction}") // 4,
            cell=MODEL,
            target=self.name,
            began=time.monotonic(),
            streamed=bool(body.get("stream")),
            prefix=text_of(messages[-1]) if messages[-1]["role"] == "assistant" else "",
        )
        self.attempts.append(attempt)
        return attempt

    @staticmethod
    def _charge(attempt: Attempt, words: int) -> None:
        attempt.output = words
        attempt.cost = cost_of(attempt, PRICES) if words else Decimal(0)


@asynccontextmanager
async def running_targets(names: Sequence[str]) -> AsyncIterator[list[OutageTarget]]:
    """Run targets, the second of which takes an assistant prefix."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(OutageTarget(name, takes_prefix=place == 1).running())
            for place, name in enumerate(names)
        ]
