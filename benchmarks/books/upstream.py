"""A scripted upstream that keeps its own books: one line for each request, with its charge.

The answers follow from the seed, the run (a text in the request) and the number of the request within the run. An
answer is complete, an HTTP error, a connection that is closed before the answer, or interrupted. The upstream also
serves the MCP tools that its answers call, and acts as the search engine, which charges for each search. It shares no
code with the platform's calculation of costs.
"""

import asyncio
import base64
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from random import Random
from typing import Any

import orjson
from aiohttp import web

Body = dict[str, Any]
LABEL = "box"
REFUSAL = "Not now."
TIERS = ("default", "flex", "priority")
LONG_CONTEXT = 200_000
# Dollars per million tokens: input, cached input, cache writes, output. For contexts of more than `LONG_CONTEXT`
# tokens, the second row of a tier applies to the whole request.
PRICES: Mapping[str, Sequence[tuple[str, str, str, str]]] = {
    "default": (("1.25", "0.125", "1.5625", "10"), ("2.50", "0.25", "3.125", "15")),
    "flex": (("0.625", "0.0625", "0.78125", "5"), ("1.25", "0.125", "1.5625", "7.5")),
    "priority": (("2.5", "0.25", "3.125", "20"), ("5", "0.5", "6.25", "30")),
}
EMBEDDING_PRICE = "0.13"
IMAGE_PRICES = ("5", "40")
# Dollars per million characters of speech. For transcriptions: dollars per million tokens, or per second of audio.
SPEECH_PRICE = "15"
TRANSCRIPTION_PRICES = ("2.5", "10", "0.0001")
# Dollars per search.
SEARCH_PRICE = "0.0123456789"
_TURNS = 4
_PIECE_SECONDS = 0.02
_SILENT_SECONDS = 0.25
_NO_SUCH_METHOD = -32601
_WORDS = ("harbour", "lantern", "gravel", "umbrella", "seven", "quietly", "northern", "postcard")


@dataclass(kw_only=True)
class Line:
    """One request. `state` is its outcome, `tokens` and `cost` its charge.

    - "refused": answered with an HTTP error; nothing is charged.
    - "dropped": the connection was closed before the answer, for which it charges.
    - "cut": the answer broke off before its usage.
    - "sent": the answer was written completely.
    - "left": the client closed the connection before the end of the answer.
    - "open": the answer is not finished.
    """

    id: str
    run: str
    path: str
    number: int
    state: str = "open"
    tier: str = "default"
    input: int = 0
    cached: int = 0
    written: int = 0
    output: int = 0
    reasoning: int = 0
    cost: Decimal = Decimal(0)
    has_usage: bool = True

    @property
    def is_charged(self) -> bool:
        """True if the upstream charges for the request."""
        return self.state != "refused"

    def tokens(self) -> tuple[int, int, int, int, int]:
        """Return the tokens by kind, in the order of the usage records' columns."""
        return self.input, self.cached, self.written, self.output, self.reasoning


def charge(line: Line) -> Decimal:
    """Return the exact cost of a chat completion in dollars."""
    prices = PRICES[line.tier][line.input > LONG_CONTEXT]
    plain, cached, written, output = (Decimal(price) for price in prices)
    fresh = line.input - line.cached - line.written
    millionths = fresh * plain + line.cached * cached + line.written * written + line.output * output
    return _rounded(millionths.scaleb(-6))


def _rounded(dollars: Decimal) -> Decimal:
    # The books have ten decimal places, like the platform's.
    return dollars.quantize(Decimal("1e-10"), ROUND_HALF_EVEN)


