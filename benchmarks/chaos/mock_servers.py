"""Mock model and MCP tools of the runs, which record all requests.

A run is identified by the text of its input. It calls four tools in three turns and ends in the fourth. The model
checks that its input is exactly the history of the run, and records truncated or invented messages.
"""

import asyncio
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import orjson
from aiohttp import web

Body = dict[str, Any]
LABEL = "box"
STEPS = ((0,), (1, 2), (3,))
"""The steps (tool calls) of each turn; the steps of one turn run in parallel."""
CALLS = sum(map(len, STEPS))
WRITE = "write"
_REPEATABLE = {"look": {"readOnlyHint": True}, "put": {"readOnlyHint": False, "idempotentHint": True}}
_TOOLS = {**_REPEATABLE, WRITE: {"readOnlyHint": False, "destructiveHint": True}}
_SCHEMA = {"type": "object", "properties": {"run": {"type": "string"}, "step": {"type": "integer"}}}
_LONGEST_SECONDS = 0.4
_PIECE_SECONDS = 0.03
_NO_SUCH_METHOD = -32601
_USAGE = {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}


def tool_of(run: str, step: int) -> str:
    """Return the tool that a run calls at a step. One call of every second run must not be repeated."""
    number = int(run.split("-")[1])
    if number % 2 and number // 2 % CALLS == step:
        return WRITE
    return ("look", "put")[step % 2]


def result_of(run: str, step: int) -> str:
    """Return the output of the tool."""
    return f"{run}: step {step} is done"


def words_of(run: str, turn: int) -> str:
    """Return the text of the model in a turn."""
    return f"Turn {turn} of {run}."


def read_by(run: str, turn: int) -> list[tuple[str, str]]:
    """Return the expected input of the model in a turn, as role and text."""
    read = [("user", run)]
    for before in range(turn):
        read.append(("assistant", words_of(run, before)))
        read += [("tool", result_of(run, step)) for step in STEPS[before]]
    return read


class MockServers:
    """Both servers on one port.

    `arrivals` has the times of each tool call by run and step, `asked` the number of requests by run and turn, `wrong`
    the invalid inputs. While `flowing` is not set, no request is answered.
    """

    def __init__(self) -> None:
        self.url = ""
        self.arrivals: dict[tuple[str, int], list[float]] = defaultdict(list)
        self.asked: Counter[tuple[str, int]] = Counter()
        self.wrong: list[str] = []
        self.flowing = asyncio.Event()
        self.flowing.set()
        self._random = Random(17)

    # -- the model -----------------------------------------------------------------------------------------------------

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer with a streamed chat completion."""
        run, turn = self.place(orjson.loads(await request.read())["messages"])
        self.asked[run, turn] += 1
        await self.flowing.wait()
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        for chunk in _chunks(run, turn):
            await answer.write(b"data: %b\n\n" % orjson.dumps(chunk))
            await asyncio.sleep(self._random.random() * _PIECE_SECONDS)
        await answer.write(b"data: [DONE]\n\n")
        return answer

    def place(self, messages: Sequence[Body]) -> tuple[str, int]:
        """Return the run and the number of the turn that is due."""
        read = [(message["role"], _text(message)) for message in messages if _text(message)]
        run = read[0][1]
        turn = sum(role == "assistant" for role, _ in read)
        if read != read_by(run, turn):
            self.wrong.append(f"{run}: the model has read {read}")
        return run, min(turn, len(STEPS))

    # -- the tools -----------------------------------------------------------------------------------------------------

    async def serve(self, request: web.Request) -> web.Response:
        """Answer a message of the MCP protocol with JSON."""
        asked = orjson.loads(await request.read())
        if "id" not in asked:
            return web.Response(status=202)
        head = {"jsonrpc": "2.0", "id": asked["id"]}
        match asked["method"], asked.get("params") or {}:
            case "initialize", parameters:
                result = {
                    "protocolVersion": parameters["protocolVersion"],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "counting", "version": "1"},
                }
            case "tools/list", _:
                result = {
                    "tools": [
                        {"name": name, "description": f"To {name}.", "inputSchema": _SCHEMA, "annotations": hints}
                        for name, hints in _TOOLS.items()
                    ]
                }
            case "tools/call", parameters:
                result = await self._call(parameters["name"], parameters["arguments"])
            case "ping", _:
                result = {}
            case method, _:
                error = {"code": _NO_SUCH_METHOD, "message": f"There is no method {method}."}
                return web.json_response({**head, "error": error})
        return web.json_response({**head, "result": result})

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> Body:
        run, step = arguments["run"], arguments["step"]
        self.arrivals[run, step].append(time.time())
        if name != tool_of(run, step):
            self.wrong.append(f"{run}: step {step} was {name}")
        await self.flowing.wait()
        await asyncio.sleep(self._random.random() * _LONGEST_SECONDS)
        return {"content": [{"type": "text", "text": result_of(run, step)}], "isError": False}


def _text(message: Body) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _chunks(run: str, turn: int) -> Iterator[Body]:
    for word in words_of(run, turn).split(" "):
        yield _chunk({"content": word if word.startswith("Turn") else f" {word}"})
    if turn == len(STEPS):
        yield _chunk({}, finish="stop")
    else:
        yield _chunk({"tool_calls": [_asked_for(run, step, index) for index, step in enumerate(STEPS[turn])]})
        yield _chunk({}, finish="tool_calls")
    yield {**_chunk({}), "choices": [], "usage": _USAGE}


def _chunk(delta: Body, *, finish: str | None = None) -> Body:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m"}
    return {**head, "choices": [choice]}


def _asked_for(run: str, step: int, index: int) -> Body:
    arguments = orjson.dumps({"run": run, "step": step}).decode()
    function = {"name": f"{LABEL}__{tool_of(run, step)}", "arguments": arguments}
    return {"index": index, "id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}


@asynccontextmanager
async def running_mock_servers() -> AsyncIterator[MockServers]:
    """Run both servers on the current event loop and a free port."""
    mocks = MockServers()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", mocks.complete)
    app.router.add_post("/mcp", mocks.serve)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        mocks.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield mocks
    finally:
        await runner.cleanup()
