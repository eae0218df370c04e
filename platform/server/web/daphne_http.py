"""HTTP under daphne: bodies are streamed, slow clients are waited for, and heads that are too long get an answer.

Unmodified, daphne stores a whole body on disk before it calls the application, buffers everything that the application
sends, however slowly the client reads, and closes the connection on a URL or headers that are too long.
"""

import asyncio
import logging
import re
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from io import BytesIO
from typing import Any

import daphne.http_protocol
import daphne.server
import daphne.ws_protocol
from django.conf import settings
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.error import ReactorNotRunning
from twisted.web.http import HTTPChannel
from twisted.web.http_headers import Headers
from typing_extensions import override

from core.admission.request_bodies import REJECTED
from core.errors import ApiError, HeadersTooLarge, UrlTooLong
from core.http.asgi import ABORT, Message, Scope
from core.http.socket_messages import IncomingMessage
from server.web.request_heads import (
    KEEP_ALIVE_SECONDS,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_URL_BYTES,
    framing_bytes,
    has_valid_handshake,
    invalid_request,
    is_chunked_only,
    max_connections,
    raw_response,
    short_path,
    slow_head,
    too_many_connections,
    upgrade_with_body,
)
from server.web.slow_readers import ReaderWatch

logger = logging.getLogger(__name__)
# Reading from the connection pauses while more bytes than this wait for the application.
_UNREAD_BYTES = 64 * 1024
_EMPTY_MESSAGE_BYTES = 500
_METHOD = re.compile(rb"[A-Z][A-Z-]*")
# A line that continues another does not match: proxies may read it as a header.
_LINE_OF_HEAD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*")
# Declared as Any, because most methods of Twisted's reactor and of `HTTPChannel` have no types.
_reactor: Any = reactor
_HTTPChannel: Any = HTTPChannel


def _is_line_of_head(line: bytes) -> bool:
    """Return true for a header or a trailer, and for the empty line after them."""
    return not line or _LINE_OF_HEAD.fullmatch(line) is not None


def _origin_form(target: bytes) -> bytes:
    """Return the path and the query of an absolute URL, as clients send to proxies, and any other target unchanged."""
    if not target.lower().startswith((b"http://", b"https://")):
        return target
    rest = re.sub(rb"^[^/]*//[^/?]*", b"", target)
    return rest if rest.startswith(b"/") else b"/" + rest


def _pairs(headers: Headers) -> Iterator[tuple[bytes, bytes]]:
    return ((name, value) for name, values in headers.getAllRawHeaders() for value in values)


class _FlowControl:
    """Twisted producer that records whether the connection's send buffer can take more."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self.can_write = asyncio.Event()
        self.can_write.set()
        self._changed = changed

    def pauseProducing(self) -> None:  # noqa: N802 - Twisted's interface
        self.can_write.clear()
        self._changed()

    def resumeProducing(self) -> None:  # noqa: N802
        self.can_write.set()
        self._changed()

    def stopProducing(self) -> None:  # noqa: N802
        # The connection is lost: waiting writers continue, and their writes have no effect.
        self.can_write.set()


class _Inbox:
    """Messages of one request for the application: the body in parts, then the disconnect.

    Replaces daphne's queue, which has no limit. Parts that arrive while the application is busy become one message.
    """

    def __init__(self, request: "DaphneRequest") -> None:
        self._request = request
        self._parts: list[bytes] = []
        self._unread = 0
        self._has_more = True
        self._is_read = False
        self._is_disconnected = False
        self._changed = asyncio.Event()

    def put_nowait(self, message: Message) -> None:
        """Add a message; daphne's interface."""
        if message["type"] == "http.disconnect":
            self._is_disconnected = True
        else:
            self._parts.append(message["body"])
            self._unread += len(message["body"])
            self._has_more = message["more_body"]
        if self._unread > _UNREAD_BYTES and self._has_more:
            self._request.pause_reading()
        self._changed.set()

    async def get(self) -> Message:
        """Return the next message, as ASGI's `receive`."""
        if not self._is_read:
            self._request.send_continue()
        while True:
            if not self._is_read and (self._parts or not self._has_more):
                body, self._parts, self._unread = b"".join(self._parts), [], 0
                self._is_read = not self._has_more
                self._request.resume_reading()
                return {"type": "http.request", "body": body, "more_body": self._has_more}
            if self._is_disconnected:
                return {"type": "http.disconnect"}
            self._changed.clear()
            await self._changed.wait()