class BookkeepingUpstream:
    """The servers on one port. `lines` are the books, `calls` the tool calls by run, `searches` the billed searches."""

    def __init__(self, *, seed: int) -> None:
        self.url = ""
        self.lines: list[Line] = []
        self.calls: Counter[str] = Counter()
        self.searches: Counter[str] = Counter()
        self._seed = seed
        self._numbers: Counter[str] = Counter()
        self._searched: Counter[str] = Counter()

    def _line(self, run: str, path: str) -> tuple[Line, Random]:
        number = self._numbers[run]
        self._numbers[run] += 1
        line = Line(id=f"up-{uuid.uuid4().hex}", run=run, path=path, number=number)
        self.lines.append(line)
        return line, Random(f"{self._seed}:{run}:{number}")

    @staticmethod
    def _decide(line: Line, chance: Random) -> None:
        """Decide the cost of a completion before its answer begins. It does not depend on how the answer ends."""
        line.tier = chance.choice(TIERS)
        line.input = chance.choice([chance.randrange(10, 2_000), chance.randrange(150_000, 260_000)])
        line.cached = chance.choice([0, chance.randrange(line.input)])
        line.written = chance.choice([0, chance.randrange(line.input - line.cached)])
        line.output = chance.randrange(1, 500)
        line.reasoning = chance.choice([0, chance.randrange(line.output)])
        line.cost = charge(line)

    # -- chat completions ----------------------------------------------------------------------------------------------

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer a chat completion, or fail in one of the ways above."""
        body = orjson.loads(await request.read())
        messages = body["messages"]
        run = next(text_of(message) for message in messages if message["role"] == "user").split(" ")[0]
        turn = sum(message["role"] == "assistant" for message in messages)
        line, chance = self._line(run, "/chat/completions")
        self._decide(line, chance)
        fate = chance.random()
        if fate < 0.04:
            line.state = "refused"
            status = chance.choice([400, 429, 500, 503])
            return web.json_response(
                {"error": {"message": REFUSAL, "code": "scripted"}}, status=status, headers={"x-request-id": line.id}
            )
        if fate < 0.07:
            line.state = "dropped"
            await asyncio.sleep(chance.random() * _SILENT_SECONDS)
            return hang_up(request)
        tools = [tool["function"]["name"] for tool in body.get("tools") or ()]
        calls = _calls(run, turn, tools, chance) if tools and turn < _TURNS - 1 and chance.random() < 0.75 else []
        texts = [f" {chance.choice(_WORDS)}" for _ in range(chance.randrange(1, 30))]
        line.has_usage = chance.random() > 0.03
        try:
            if not body.get("stream"):
                return await self._whole(request, line, chance, texts, calls, cuts=fate < 0.09)
            return await self._stream(request, line, chance, texts, calls, cuts=fate < 0.11)
        except (ConnectionResetError, asyncio.CancelledError):
            line.state = "left" if line.state == "open" else line.state
            raise

    async def _whole(
        self, request: web.Request, line: Line, chance: Random, texts: list[str], calls: list[Body], *, cuts: bool
    ) -> web.StreamResponse:
        await asyncio.sleep(chance.random() * _SILENT_SECONDS)
        return await send_completion(request, line, "".join(texts), calls, cuts=cuts)

    async def _stream(
        self, request: web.Request, line: Line, chance: Random, texts: list[str], calls: list[Body], *, cuts: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-request-id": line.id})
        await response.prepare(request)
        chunks = [chunk(line, {"content": text}) for text in texts]
        if calls:
            chunks.append(chunk(line, {"tool_calls": [{**call, "index": n} for n, call in enumerate(calls)]}))
        chunks.append(chunk(line, {}, finish="tool_calls" if calls else "stop"))
        if cuts:
            chunks = chunks[: chance.randrange(len(chunks))]
        elif line.has_usage:
            chunks.append({**chunk(line, {}), "choices": [], "usage": usage_of(line)})
        for each in chunks:
            await response.write(b"data: %b\n\n" % orjson.dumps(each))
            await asyncio.sleep(chance.random() * _PIECE_SECONDS)
        if cuts:
            line.state = "cut"
            return hang_up(request, response)
        await response.write(b"data: [DONE]\n\n")
        line.state = "sent"
        await response.write_eof()
        return response

    # -- embeddings, images, audio -------------------------------------------------------------------------------------

    async def embed(self, request: web.Request) -> web.StreamResponse:
        """Answer with a vector, or refuse."""
        body = orjson.loads(await request.read())
        line, chance = self._line(str(body["input"]).split(" ")[0], "/embeddings")
        line.input = chance.randrange(1, 5_000)
        line.cost = _rounded((line.input * Decimal(EMBEDDING_PRICE)).scaleb(-6))
        usage = {"prompt_tokens": line.input, "total_tokens": line.input}
        data = [{"object": "embedding", "index": 0, "embedding": [0.6, 0.8]}]
        return await self._document(request, line, chance, {"object": "list", "data": data, "usage": usage})

    async def draw(self, request: web.Request) -> web.StreamResponse:
        """Answer with an image, or refuse."""
        body = orjson.loads(await request.read())
        line, chance = self._line(str(body["prompt"]).split(" ")[0], "/images/generations")
        line.input, line.output = chance.randrange(1, 500), chance.randrange(1, 5_000)
        read, drawn = (Decimal(price) for price in IMAGE_PRICES)
        line.cost = _rounded((line.input * read + line.output * drawn).scaleb(-6))
        usage = {"input_tokens": line.input, "output_tokens": line.output, "total_tokens": line.input + line.output}
        data = [{"b64_json": base64.b64encode(str(body["prompt"]).encode()).decode()}]
        return await self._document(request, line, chance, {"created": 1, "data": data, "usage": usage})

    async def speak(self, request: web.Request) -> web.StreamResponse:
        """Answer with the bytes of speech, or refuse."""
        text = str(orjson.loads(await request.read())["input"])
        line, chance = self._line(text.split(" ", maxsplit=1)[0], "/audio/speech")
        line.cost = _rounded((len(text) * Decimal(SPEECH_PRICE)).scaleb(-6))
        return await self._answer(request, line, chance, spoken(text), content_type="audio/mpeg")

    async def transcribe(self, request: web.Request) -> web.StreamResponse:
        """Answer with a transcript and the tokens or seconds of the audio, or refuse."""
        form = await request.post()
        prompt = str(form["prompt"])
        line, chance = self._line(prompt.split(" ", maxsplit=1)[0], "/audio/transcriptions")
        heard, written, second = (Decimal(price) for price in TRANSCRIPTION_PRICES)
        usage: Body
        if chance.random() < 0.5:
            line.input, line.output = chance.randrange(1, 500), chance.randrange(1, 500)
            line.cost = _rounded((line.input * heard + line.output * written).scaleb(-6))
            usage = {"type": "tokens", "input_tokens": line.input, "output_tokens": line.output}
        else:
            seconds = chance.randrange(1, 600)
            line.cost = _rounded(seconds * second)
            usage = {"type": "duration", "seconds": seconds}
        return await self._document(request, line, chance, {"text": prompt, "usage": usage})

    async def _document(self, request: web.Request, line: Line, chance: Random, document: Body) -> web.StreamResponse:
        return await self._answer(request, line, chance, orjson.dumps(document), content_type="application/json")

    def _fails(self, line: Line, chance: Random) -> bool:
        """Return whether a request is to be refused or dropped, and record this in its line."""
        fate = chance.random()
        if fate < 0.1:
            line.state = "refused" if fate < 0.05 else "dropped"
        return fate < 0.1

    async def _answer(
        self, request: web.Request, line: Line, chance: Random, content: bytes, *, content_type: str
    ) -> web.StreamResponse:
        """Answer completely, refuse, or close the connection before the answer."""
        try:
            await asyncio.sleep(chance.random() * _SILENT_SECONDS)
            if self._fails(line, chance):
                if line.state == "dropped":
                    return hang_up(request)
                error = {"error": {"message": REFUSAL}}
                return web.json_response(error, status=503, headers={"x-request-id": line.id})
            response = web.Response(body=content, content_type=content_type, headers={"x-request-id": line.id})
            await response.prepare(request)
            await response.write_eof()
        except (ConnectionResetError, asyncio.CancelledError):
            line.state = "left" if line.state == "open" else line.state
            raise
        line.state = "sent"
        return response

    # -- tools ---------------------------------------------------------------------------------------------------------

    async def serve(self, request: web.Request) -> web.Response:
        """Answer a message of the MCP protocol."""
        asked = orjson.loads(await request.read())
        if "id" not in asked:
            return web.Response(status=202)
        head = {"jsonrpc": "2.0", "id": asked["id"]}
        match asked["method"], asked.get("params") or {}:
            case "initialize", parameters:
                result: Body = {
                    "protocolVersion": parameters["protocolVersion"],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "books", "version": "1"},
                }
            case "tools/list", _:
                schema = {"type": "object", "properties": {"run": {"type": "string"}}}
                look = {"name": "look", "description": "To look.", "inputSchema": schema}
                result = {"tools": [{**look, "annotations": {"readOnlyHint": True}}]}
            case "tools/call", {"arguments": {"run": run}}:
                self.calls[run] += 1
                await asyncio.sleep(Random(f"{run}:{self.calls[run]}").random() * 0.1)
                result = {"content": [{"type": "text", "text": "Nothing there."}], "isError": False}
            case "ping", _:
                result = {}
            case method, _:
                error = {"code": _NO_SUCH_METHOD, "message": f"There is no method {method}."}
                return web.json_response({**head, "error": error})
        return web.json_response({**head, "result": result})

    async def search(self, request: web.Request) -> web.Response:
        """Answer a search like SearXNG, or refuse it. Only refused searches are free."""
        run = request.query["q"].split(" ")[0]
        self._searched[run] += 1
        chance = Random(f"{self._seed}:{run}:search:{self._searched[run]}")
        if chance.random() < 0.1:
            return web.json_response({"error": REFUSAL}, status=503)
        self.searches[run] += 1
        await asyncio.sleep(chance.random() * _SILENT_SECONDS)
        return web.json_response({"results": [{"url": f"{self.url}/page", "title": "News", "content": "None."}]})


def spoken(text: str) -> bytes:
    """Return the speech of a text."""
    return Random(text).randbytes(100 * len(text))


def hang_up(request: web.Request, response: web.StreamResponse | None = None) -> web.StreamResponse:
    """Close the connection after the written data."""
    if request.transport is not None:
        # Sends the written data first, unlike `abort`.
        request.transport.close()
    return response or web.Response()


async def send_completion(
    request: web.Request, line: Line, text: str, calls: Sequence[Mapping[str, Any]], *, cuts: bool
) -> web.StreamResponse:
    """Answer with a completion as one document, with its usage if the line has one, or with the first half of it."""
    message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    usage = {"usage": usage_of(line)} if line.has_usage else {}
    document = {**HEAD, "object": "chat.completion", "choices": [choice], "service_tier": line.tier, **usage}
    content = orjson.dumps(document)
    response = web.StreamResponse(headers={"content-type": "application/json", "x-request-id": line.id})
    response.content_length = len(content)
    await response.prepare(request)
    if cuts:
        line.state = "cut"
        await response.write(content[: len(content) // 2])
        return hang_up(request, response)
    await response.write(content)
    line.state = "sent"
    await response.write_eof()
    return response


HEAD = {"id": "chatcmpl-1", "created": 1_700_000_000, "model": "m"}


def chunk(line: Line, delta: Body, *, finish: str | None = None) -> Body:
    """Return a chunk of a stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {**HEAD, "object": "chat.completion.chunk", "choices": [choice], "service_tier": line.tier}


