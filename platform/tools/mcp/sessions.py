"""Sessions with MCP servers: one per server of a run, opened when first needed and closed with the run.

Each session has its own task, in which the contexts of the SDK are entered and left. They must not be left in another
task.
"""

import asyncio
import importlib
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import httpx2
import orjson
from pydantic import TypeAdapter, ValidationError

from core.egress import Egress
from core.errors import ApiError
from core.json.storable_json import without_nul
from core.redaction import redact_unknown
from engine.spans import Activity, span
from tools.mcp.questions import McpQuestions, UnusableRequest, questions_of
from tools.mcp.servers import EFFECT_ID, HONOURS_EFFECT_ID, ListedTool, RemoteServer
from tools.mcp.transport import MAX_MESSAGE_BYTES, TransportFailure, http_client, transport_failure

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client import ClientRequestContext
    from mcp.client._transport import Transport
    from mcp_types import (
        CallToolResult,
        ElicitRequestParams,
        ErrorData,
        InputRequiredResult,
        InputResponses,
        RequestParamsMeta,
    )

MAX_TOOLS = 1000
# The tool list is part of the response, its events and every upstream request.
MAX_LIST_BYTES = 4 * 1024 * 1024
_MAX_PAGES = 100
_MAX_ERROR = 300
# With these statuses a server may refuse streamable HTTP although it supports the older SSE transport.
_TRY_SSE_STATUSES = frozenset({400, 404, 405, 406, 415})
# Messages the SDK generates if a server refuses a request outside the protocol, or if the connection is lost. The
# status in TransportFailure is more precise.
_SDK_MESSAGES = frozenset({"Not Found", "Session terminated", "Server returned an error response"})
_CONNECTION_LOST = ("Connection closed", "SSE stream ended")
# Time to wait for the real cause of a lost connection, with which the session's task ends a little later.
_CAUSE_SECONDS = 0.2
# The response is complete by then, so its client must not wait for a server that does not close the session.
_CLOSE_SECONDS = 1.0
_TOO_LARGE = "SSE stream failed"
# A server may return only a state instead of a result, to be called again with it.
_MAX_REPETITIONS = 10
_REPETITION_SECONDS = 0.1
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Time limits in seconds for opening a session and listing its tools, and for one call."""

    listing: float = 30.0
    call: float = 120.0


class JsonRpcCode(IntEnum):
    """Error codes of JSON-RPC and MCP for failures that the platform finds itself or adds something to."""

    PARSE_ERROR = -32700
    INVALID_PARAMS = -32602
    MISSING_CAPABILITY = -32021
    SERVER_ERROR = -32000


class ServerFailed(Exception):
    """A request to a server failed.

    `code` is the HTTP status or the JSON-RPC error code. `status` is the HTTP status if the server answered with one:
    failures of a connection have the `code` that a gateway would report.
    """

    def __init__(
        self,
        message: str,
        *,
        code: int,
        kind: Literal["http_error", "mcp_protocol_error"] = "http_error",
        status: int | None = None,
    ) -> None:
        self.message = message
        self.code = code
        self.kind = kind
        self.status = status
        super().__init__(message)

    @classmethod
    def unusable(cls, message: str) -> "ServerFailed":
        """Return the failure of a server that cannot be reached or whose answer cannot be used."""
        return cls(message, code=httpx2.codes.BAD_GATEWAY)

    @classmethod
    def timed_out(cls, message: str) -> "ServerFailed":
        """Return the failure of a server that did not answer in time."""
        return cls(message, code=httpx2.codes.GATEWAY_TIMEOUT)

    @classmethod
    def blocked(cls, message: str) -> "ServerFailed":
        """Return the failure of a server that this platform must not connect to."""
        return cls(message, code=httpx2.codes.FORBIDDEN)

    @classmethod
    def protocol(cls, message: str, code: int) -> "ServerFailed":
        """Return the failure of a request that reached the server, with a JSON-RPC error code."""
        return cls(message, code=code, kind="mcp_protocol_error")

    def redacted(self, server: RemoteServer) -> "ServerFailed":
        """Return the failure without the credentials that were sent to the server."""
        return ServerFailed(server.redact(self.message), code=self.code, kind=self.kind, status=self.status)

    @property
    def is_session_gone(self) -> bool:
        """True if the server no longer knows the session. It has then not processed the request."""
        return self.kind == "http_error" and self.code == httpx2.codes.NOT_FOUND

    def shown(self) -> dict[str, Any]:
        """Return the `error` of an `mcp_call` item."""
        return {"type": self.kind, "code": self.code, "message": self.message}


class McpSessions:
    """Sessions of one run, by server label. Servers are told whether they may ask questions (`answers_questions`)."""

    def __init__(self, egress: Egress, timeouts: Timeouts | None = None) -> None:
        self._egress = egress
        self.timeouts = timeouts or Timeouts()
        self.answers_questions = False
        self._open: dict[str, _McpSession] = {}
        # Not used for new calls, but calls may still be running in them.
        self._retired: list[_McpSession] = []
        self._locks: dict[str, asyncio.Lock] = {}

    async def list_tools(self, server: RemoteServer) -> list[ListedTool]:
        """Return all tools of the server. Raises ServerFailed."""
        async with _within(self.timeouts.listing):
            session = await self._session(server)
            tools: list[ListedTool] = []
            cursor: str | None = None
            size = 0
            with _span(Activity.LIST, server) as listing:
                # Bounded, because a faulty server may return the same cursor forever.
                for _ in range(_MAX_PAGES):
                    page, cursor = await session.page(cursor)
                    tools += page
                    size += len(orjson.dumps([tool.shown() for tool in page]))
                    if size > MAX_LIST_BYTES:
                        raise ServerFailed.unusable("The tool list is too large.")
                    if len(tools) > MAX_TOOLS:
                        break
                    if cursor is None:
                        listing.note = f"{len(tools)} tools"
                        return tools
                raise ServerFailed.unusable(f"The server lists more than {MAX_TOOLS} tools.")

    async def call(
        self,
        server: RemoteServer,
        name: str,
        arguments: dict[str, Any],
        *,
        effect_id: str = "",
        answered: McpQuestions | None = None,
    ) -> "CallToolResult | McpQuestions":
        """Call a tool once, and return its result or its questions. Raises ServerFailed.

        `answered` are the questions of the call before, with the answers to all of them.
        """
        async with _within(self.timeouts.call):
            for number in range(_MAX_REPETITIONS):
                result = await self._call_once(server, name, arguments, effect_id, answered)
                if not isinstance(result, McpQuestions) or result.open:
                    return result
                # The server wants to be called again with a state, for example because it has moved the call.
                answered = result
                await asyncio.sleep(number * _REPETITION_SECONDS)
            raise ServerFailed.protocol("The server did not finish the call.", JsonRpcCode.SERVER_ERROR)

    async def _call_once(
        self,
        server: RemoteServer,
        name: str,
        arguments: dict[str, Any],
        effect_id: str,
        answered: McpQuestions | None,
    ) -> "CallToolResult | McpQuestions":
        session = await self._session(server)
        try:
            return await session.call(name, arguments, effect_id, answered)
        except ServerFailed as failure:
            # After a transport error the session may be broken; the next call opens a new one.
            if failure.kind == "http_error":
                self._retire(server, session)
            if not failure.is_session_gone:
                raise
        # A server that does not know the session has not read the call, so it is safe to send it again.
        return await (await self._session(server)).call(name, arguments, effect_id, answered)

    async def close(self) -> None:
        """Close all sessions; never raises."""
        sessions = [*self._open.values(), *self._retired]
        self._open.clear()
        self._retired.clear()
        await asyncio.gather(*(session.close() for session in sessions), return_exceptions=True)

    async def _session(self, server: RemoteServer) -> "_McpSession":
        # The lock keeps concurrent calls from opening two sessions.
        async with self._locks.setdefault(server.label, asyncio.Lock()):
            session = self._open.get(server.label)
            if session is not None and not session.is_over:
                return session
            egress = self._egress.trusting(server.url) if server.vouched else self._egress
            session = self._open[server.label] = _McpSession(
                server, egress, self.timeouts.call + 5, answers_questions=self.answers_questions
            )
            try:
                with _span(Activity.CONNECT, server):
                    await session.open()
            except BaseException:
                self._retire(server, session)
                raise
            return session

    def _retire(self, server: RemoteServer, session: "_McpSession") -> None:
        if self._open.get(server.label) is session:
            self._retired.append(self._open.pop(server.label))


class _McpSession:
    """One session and the task that keeps it open."""

    def __init__(self, server: RemoteServer, egress: Egress, read_seconds: float, *, answers_questions: bool) -> None:
        self._server = server
        self._egress = egress
        self._read_seconds = read_seconds
        self._answers_questions = answers_questions
        self._client: Client | None = None
        self._is_legacy = False
        self._ready = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        """True if the session cannot be used any more."""
        return self._task is not None and self._task.done()

    async def open(self) -> None:
        """Connect with streamable HTTP, or with the older SSE transport if the server supports only that."""
        # Importing the SDK takes most of a second and must not block the event loop.
        await asyncio.to_thread(importlib.import_module, "mcp")
        try:
            await self._connect(self._streamable)
        except ServerFailed as failure:
            if failure.code not in _TRY_SSE_STATUSES:
                raise
            self._is_legacy = True
            try:
                await self._connect(self._server_sent_events)
            except ServerFailed as second:
                # A server that refuses the second request for the same kind of reason has neither transport. Any
                # other status is that of the transport it has, and what the first attempt met says nothing.
                if second.status is None or second.status in _TRY_SSE_STATUSES:
                    raise failure from None
                raise

    async def page(self, cursor: str | None) -> tuple[list[ListedTool], str | None]:
        """Return one page of tools and the cursor of the next."""
        result = await self._ask(self._opened.list_tools(cursor=cursor))
        tools = [tool.model_dump(exclude={"annotations"}) for tool in result.tools]
        for shown, tool in zip(tools, result.tools, strict=True):
            if tool.annotations is not None:
                shown["annotations"] = tool.annotations.model_dump(by_alias=True, exclude_none=True)
            # Items have no other field for it. Resumed runs read the item instead of asking the server again.
            if tool.meta is not None and tool.meta.get(HONOURS_EFFECT_ID) is True:
                shown["annotations"] = {**shown.get("annotations", {}), HONOURS_EFFECT_ID: True}
        return [ListedTool.parse(without_nul(shown)) for shown in tools], result.next_cursor

    async def call(
        self, name: str, arguments: dict[str, Any], effect_id: str, answered: McpQuestions | None
    ) -> "CallToolResult | McpQuestions":
        from mcp_types import (
            HEADER_MISMATCH,
            CallToolRequest,
            CallToolRequestParams,
            ElicitResult,
            InputRequiredResult,
        )

        # The result is not validated against the tool's output schema: a model reads it in any case.
        # Keys that are not in the SDK's type.
        meta = cast("RequestParamsMeta", {EFFECT_ID: effect_id}) if effect_id else None
        params = CallToolRequestParams(name=name, arguments=arguments, meta=meta)
        if answered is not None:
            answers: InputResponses = {
                key: ElicitResult.model_validate(answer) for key, answer in answered.answers.items()
            }
            params.input_responses, params.request_state = answers or None, answered.state
        request = CallToolRequest(params=params)
        either, session = _either(), self._opened.session
        try:
            result = await self._ask(session.send_request(request, either))
        except ServerFailed as failure:
            if failure.code != HEADER_MISMATCH:
                raise
            # Some servers want arguments repeated in headers. The SDK knows which ones only after listing the tools.
            await self._ask(self._opened.list_tools())
            result = await self._ask(session.send_request(request, either))
        if not isinstance(result, InputRequiredResult):
            return result
        try:
            return questions_of(result, self._server)
        except UnusableRequest as unusable:
            message = f"The server did not finish the call: {unusable}."
            raise ServerFailed.protocol(message, JsonRpcCode.SERVER_ERROR) from unusable

    async def close(self) -> None:
        """End the session in its own task."""
        self._closing.set()
        if self._task is not None:
            done, _ = await asyncio.wait([self._task], timeout=_CLOSE_SECONDS)
            if not done:
                self._task.cancel()
                await asyncio.wait([self._task], timeout=_CLOSE_SECONDS)

    @property
    def _opened(self) -> "Client":
        if self._client is None:
            raise RuntimeError("the session is not open")
        return self._client

    # -- session task --------------------------------------------------------------------------------------------------

    async def _connect(self, transport: Any) -> None:
        failure_below = TransportFailure()
        token = transport_failure.set(failure_below)
        try:
            self._task = asyncio.get_running_loop().create_task(self._hold(transport))
            # Retrieve the exception: `_or_broken` reports it, and asyncio would log it as never retrieved.
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
            await self._ask(self._ready.wait(), failure_below)
        finally:
            transport_failure.reset(token)

    async def _hold(self, transport: Any) -> None:
        from mcp import Client

        async with AsyncExitStack() as stack:
            wire, mode = await stack.enter_async_context(transport())
            client = await stack.enter_async_context(Client(wire, mode=mode, cache=None))
            if self._answers_questions and (discovered := client.session.discover_result) is not None:
                # Only servers that return their questions as results may ask. Older ones would wait for the answer
                # during the call. Which kind it is was not known when the first client had to announce that.
                wire, _ = await stack.enter_async_context(transport())
                asked = Client(
                    wire,
                    mode=client.protocol_version,
                    prior_discover=discovered,
                    elicitation_callback=_refuse_to_wait,
                    cache=None,
                )
                client = await stack.enter_async_context(asked)
            self._client = client
            self._ready.set()
            await self._closing.wait()

    @asynccontextmanager
    async def _streamable(self) -> AsyncIterator[tuple["Transport", str]]:
        from mcp.client.streamable_http import streamable_http_client

        async with http_client(self._server, self._egress, read_seconds=self._read_seconds) as http:
            yield (
                streamable_http_client(self._server.url, http_client=http, max_sse_event_size=MAX_MESSAGE_BYTES),
                "auto",
            )

    @asynccontextmanager
    async def _server_sent_events(self) -> AsyncIterator[tuple["Transport", str]]:
        from mcp.client.sse import sse_client

        def client(headers: Any = None, timeout: Any = None, auth: Any = None) -> httpx2.AsyncClient:
            return http_client(self._server, self._egress, read_seconds=self._read_seconds)

        yield sse_client(self._server.url, httpx_client_factory=client), "legacy"

    # -- requests ------------------------------------------------------------------------------------------------------

    async def _ask(self, work: Coroutine[Any, Any, _Answer], failure_below: TransportFailure | None = None) -> _Answer:
        """Wait for a response or for the session to break; every kind of failure becomes a ServerFailed."""
        failure_below = failure_below or TransportFailure()
        token = transport_failure.set(failure_below)
        try:
            return await self._or_broken(asyncio.ensure_future(work), failure_below)
        except Exception as error:
            failure = _failure(await self._cause(error), failure_below)
            raise failure.redacted(self._server) from error
        finally:
            transport_failure.reset(token)

    async def _cause(self, error: Exception) -> BaseException:
        # A lost connection is often the consequence of an error that has just ended the session's task.
        if self._task is not None and getattr(error, "message", "").startswith(_CONNECTION_LOST):
            await asyncio.wait([self._task], timeout=_CAUSE_SECONDS)
            if self._task.done() and not self._task.cancelled():
                return self._task.exception() or error
        return error

    async def _or_broken(self, asked: "asyncio.Future[_Answer]", failure_below: TransportFailure) -> _Answer:
        holder = self._task
        waiting: set[asyncio.Future[Any]] = {asked} if holder is None else {asked, holder}
        # With the older transport the SDK only logs that a message was refused, and waits for its answer forever.
        refused = asyncio.ensure_future(failure_below.refused.wait()) if self._is_legacy else None
        try:
            await asyncio.wait(waiting | ({refused} if refused else set()), return_when=asyncio.FIRST_COMPLETED)
            if refused is not None and refused.done():
                await asyncio.wait(waiting, timeout=_CAUSE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if refused is not None:
                refused.cancel()
            if not asked.done():
                asked.cancel()
                await asyncio.wait([asked])
        if not asked.cancelled():
            return asked.result()
        broken = holder.exception() if holder and not holder.cancelled() else None
        raise broken or ConnectionError


async def _refuse_to_wait(context: "ClientRequestContext", params: "ElicitRequestParams") -> "ErrorData":
    """Refuse a question that is not the result of a call. Such questions do not exist in the protocol's revision."""
    from mcp_types import INVALID_REQUEST, ErrorData

    return ErrorData(code=INVALID_REQUEST, message="Questions must be returned as the result of a call.")