class _SocketInbox(asyncio.Queue[dict[str, Any]]):
    """Messages of a WebSocket for the application.

    Nothing is read from the connection while many bytes wait, while a message waits for memory, or before the
    application has accepted it. Replaces daphne's queue, which has no limit.
    """

    def __init__(self, protocol: "DaphneSocket", scope: Scope) -> None:
        super().__init__()
        self._transport = protocol.transport
        self._incoming = protocol.incoming
        self._incoming.scope = scope
        self.flow_control = _FlowControl(self.update_reading)
        self._unread = 0
        self._is_accepted = False
        self._is_paused = False
        protocol.inbox = self
        self.update_reading()

    def accept(self) -> None:
        """Read from the connection from now on."""
        # In place of the HTTP connection, which has ended with the upgrade.
        self._transport.unregisterProducer()
        self._transport.registerProducer(self.flow_control, True)  # noqa: FBT003 - Twisted's interface
        self._is_accepted = True
        self.update_reading()

    def clear(self, _: object) -> None:
        """Drop the messages that nothing will read, and release the memory reserved for them."""
        while not self.empty():
            self.get_nowait()

    def update_reading(self) -> None:
        """Resume or pause reading from the connection."""
        # Pings are answered, also to a client that does not read.
        is_full = self._unread > _UNREAD_BYTES or not self.flow_control.can_write.is_set()
        is_paused = is_full or self._incoming.is_waiting or not self._is_accepted
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            (self._transport.pauseProducing if is_paused else self._transport.resumeProducing)()

    @override
    def _put(self, item: dict[str, Any]) -> None:
        self._incoming.hand_over(item)
        super()._put(item)
        self._unread += _size(item)
        self.update_reading()

    @override
    def _get(self) -> dict[str, Any]:
        item = super()._get()
        self._unread -= _size(item)
        self.update_reading()
        return item


class DaphneSocket(daphne.ws_protocol.WebSocketProtocol):  # type: ignore[misc]  # daphne has no types
    """daphne's WebSocket connection, whose messages reserve the memory that they need."""

    inbox: _SocketInbox | None = None
    message_data: list[bytes | bytearray]

    def __init__(self) -> None:
        super().__init__()
        self.incoming = IncomingMessage(pause=self._update_reading, resume=self._update_reading, fail=self._fail)

    @override
    def onMessageFrameBegin(self, length: int) -> None:
        super().onMessageFrameBegin(length)
        if not self.failedByMe:
            self.incoming.grows_to(self.message_data_total_length)

    @override
    def onMessageFrameData(self, payload: bytes) -> None:
        self.incoming.received(len(payload))
        super().onMessageFrameData(payload)

    @override
    def onMessageFrame(self, payload: list[bytes]) -> None:
        # In one buffer: autobahn keeps an object for each fragment, even if it is empty.
        if self.message_data:
            if not isinstance(self.message_data[0], bytearray):
                self.message_data = [bytearray(b"".join(self.message_data))]
            self.message_data[0] += b"".join(payload)
        else:
            super().onMessageFrame(payload)

    @override
    def onClose(self, wasClean: bool, code: int, reason: str) -> None:
        self.incoming.close()
        super().onClose(wasClean, code, reason)

    def _update_reading(self) -> None:
        if self.inbox is not None:
            self.inbox.update_reading()

    def _fail(self, code: int, reason: str) -> None:
        self._fail_connection(code, reason)


def _size(message: Message) -> int:
    """Return about how much memory a message of a WebSocket takes."""
    return _EMPTY_MESSAGE_BYTES + len(message.get("text") or message.get("bytes") or b"")


