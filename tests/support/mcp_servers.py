"""Real MCP servers, built with the official SDK and served over real sockets, which record their calls.

Every server has the same tools. `paged` lists 200 more, fifty on a page.
"""

import asyncio
import base64
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server import Server
from mcp.server.sse import SseServerTransport
from mcp.shared.exceptions import MCPError
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override

from tests.support.waiting import PATIENCE, eventually

PNG = b"\x89PNG\r\n\x1a\n" + b"\x00" * 24
LONG_TEXT = "0123456789" * 500_000
_SECONDS = PATIENCE
_NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a"]}
_EMPTY: dict[str, Any] = {"type": "object", "properties": {}}
_READS = types.ToolAnnotations(read_only_hint=True)
_WRITES = types.ToolAnnotations(read_only_hint=False, destructive_hint=True)


def _tool(name: str, description: str, schema: dict[str, Any], annotations: types.ToolAnnotations) -> types.Tool:
    return types.Tool(name=name, description=description, input_schema=schema, annotations=annotations)


_TOOLS = (
    _tool("add", "Add two numbers.", _NUMBERS, _READS),
    _tool("note", "Write something down.", _EMPTY, _WRITES),
    _tool("wait", "Answer when the test says so.", _EMPTY, _READS),
    _tool("meet", "Answer once two calls are here.", _EMPTY, _READS),
    _tool("fail", "Fail.", _EMPTY, _READS),
    _tool("refuse", "Answer with an error of the protocol.", _EMPTY, _READS),
    _tool("tell", "Tell which authorization was sent.", _EMPTY, _READS),
    _tool("die", "Cut every connection.", _EMPTY, _WRITES),
    _tool("picture", "Return an image and five megabytes of text.", _EMPTY, _READS),
)
_ORDER = _tool("order", "Order something, after questions to a person.", _EMPTY, _WRITES)
_MORE = tuple(_tool(f"tool_{number:03}", f"Number {number}.", _EMPTY, _READS) for number in range(200))