@cache
def _either() -> "TypeAdapter[CallToolResult | InputRequiredResult]":
    from mcp_types import CallToolResult, InputRequiredResult

    return TypeAdapter(CallToolResult | InputRequiredResult)


@contextmanager
def _span(activity: Activity, server: RemoteServer) -> Iterator[span]:
    with span(activity, server.label) as measured:
        try:
            yield measured
        except ServerFailed as failure:
            measured.note = f"HTTP {failure.code}" if failure.kind == "http_error" else f"error {failure.code}"
            measured.detail = _detail(server, failure)
            raise


def _detail(server: RemoteServer, failure: ServerFailed) -> dict[str, Any]:
    """Return the details of a failed request for operators."""
    known: dict[str, Any] = {"cause": f"MCP server '{server.label}' failed", "address": server.redact(server.url)}
    if failure.status is not None:
        known["status"] = failure.status
    return known | {"error": redact_unknown(server.redact(failure.message))[:_MAX_ERROR]}


@asynccontextmanager
async def _within(seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise ServerFailed.timed_out(f"The server did not respond within {seconds:g} seconds.") from None


def _failure(error: BaseException, failure_below: TransportFailure) -> ServerFailed:
    # Exception texts are not passed on, because they may contain URLs with secrets.
    if isinstance(failure_below.error, ApiError):
        return ServerFailed.blocked(failure_below.error.message)
    if protocol_failure := _protocol_failure(_first(error)):
        return protocol_failure
    if failure_below.status is not None:
        phrase = httpx2.codes.get_reason_phrase(failure_below.status)
        message = f"Http status code: {failure_below.status} ({phrase})"
        return ServerFailed(message, code=failure_below.status, status=failure_below.status)
    if isinstance(failure_below.error, httpx2.TimeoutException):
        return ServerFailed.timed_out("The server did not respond in time.")
    return ServerFailed.unusable("The connection to the server failed.")


def _protocol_failure(error: BaseException) -> ServerFailed | None:
    """Return the error that the server reported, or None for a failure below the protocol."""
    from mcp import MCPError

    match error:
        case MCPError(message=message) if message in _SDK_MESSAGES or message.startswith(_CONNECTION_LOST):
            return None
        case MCPError(message=message) if message.startswith(_TOO_LARGE):
            return ServerFailed.unusable("The response is too large.")
        case MCPError(message=message, code=code):
            return ServerFailed.protocol(message, code)
        case httpx2.SSEError():
            return ServerFailed.unusable("The response is too large.")
        case ValidationError():
            return ServerFailed.protocol("The response is not valid MCP.", JsonRpcCode.PARSE_ERROR)
    return None


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