class DaphneRequest(daphne.http_protocol.WebRequest):  # type: ignore[misc]  # daphne has no types
    """daphne's request, but the application is called after the headers instead of after the complete body."""

    flow_control: _FlowControl | None = None
    body_follows = False
    """The application has been called and the body is not complete."""
    rejection: ApiError | None = None
    _wants_continue = False
    _is_paused = False

    def __init__(self, *args: Any, **options: Any) -> None:
        # Twisted would parse forms in memory, though nothing uses the result. The check for a form alone, which uses
        # the e-mail package, takes a quarter of a small request's time.
        super().__init__(*args, parsePOSTFormSubmission=False, **options)

    @override
    def gotLength(self, length: int | None) -> None:
        # Never a file, unlike in Twisted: only the application stores bodies.
        self.content = BytesIO()

    def head_received(self, command: bytes, uri: bytes, version: bytes, *, wants_continue: bool) -> None:
        """Call the application for a request whose body follows."""
        self.body_follows, self._wants_continue = True, wants_continue
        super().requestReceived(command, uri, version)

    @override
    def handleContentChunk(self, data: bytes) -> None:
        if self.channel is not None:
            self.channel.note_body(data)
        if self.application_queue is not None:
            self.application_queue.put_nowait({"type": "http.request", "body": data, "more_body": True})

    @override
    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        if not self.body_follows:
            super().requestReceived(command, path, version)
            return
        self.body_follows = False
        if self.application_queue is not None:
            self.application_queue.put_nowait({"type": "http.request", "body": b"", "more_body": False})

    @property
    def is_responding(self) -> bool:
        """True once the application has started its response."""
        return bool(self._response_started)

    @override
    def process(self) -> Any:
        transport = self.transport
        processing = super().process()
        if self.transport is None and self.channel is not None:
            # daphne has handed the connection over to a WebSocket.
            self.channel.become(transport.protocol)
        return processing

    def send_continue(self) -> None:
        """Ask a client that expects `100 Continue` for the body, unless the response has started."""
        if self._wants_continue and self.body_follows and not self._response_started and self.channel is not None:
            self._wants_continue = False
            self.channel.send_continue()

    def pause_reading(self) -> None:
        """Read nothing from the connection until the application has taken what arrived."""
        if not self._is_paused and self.channel is not None:
            self._is_paused = True
            self.channel.pause_reading()

    def resume_reading(self) -> None:
        """Read from the connection again; idempotent."""
        if self._is_paused and self.channel is not None:
            self._is_paused = False
            self.channel.resume_reading()

    async def drained(self) -> None:
        """Wait until the client has received most of the sent data, or has disconnected."""
        if self.flow_control is not None:
            await self.flow_control.can_write.wait()

    def start_flow_control(self) -> None:
        """Register with the connection, which reports slow readers from then on; idempotent."""
        if self.flow_control is None and not self.finished and self.channel is not None:
            self.flow_control = _FlowControl()
            self.registerProducer(self.flow_control, streaming=True)

    @override
    def finish(self) -> None:
        if self.producer is not None:
            self.unregisterProducer()
        if self.channel is not None and (self.body_follows or self.rejection is not None):
            # What follows on the connection is the rest of this request, and must not be read as the next one.
            self.channel.close_after_response()
        super().finish()

    @override
    def handle_exception(self, exception: BaseException) -> None:
        if not self._response_started:
            super().handle_exception(exception)
        else:
            # An incomplete response must not look complete. daphne would start a second one, which raises an error and
            # ends the task that looks after all connections.
            self.abort()

    def abort(self) -> None:
        """Close the connection without sending the data that still waits for the client."""
        if self.channel is not None:
            self.channel.transport.abortConnection()

    @override
    def connectionLost(self, reason: Any) -> None:
        if self.flow_control is not None:
            self.flow_control.stopProducing()
        super().connectionLost(reason)