@dataclass
class McpServer:
    """A running server. `calls` are the called tools with their arguments, in order, `metas` the `_meta` of the calls.

    The tool `order` asks the `questions`, one element after the other, before it returns all answers and is done.
    `states` are the states that its callers have sent back. With `delivers_late`, it is done when the test says so.
    With `checks_capabilities`, it asks only clients that have announced that they answer questions.

    Requests without the token whose method or path is in `protected` get the status `refusal`. `replaced` maps bytes of
    answers to others of the same length.
    """

    url: str = ""
    token: str | None = None
    refusal: int = 401
    protected: tuple[str, ...] = ("GET", "POST", "DELETE")
    paged: bool = False
    tools: list[types.Tool] = field(default_factory=lambda: list(_TOOLS))
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    metas: list[dict[str, Any]] = field(default_factory=list)
    lists: int = 0
    headers: list[Mapping[str, str]] = field(default_factory=list)
    sessions: int = 0
    opened: threading.Event = field(default_factory=threading.Event)
    here: int = 0
    replaced: dict[bytes, bytes] = field(default_factory=dict)
    questions: list[dict[str, types.InputRequest]] = field(default_factory=list)
    delivers_late: bool = False
    checks_capabilities: bool = False
    states: list[str | None] = field(default_factory=list)
    capabilities: list[types.ClientCapabilities | None] = field(default_factory=list)
    kill: Callable[[], None] = lambda: None

    def names(self) -> list[str]:
        """Return the names of the called tools."""
        return [name for name, _ in self.calls]

    def wait_for_calls(self, number: int) -> None:
        """Wait for a number of calls."""
        eventually(lambda: len(self.calls) >= number)

    def make_unrepeatable(self, name: str) -> None:
        """Remove the hint that a tool only reads."""
        self.tools[:] = [t.model_copy(update={"annotations": None}) if t.name == name else t for t in self.tools]

    def honour_effect_ids(self, name: str) -> None:
        """Declare that a tool acts once for calls with the same effect id."""
        meta = {"responses-platform/honours-effect-id": True}
        self.tools[:] = [t.model_copy(update={"meta": meta}) if t.name == name else t for t in self.tools]

    def ask(self, *rounds: dict[str, types.InputRequest]) -> None:
        """Offer the tool `order`, which asks these questions, one element after the other."""
        self.tools.append(_ORDER)
        self.questions += rounds

    @property
    def effect_ids(self) -> list[str]:
        """Return the effect id of each call, in order."""
        return [meta["responses-platform/effect-id"] for meta in self.metas]

    def redefine(self, name: str, description: str) -> None:
        """Change the description of a tool."""
        changed = [t.model_copy(update={"description": description}) if t.name == name else t for t in self.tools]
        self.tools[:] = changed

    async def list_tools(self, _: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        """Return a page of tools."""
        cursor = params.cursor if params else None
        if cursor is None:
            self.lists += 1
        if not self.paged:
            return types.ListToolsResult(tools=self.tools)
        start, every = int(cursor or 0), [*self.tools, *_MORE]
        following = str(start + 50) if start + 50 < len(every) else None
        return types.ListToolsResult(tools=every[start : start + 50], next_cursor=following)

    async def call_tool(
        self, context: Any, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Execute a tool call."""
        arguments = params.arguments or {}
        self.capabilities.append(context.session.client_capabilities)
        self.calls.append((params.name, arguments))
        self.metas.append(params.model_dump(by_alias=True).get("_meta") or {})
        match params.name:
            case "add":
                return _text(str(arguments["a"] + arguments.get("b", 0)))
            case "wait":
                await asyncio.to_thread(self.opened.wait, _SECONDS)
            case "meet":
                await self._meet()
            case "fail":
                return types.CallToolResult(content=_text("It is broken.").content, is_error=True)
            case "tell":
                return _text(self.headers[-1].get("authorization", "none"))
            case "echo":
                return _text(arguments["text"])
            case "order":
                return await self._order(params)
            case "refuse":
                raise MCPError(code=-32602, message="These arguments are wrong.")
            case "die":
                self.kill()
                await asyncio.sleep(_SECONDS)
            case "picture":
                image = types.ImageContent(data=base64.b64encode(PNG).decode(), mime_type="image/png")
                return types.CallToolResult(content=[image, *_text(LONG_TEXT).content])
        return _text(f"{params.name} is done")

    async def _order(self, params: types.CallToolRequestParams) -> types.CallToolResult | types.InputRequiredResult:
        announced = self.capabilities[-1]
        if self.checks_capabilities and (announced is None or announced.elicitation is None):
            raise MCPError(code=types.MISSING_REQUIRED_CLIENT_CAPABILITY, message="The client answers no questions.")
        self.states.append(params.request_state)
        # The server keeps nothing between the calls: the state contains the answers to earlier questions.
        known = json.loads(params.request_state) if params.request_state else []
        if params.request_state is not None:
            responses = params.model_dump(by_alias=True, mode="json", exclude_none=True).get("inputResponses") or {}
            known = [*known, responses]
        if len(known) < len(self.questions):
            state = json.dumps(known) if known else ""
            return types.InputRequiredResult(input_requests=self.questions[len(known)] or None, request_state=state)
        if self.delivers_late:
            await asyncio.to_thread(self.opened.wait, _SECONDS)
        return _text(json.dumps(known))

    async def _meet(self) -> None:
        self.here += 1
        async with asyncio.timeout(_SECONDS):
            while self.here < 2:
                await asyncio.sleep(0.005)


def form(message: str, *, required: tuple[str, ...] = (), **properties: dict[str, Any]) -> types.InputRequest:
    """Return a question with a form."""
    schema = {"type": "object", "properties": properties, "required": [*required]}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def visit(message: str, url: str) -> types.InputRequest:
    """Return a question for which a person visits a page."""
    return types.ElicitRequest(params=types.ElicitRequestURLParams(message=message, url=url))


def _text(words: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=words)])


@contextmanager
def mcp_server(
    *, legacy: bool = False, token: str | None = None, paged: bool = False, documents: bool = False
) -> Iterator[McpServer]:
    """Run a server with streamable HTTP, or with the older SSE transport, optionally with a bearer token.

    With `documents` it answers with JSON instead of events.
    """
    state = McpServer(token=token, paged=paged)
    # Without `get_tool_input_schema`, the SDK would list its own tools at each call, which would be counted.
    sdk = Server(
        "test", on_list_tools=state.list_tools, on_call_tool=state.call_tool, get_tool_input_schema=lambda _: None
    )
    app = _legacy(sdk) if legacy else sdk.streamable_http_app(json_response=documents)
    with _serving(_Authentication(app, state), state) as root:
        state.url = f"{root}/sse" if legacy else f"{root}/mcp"
        yield state


def _legacy(sdk: Server[Any]) -> Starlette:
    transport = SseServerTransport("/messages/")

    async def connect(scope: Scope, receive: Receive, send: Send) -> None:
        async with transport.connect_sse(scope, receive, send) as streams:
            await sdk.run(streams[0], streams[1], sdk.create_initialization_options())

    class Connect:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await connect(scope, receive, send)

    return Starlette(
        routes=[
            Route("/sse", endpoint=Connect(), methods=["GET"]),
            Mount("/messages/", app=transport.handle_post_message),
        ]
    )


class _Authentication:
    """Middleware that records the headers of every request and checks the token."""

    def __init__(self, app: ASGIApp, state: McpServer) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self._state.headers.append(headers)
        wanted, state = self._state.token, self._state
        is_protected = scope["method"] in state.protected or scope["path"] in state.protected
        if wanted is not None and is_protected and headers.get("authorization") != f"Bearer {wanted}":
            refused = JSONResponse({"error": "invalid_token"}, status_code=state.refusal)
            await refused(scope, receive, send)
            return

        async def send_replaced(message: Message) -> None:
            for old, new in state.replaced.items():
                if old in message.get("body", b""):
                    message = {**message, "body": message["body"].replace(old, new)}
            await send(message)

        await self._app(scope, receive, send_replaced)


class _Server(uvicorn.Server):
    """uvicorn without the delay of polling when it starts and stops."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, access_log=False, loop="asyncio")
        )
        self.is_listening = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Close the server and all its connections."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)

    @override
    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self.on_tick(0)
        self.is_listening.set()
        await self._stop.wait()

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.transport.close()
        # A handler may wait for something that the test no longer sends.
        for task in self.server_state.tasks:
            task.cancel()
        await asyncio.gather(*self.server_state.tasks, return_exceptions=True)
        await self.lifespan.shutdown()


@contextmanager
def _serving(app: ASGIApp, state: McpServer) -> Iterator[str]:
    server = _Server(app)

    def kill() -> None:
        for connection in list(server.server_state.connections):
            connection.transport.abort()

    state.kill = kill
    thread = threading.Thread(target=server.run, name="mcp", daemon=True)
    thread.start()
    assert server.is_listening.wait(_SECONDS), "the MCP server does not start"
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        state.opened.set()
        server.stop()
        thread.join(_SECONDS)
        assert not thread.is_alive(), "the MCP server does not stop"


__all__ = ["LONG_TEXT", "PNG", "McpServer", "form", "mcp_server", "visit"]