def usage_of(line: Line) -> Body:
    """Return the usage that is reported for a request."""
    return {
        "prompt_tokens": line.input,
        "completion_tokens": line.output,
        "total_tokens": line.input + line.output,
        "prompt_tokens_details": {"cached_tokens": line.cached, "cache_write_tokens": line.written},
        "completion_tokens_details": {"reasoning_tokens": line.reasoning},
    }


def _calls(run: str, turn: int, tools: Sequence[str], chance: Random) -> list[Body]:
    arguments = {f"{LABEL}__look": {"run": run, "turn": turn}, "web_search": {"queries": [f"{run} news"]}}
    known = [name for name in tools if name in arguments]
    calls: list[Body] = []
    for _ in range(chance.randrange(1, 4) if known else 0):
        name = chance.choice(known)
        function = {"name": name, "arguments": orjson.dumps(arguments[name]).decode()}
        call_id = f"call_{uuid.UUID(int=chance.getrandbits(128)).hex}"
        calls.append({"id": call_id, "type": "function", "function": function})
    return calls


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def application(upstream: BookkeepingUpstream) -> web.Application:
    """Return the application with the upstream's endpoints."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", upstream.complete)
    app.router.add_post("/v1/embeddings", upstream.embed)
    app.router.add_post("/v1/images/generations", upstream.draw)
    app.router.add_post("/v1/audio/speech", upstream.speak)
    app.router.add_post("/v1/audio/transcriptions", upstream.transcribe)
    app.router.add_post("/mcp", upstream.serve)
    app.router.add_get("/search", upstream.search)
    return app


@asynccontextmanager
async def running_upstream(*, seed: int) -> AsyncIterator[BookkeepingUpstream]:
    """Run the servers on the current event loop and a free port."""
    upstream = BookkeepingUpstream(seed=seed)
    runner = web.AppRunner(application(upstream), handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        upstream.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield upstream
    finally:
        await runner.cleanup()