class DaphneChannel(_HTTPChannel):  # type: ignore[misc]
    """Twisted's HTTP connection that calls the application when the headers of a request are complete."""

    maxHeaders = MAX_HEADERS  # noqa: N815 - Twisted's names
    totalHeadersSize = MAX_HEAD_BYTES  # noqa: N815
    _connections = 0
    _is_closing = False
    _wants_continue = False
    _head_is_complete = False
    _framing_bytes = 0
    _is_over = False
    _head_timer: Any = None
    _reader: ReaderWatch | None = None

    @override
    def connectionMade(self) -> None:
        super().connectionMade()
        DaphneChannel._connections += 1
        if DaphneChannel._connections > max_connections():
            self._refuse(too_many_connections())
        else:
            self._watch_head()

    @override
    def connectionLost(self, reason: Any) -> None:
        if not self._is_over:
            DaphneChannel._connections -= 1
        self._end()
        super().connectionLost(reason)

    def become(self, websocket: Any) -> None:
        """Hand the connection over to a WebSocket. It counts as a connection until the WebSocket loses it."""
        self._end()
        lost = websocket.connectionLost

        def connection_lost(reason: Any) -> None:
            DaphneChannel._connections -= 1
            lost(reason)

        websocket.connectionLost = connection_lost

    def _end(self) -> None:
        self._stop_watching_reader()
        self._is_over = self._head_is_complete = True
        self._watch_head()

    @override
    def pauseProducing(self) -> None:
        super().pauseProducing()
        self._watch_reader()

    @override
    def resumeProducing(self) -> None:
        super().resumeProducing()
        self._stop_watching_reader()

    @override
    def loseConnection(self) -> None:
        if self._has_unsent():
            # Twisted closes the connection when the client has read the rest.
            self._watch_reader()
        super().loseConnection()

    @override
    def timeoutConnection(self) -> None:
        if self._has_unsent():
            # A large answer may take longer than a connection is kept. Its client has a limit of its own.
            self._watch_reader()
            self.setTimeout(KEEP_ALIVE_SECONDS)
        else:
            super().timeoutConnection()

    def _has_unsent(self) -> bool:
        unsent = len(self.transport.dataBuffer) - self.transport.offset
        return bool(unsent > 0 or self.transport._tempDataLen)  # noqa: SLF001 - what was written most recently

    def _watch_reader(self) -> None:
        if self._reader is None and not self._is_over:
            self._reader = ReaderWatch(self.transport.getHandle(), self.transport.abortConnection)
            self._reader.start()

    def _stop_watching_reader(self) -> None:
        if self._reader is not None:
            self._reader.stop()
            self._reader = None

    def _watch_head(self) -> None:
        """Limit the time in which the headers of the next request arrive; stop once they have."""
        if self._head_is_complete and self._head_timer is not None:
            if self._head_timer.active():
                self._head_timer.cancel()
            self._head_timer = None
        elif not self._head_is_complete and self._head_timer is None:
            self._head_timer = _reactor.callLater(settings.HEADERS_SECONDS, self._end_head)

    def _end_head(self) -> None:
        if not self.requests:
            # Browsers open connections that they may not use.
            self.transport.loseConnection()
        elif not self._is_closing:
            self._refuse(slow_head())

    def _refuse(self, error: ApiError) -> None:
        """Send an error in place of the application, unless it is already responding, and close the connection."""
        self._is_closing, self.persistent, self._head_is_complete = True, False, True
        self._watch_head()
        if not self.requests or not self.requests[0].is_responding:
            self.transport.write(raw_response(error))
        self.loseConnection()

    @override
    def _respondToBadRequestAndDisconnect(self) -> None:
        # Twisted drops trailers, and has no other error in them than their size.
        reads_trailers = getattr(self._transferDecoder, "state", "") == "TRAILER"
        self._refuse(HeadersTooLarge() if reads_trailers else invalid_request())

    @override
    def rawDataReceived(self, data: bytes) -> None:
        self._framing_bytes += len(data)
        super().rawDataReceived(data)
        reads_body = not self._handlingRequest and not self._is_closing
        if reads_body and self._framing_bytes > MAX_HEAD_BYTES:
            self._refuse(HeadersTooLarge())

    def note_body(self, chunk: bytes) -> None:
        """Subtract the framing that is allowed for a part of the body from the counted bytes."""
        self._framing_bytes = max(0, self._framing_bytes - framing_bytes(chunk))

    @override
    def requestDone(self, request: Any) -> None:
        self._head_is_complete = False
        super().requestDone(request)

    @property
    @override
    def MAX_LENGTH(self) -> int:
        """Limit of a line: of the first one, which contains the URL, or of a header."""
        return MAX_HEAD_BYTES if self.requests else MAX_URL_BYTES

    @override
    def dataReceived(self, data: bytes) -> None:
        if not self._is_closing:
            super().dataReceived(data)
            self._watch_head()

    @override
    def lineReceived(self, line: bytes) -> None:
        if self._is_closing:
            return
        if self._receivedHeaderSize + len(line) > self.totalHeadersSize:
            self._reject(HeadersTooLarge())
        elif self.requests and not _is_line_of_head(line):
            self._respondToBadRequestAndDisconnect()
        else:
            super().lineReceived(line)

    @override
    def lineLengthExceeded(self, line: bytes) -> None:
        if self._is_closing:
            return
        if self.requests:
            self._reject(HeadersTooLarge())
            return
        method, _, rest = line.partition(b" ")
        request = self.requestFactory(self)
        self.requests.append(request)
        # Twisted would have set these with the first line.
        self._command, self._path, self._version = method[:20], rest.split(b" ", 1)[0], b"HTTP/1.1"
        self._reject(UrlTooLong())

    @override
    def headerReceived(self, line: bytes) -> bool:
        if self._receivedHeaderCount >= self.maxHeaders and not self._is_closing:
            self._reject(HeadersTooLarge())
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"transfer-encoding" and not is_chunked_only(value) and not self._is_closing:
            self._respondToBadRequestAndDisconnect()
        return not self._is_closing and bool(super().headerReceived(line))

    def _reject(self, error: ApiError) -> None:
        """Let the application answer a request with an error, then close the connection."""
        self._is_closing, self.persistent, self._head_is_complete = True, False, True
        self.setTimeout(None)
        request = self.requests[-1]
        request.rejection = error
        request.gotLength(0)
        # Neither an upgrade nor half of a header must be acted upon.
        request.requestHeaders = Headers()
        method = self._command if self._command.isalpha() else b"GET"
        request.head_received(method, short_path(self._path), b"HTTP/1.1", wants_continue=False)

    @override
    def allHeadersReceived(self) -> None:
        self._wants_continue, self._head_is_complete, self._framing_bytes = False, True, 0
        super().allHeadersReceived()
        request = self.requests[-1]
        self._path = _origin_form(self._path)
        if self._is_closing:
            return
        # Twisted accepts methods in lower case, which proxies may read as others.
        if not _METHOD.fullmatch(self._command) or not self._path.startswith((b"/", b"*")):
            self._reject(invalid_request())
            return
        if self._asks_for_websocket(request.requestHeaders):
            if not has_valid_handshake(_pairs(request.requestHeaders)):
                self._reject(invalid_request())
                return
            if self.length != 0:
                self._reject(upgrade_with_body())
                return
        else:
            # Servers may ignore an upgrade, for example to HTTP/2, which some clients offer with every request.
            request.requestHeaders.removeHeader(b"Upgrade")
        if self.length == 0:
            return
        # The application has a time limit of its own for the body.
        self._savedTimeOut = self.setTimeout(None)
        request.head_received(self._command, self._path, self._version, wants_continue=self._wants_continue)

    def _asks_for_websocket(self, headers: Headers) -> bool:
        upgrades = headers.getRawHeaders(b"Upgrade", [])
        return self._command == b"GET" and [name.lower() for name in upgrades] == [b"websocket"]

    @override
    def _finishRequestBody(self, data: bytes) -> None:
        trailers = getattr(self._transferDecoder, "_trailerHeaders", [])
        if all(map(_is_line_of_head, trailers)):
            super()._finishRequestBody(data)
        else:
            self._refuse(invalid_request())

    @override
    def _send100Continue(self) -> None:
        # Sent when the application asks for the body: until then it may refuse it.
        self._wants_continue = True

    def send_continue(self) -> None:
        """Send the status `100 Continue`."""
        super()._send100Continue()

    def pause_reading(self) -> None:
        """Stop reading from the connection."""
        self._networkProducer.pauseProducing()

    def resume_reading(self) -> None:
        """Read from the connection, unless it waits for the client to read."""
        if not self._waitingForTransport:
            self._networkProducer.resumeProducing()

    def close_after_response(self) -> None:
        """Ignore all further data, and close the connection after the response."""
        self._is_closing, self.persistent = True, False


