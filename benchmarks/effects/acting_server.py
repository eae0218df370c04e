"""A scripted model and the MCP server whose tools it calls. The tools act, and their answers can be held back.

The tool `act_once` honours effect ids: it acts once for all calls with the same id. The tool `act` does not.
"""

import asyncio
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web

LABEL = "box"
ONCE, ALWAYS = "act_once", "act"
ACTED = "It has acted."
# The names that docs/howto/mcp.md gives.
EFFECT_ID = "responses-platform/effect-id"
_HONOURS = "responses-platform/honours-effect-id"
_NO_SUCH_METHOD = -32601
Body = dict[str, Any]


class ActingServer:
    """Both servers on one port.

    `ids` are the effect ids of each run's calls, `effects` the number of its effects. `outputs` are the outputs of
    calls in the latest request of each conversation, by the name of its run.
    """

    def __init__(self) -> None:
        self.url = ""
        self.ids: defaultdict[str, list[str]] = defaultdict(list)
        self.effects: Counter[str] = Counter()
        self.outputs: dict[str, list[str]] = {}
        self._seen: set[str] = set()
        self._acted: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._released: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def acted(self, run: str) -> None:
        """Wait until the tool of a run has acted."""
        await self._acted[run].wait()

    def release(self, run: str) -> None:
        """Send the answer of a run's tool, and do not hold back later ones."""
        self._released[run].set()

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer a chat completion: with a call in the first turn of a run, and then with a text."""
        body = orjson.loads(await request.read())
        messages = body["messages"]
        run, tool = next(str(message["content"]) for message in messages if message["role"] == "user").split(" ")
        self.outputs[run] = [str(message["content"]) for message in messages if message["role"] == "tool"]
        message: Body = {"role": "assistant", "content": "Done."}
        finish = "stop"
        if body.get("tools") and not self.outputs[run]:
            function = {"name": f"{LABEL}__{tool}", "arguments": orjson.dumps({"run": run}).decode()}
            call = {"index": 0, "id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}
            message, finish = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
        head = {"id": "chatcmpl-1", "created": 1_700_000_000, "model": "m"}
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": finish}
            return web.json_response({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        choice = {"index": 0, "delta": message, "finish_reason": finish}
        document = {**head, "object": "chat.completion.chunk", "choices": [choice], "usage": usage}
        await response.write(b"data: %b\n\ndata: [DONE]\n\n" % orjson.dumps(document))
        return response

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
                    "serverInfo": {"name": "acting", "version": "1"},
                }
            case "tools/list", _:
                schema = {"type": "object", "properties": {"run": {"type": "string"}}}
                act = {"name": ALWAYS, "description": "To act.", "inputSchema": schema}
                result = {"tools": [act, {**act, "name": ONCE, "_meta": {_HONOURS: True}}]}
            case "tools/call", {"name": name, "arguments": {"run": run}, "_meta": meta}:
                await self._act(run, meta[EFFECT_ID], honours_id=name == ONCE)
                result = {"content": [{"type": "text", "text": ACTED}], "isError": False}
            case "ping", _:
                result = {}
            case method, _:
                error = {"code": _NO_SUCH_METHOD, "message": f"There is no method {method}."}
                return web.json_response({**head, "error": error})
        return web.json_response({**head, "result": result})

    async def _act(self, run: str, effect_id: str, *, honours_id: bool) -> None:
        self.ids[run].append(effect_id)
        if not honours_id or effect_id not in self._seen:
            self.effects[run] += 1
        self._seen.add(effect_id)
        self._acted[run].set()
        await self._released[run].wait()


def application(server: ActingServer) -> web.Application:
    """Return the application of both servers."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.complete)
    app.router.add_post("/mcp", server.serve)
    return app


@asynccontextmanager
async def running_server() -> AsyncIterator[ActingServer]:
    """Run the servers on the current event loop and a free port."""
    server = ActingServer()
    # The effects of a killed client's calls are not undone.
    runner = web.AppRunner(application(server), handler_cancellation=False, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield server
    finally:
        await runner.cleanup()
