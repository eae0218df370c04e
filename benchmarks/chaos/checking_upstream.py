"""An upstream that checks its input, keeps books, and can be made to fail.

Every message of a user names its request as `TEAM.THREAD.NUMBER`; a thread is a chain, a conversation or a single
request. The answers of the upstream follow from the name, so it can check that a history is complete, in order and of
one thread, and clients can check their answers.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Literal

import orjson
from aiohttp import web
from typing_extensions import override

from benchmarks.books.upstream import (
    LABEL,
    BookkeepingUpstream,
    Line,
    application,
    chunk,
    hang_up,
    send_completion,
    text_of,
    usage_of,
)

Fault = Literal["", "refuses", "hangs", "cuts", "answers 500"]
SECRET = 6 * 7
PROGRAM = f"print('{SECRET}')"
LOOKED_UP = "Nothing there."
_WORDS = ("harbour", "lantern", "gravel", "umbrella", "seven", "quietly", "northern", "postcard")
_TOKENS = 24
_PACED_SECONDS = 0.05


def answer_to(name: str, *, words: int = _TOKENS) -> str:
    """Return the text of the model for a request: its name and this many words."""
    return f"{name}: {' '.join(Random(name).choices(_WORDS, k=words))}"


def thread_of(name: str) -> tuple[str, int]:
    """Return the thread of a request and its number in it."""
    thread, _, number = name.rpartition(".")
    return thread, int(number)


def _waiting_connections(listener: socket.socket) -> int:
    """Return how many connections the kernel has accepted for a listener and the program has not (`tcpi_unacked`)."""
    state = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return int(struct.unpack_from("=I", state, 24)[0])


class CheckingUpstream(BookkeepingUpstream):
    """The upstream. `wrong` contains the invalid inputs, `fault` is the current way to fail."""

    def __init__(self, *, seed: int) -> None:
        super().__init__(seed=seed)
        self.wrong: list[str] = []
        self.fault: Fault = ""
        self._works = asyncio.Event()
        self._works.set()
        self._runner: web.AppRunner | None = None
        self._listener: socket.socket | None = None
        self._port = 0

    # -- faults --------------------------------------------------------------------------------------------------------

    async def fail(self, fault: Fault, *, seconds: float) -> None:
        """Fail for some seconds."""
        self.fault = fault
        self._works.clear()
        if fault == "refuses":
            await self.stop_listening()
        try:
            await asyncio.sleep(seconds)
        finally:
            self.fault = ""
            self._works.set()
            if fault == "refuses":
                await self.listen()

    async def listen(self, runner: web.AppRunner | None = None) -> None:
        """Accept connections, always on the same port."""
        self._runner = runner or self._runner
        if self._runner is None:
            raise RuntimeError("There is no server yet.")
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        await web.SockSite(self._runner, self._listener).start()

    async def stop_listening(self) -> None:
        """Refuse connections; those that are open or wait to be accepted stay."""
        if self._runner is None or self._listener is None:
            return
        # Closing it resets the connections in its queue, whose requests would be missing in the books.
        while _waiting_connections(self._listener):  # noqa: ASYNC110 - the kernel has no event for it
            await asyncio.sleep(0)
        for site in list(self._runner.sites):
            await site.stop()

    # -- the model -----------------------------------------------------------------------------------------------------

    @override
    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer a chat completion."""
        body = orjson.loads(await request.read())
        messages: Sequence[Mapping[str, Any]] = body["messages"]
        name, *options = [text_of(message) for message in messages if message["role"] == "user"][-1].split(" ")
        line, chance = self._line(name, "/chat/completions")
        self._decide(line, chance)
        self.wrong += [f"{name}: {fault}" for fault in faults_of(messages)]
        if self.fault == "answers 500":
            line.state = "refused"
            error = {"error": {"message": "Scripted.", "code": "scripted"}}
            return web.json_response(error, status=500, headers={"x-request-id": line.id})
        if self.fault in {"refuses", "hangs"}:
            line.state = "dropped"
            await self._works.wait()
            return hang_up(request)
        calls = [] if messages[-1]["role"] == "tool" else _calls(name, options)
        try:
            if body.get("stream"):
                return await self._stream_answer(request, line, name, calls, paced="paced" in options)
            return await send_completion(request, line, answer_to(name), calls, cuts=self.fault == "cuts")
        except (ConnectionResetError, asyncio.CancelledError):
            line.state = "left" if line.state == "open" else line.state
            raise

    @override
    def _fails(self, line: Line, chance: Random) -> bool:
        if self.fault == "answers 500":
            line.state = "refused"
        elif self.fault:
            line.state = "dropped"
        return bool(self.fault)

    @override
    async def _answer(
        self, request: web.Request, line: Line, chance: Random, content: bytes, *, content_type: str
    ) -> web.StreamResponse:
        if self.fault in {"refuses", "hangs"}:
            line.state = "dropped"
            await self._works.wait()
            return hang_up(request)
        return await super()._answer(request, line, chance, content, content_type=content_type)

    async def _stream_answer(
        self, request: web.Request, line: Line, name: str, calls: Sequence[Mapping[str, Any]], *, paced: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-request-id": line.id})
        await response.prepare(request)
        words = answer_to(name).split(" ")
        chunks = [] if calls else [chunk(line, {"content": word}) for word in (words[0], *(f" {w}" for w in words[1:]))]
        if calls:
            chunks.append(chunk(line, {"tool_calls": [{**call, "index": n} for n, call in enumerate(calls)]}))
        cuts = self.fault == "cuts"
        pieces = [b"data: %b\n\n" % orjson.dumps(piece) for piece in chunks[: len(chunks) // 2 if cuts else None]]
        if not cuts:
            finish = chunk(line, {}, finish="tool_calls" if calls else "stop")
            last = {**chunk(line, {}), "choices": [], "usage": usage_of(line)}
            pieces += [b"data: %b\n\ndata: %b\n\n" % (orjson.dumps(finish), orjson.dumps(last))]
        for piece in pieces if paced else [b"".join(pieces)]:
            await response.write(piece)
            if paced:
                await asyncio.sleep(_PACED_SECONDS)
            if self.fault == "cuts":
                cuts = True
                break
            if self.fault == "hangs":
                await self._works.wait()
        if cuts:
            line.state = "cut"
            return hang_up(request, response)
        await response.write(b"data: [DONE]\n\n")
        line.state = "sent"
        await response.write_eof()
        return response


def _calls(name: str, options: Sequence[str]) -> list[dict[str, Any]]:
    functions = {
        "look": (f"{LABEL}__look", {"run": name, "turn": 0}),
        "code": ("code_interpreter", {"code": PROGRAM}),
    }
    return [
        {
            "id": f"call_{name}",
            "type": "function",
            "function": {"name": functions[option][0], "arguments": orjson.dumps(functions[option][1]).decode()},
        }
        for option in options
        if option in functions
    ]


def faults_of(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the defects of a history: missing or changed messages, and messages of another thread.

    A conversation may contain a request twice if its client has repeated it, and parts of interrupted answers.
    """
    faults: list[str] = []
    first, number, answers = "", 0, [""]
    for message in messages:
        text = text_of(message)
        if message["role"] == "user":
            thread, at = thread_of(text.split(" ")[0])
            first = first or thread
            if thread != first:
                faults.append(f"it has read {text!r} of another thread")
            elif at not in {number, number + 1}:
                faults.append(f"it has read {text!r} after number {number}")
            elif at == number + 1 and answer_to(f"{first}.{number}") not in answers and number:
                faults.append(f"no complete answer to number {number} is before {text!r}")
            if at != number:
                number, answers = at, []
        elif message["role"] == "assistant" and text:
            answers.append(text)
            if not answer_to(f"{first}.{number}").startswith(text):
                faults.append(f"it has read {text!r} as the answer to number {number}")
    return faults


@asynccontextmanager
async def running_checking_upstream(*, seed: int) -> AsyncIterator[CheckingUpstream]:
    """Run the server on the current event loop and a free port."""
    upstream = CheckingUpstream(seed=seed)
    runner = web.AppRunner(application(upstream), handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await upstream.listen(runner)
        yield upstream
    finally:
        await runner.cleanup()