class DaphneFactory(daphne.http_protocol.HTTPFactory):  # type: ignore[misc]
    """Factory of connections that uses the classes of this module."""

    protocol = DaphneChannel

    @override
    def buildProtocol(self, addr: Any) -> Any:
        protocol = super().buildProtocol(addr)
        protocol.timeOut = KEEP_ALIVE_SECONDS
        return protocol


# Patched, as daphne has no parameters for its classes of requests and connections.
daphne.http_protocol.WebRequest = DaphneRequest
daphne.server.HTTPFactory = DaphneFactory
daphne.ws_protocol.WebSocketFactory.protocol = DaphneSocket


def _stop_reactor() -> None:
    with suppress(ReactorNotRunning):
        _reactor.stop()


class DaphneServer(daphne.server.Server):  # type: ignore[misc]  # daphne has no types
    """daphne's server that passes bodies on as they arrive and waits for slow clients.

    `after_start` runs when the server listens, `shut_down` at SIGTERM, with a function that stops the server, and
    `before_stop` before the remaining requests are cancelled.
    """

    def __init__(
        self,
        *,
        after_start: Callable[[], Coroutine[Any, Any, None]],
        before_stop: Callable[[], Coroutine[Any, Any, None]],
        shut_down: Callable[[Callable[[], None]], None],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._after_start = after_start
        self._before_stop = before_stop
        self._shut_down = shut_down

    @override
    def run(self) -> None:
        _reactor.callWhenRunning(self._begin)
        super().run()

    def _begin(self) -> None:
        # By default, connections with invalid or too large messages are closed without a code.
        self.ws_factory.setProtocolOptions(failByDrop=False)
        self._starting = asyncio.ensure_future(self._after_start())
        # The loop does not run yet.
        self._loop = self._starting.get_loop()
        # In place of Twisted's handler, which stops at once. Twisted installs it after this.
        self._loop.call_soon(signal.signal, signal.SIGTERM, self._terminate)

    def _terminate(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._shut_down, _stop_reactor)

    @override
    def kill_all_applications(self) -> "Deferred[Any]":
        """End the active work, then cancel the remaining requests; the reactor waits for both."""
        # A request that is cancelled while its run ends could not send the end to its client.
        ended = Deferred.fromFuture(asyncio.ensure_future(self._end_work()))
        return ended.addCallback(lambda _: super(DaphneServer, self).kill_all_applications())

    async def _end_work(self) -> None:
        try:
            await self._before_stop()
        except Exception:
            logger.exception("work could not be ended")

    @override
    def create_application(self, protocol: Any, scope: Scope) -> Any:
        scope["asgi"] = {"version": "3.0"}
        inbox: _Inbox | _SocketInbox
        if scope["type"] == "http":
            scope[ABORT] = protocol.abort
            if protocol.rejection is not None:
                scope[REJECTED] = protocol.rejection
            if protocol.body_follows:
                # daphne passes nothing on from a closed body; the parts will follow.
                protocol.content.close()
            inbox = _Inbox(protocol)
        else:
            scope[ABORT] = protocol.transport.abortConnection
            inbox = _SocketInbox(protocol, scope)
        call = self.application(scope=scope, receive=inbox.get, send=partial(self.handle_reply, protocol))
        running = self.connections[protocol]["application_instance"] = asyncio.ensure_future(call)
        if isinstance(inbox, _SocketInbox):
            running.add_done_callback(inbox.clear)
        return inbox

    @override
    async def handle_reply(self, protocol: Any, message: Message) -> None:
        # A complete response is in memory as a whole already; flow control only helps with streams.
        has_more = message.get("more_body", False)
        if has_more:
            protocol.start_flow_control()
        elif message["type"] == "websocket.send":
            await protocol.inbox.flow_control.can_write.wait()
        if message["type"] == "websocket.close" and message.get("reason"):
            # daphne drops the reason, and autobahn's function for applications refuses the codes of the standard.
            reason = message["reason"].encode()
            protocol.sendCloseFrame(code=message["code"], reasonUtf8=reason, isReply=False)
            return
        await super().handle_reply(protocol, message)
        if message["type"] == "websocket.accept" and protocol.inbox is not None:
            protocol.inbox.accept()
        if has_more:
            await protocol.drained()
