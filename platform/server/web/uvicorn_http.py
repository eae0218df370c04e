"""HTTP under uvicorn with limits of connections, of the URL and of the headers, which uvicorn does not have."""

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
from django.conf import settings
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from core.admission.request_bodies import REJECTED
from core.errors import ApiError, HeadersTooLarge, UrlTooLong
from core.http.asgi import ABORT, WATCH
from server.web.request_heads import (
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

# Maximum number of requests that wait on a connection for the one before them. After these the connection is closed
# without an answer to further requests; HTTP allows this, and clients repeat them. Without a limit, 64 KiB of input
# could contain thousands of requests, which take 5 KB of memory each.
_MAX_PIPELINED = 200


class _Pipeline(list[Any]):
    """Requests that wait for the one before them on their connection: the part of a `deque` that uvicorn uses."""

    def appendleft(self, waiting: Any) -> None:
        self.insert(0, waiting)


class LimitedHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP connection that answers URLs and headers beyond the limits with 414, 431 or, if late, 408.

    uvicorn itself waits forever for the first request, and for the end of its headers. It adds the trailers of a
    chunked body to the headers of its request, where the application would trust them; here they are dropped.
    """

    # With more attributes in its dictionary, an object no longer shares the dictionary's keys with the others of its
    # class, which took 1.6 KB per connection (tracemalloc).
    __slots__ = (
        "_early_bytes",
        "_head_bytes",
        "_head_timer",
        "_head_to_repeat",
        "_is_rejected",
        "_on_disconnect",
        "_reader",
        "_reads_head",
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._reads_head = self._is_rejected = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._on_disconnect: Callable[[], None] | None = None
        # Only while an answer waits for the client, as few ever do.
        self._reader: ReaderWatch | None = None
        self._head_bytes = self._early_bytes = 0
        # The head of a request for an upgrade other than WebSocket, without the upgrade.
        self._head_to_repeat = b""
        # An empty `deque` takes 0.75 KB. A connection has three, here and in two events: 2 KB less per open stream.
        self.pipeline = _Pipeline()  # type: ignore[assignment]

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > max_connections():
            self._is_rejected = True
            self._refuse(too_many_connections())
            return
        self._start_head_timer()
        _shrink(self.flow._is_writable_event)  # noqa: SLF001 - uvicorn has no other way to replace it

    @override
    def data_received(self, data: bytes) -> None:
        if self._is_rejected:
            return
        # The parser buffers an incomplete header or trailer, and drops the lines around the chunks of a body. So all
        # bytes that arrive are counted here, and the callbacks deduct those that the application receives.
        self._early_bytes += len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        if not self._reads_head:
            self._after_head()
            return
        self._start_head_timer()
        if len(self.url) > MAX_URL_BYTES:
            self._reject(UrlTooLong())
        elif self._early_bytes > MAX_HEAD_BYTES:
            self._reject(HeadersTooLarge())

    def _parse(self, data: bytes) -> None:
        """Parse data, including data after a request for an upgrade that is ignored; uvicorn itself would lose it."""
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserError:
                self.send_400_response("")
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = self._upgrade(data[upgrade.args[0] :])
            else:
                return

    def _upgrade(self, rest: bytes) -> bytes:
        """Hand the connection over to a WebSocket, or return the data to parse after another upgrade."""
        # The parser would treat the body as data of the other protocol, unless the head requests no upgrade.
        if self._head_to_repeat:
            data, self._head_to_repeat = self._head_to_repeat + rest, b""
            return data
        if not self._is_rejected and self._should_upgrade():
            self.handle_websocket_upgrade()
        elif not self._is_rejected:
            # After CONNECT, what follows is not HTTP.
            self._is_rejected, self.cycle.keep_alive = True, False
        return b""

    def _after_head(self) -> None:
        # Empty lines between requests end the time for which the connection is kept, but begin no request.
        is_idle = self.cycle is None or self.cycle.response_complete
        # Not after an upgrade: the connection belongs to the WebSocket.
        is_open = not self.transport.is_closing() and self.transport.get_protocol() is self
        if is_idle and is_open and self.timeout_keep_alive_task is None:
            self._start_head_timer()
        else:
            self._stop_head_timer()
        if not is_idle and self.cycle.more_body and self._early_bytes > MAX_HEAD_BYTES:
            self._refuse_rest(HeadersTooLarge())

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(settings.HEADERS_SECONDS, self._end_head)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_head(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if self._is_responding:
            # An error in the middle of the response to the request before would be read as part of it.
            self._start_head_timer()
            return
        if not self._reads_head:
            # Browsers open connections that they may not use.
            self.transport.close()
            return
        self._refuse_rest(slow_head())

    @property
    def _is_responding(self) -> bool:
        """True while the application responds to a request that has arrived."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and (cycle.response_started or not cycle.more_body)

    def _refuse(self, error: ApiError) -> None:
        """Send an error in place of the application, unless it is already responding, and close the connection."""
        if self._is_responding and not self.cycle.more_body:
            # Complete requests before it are still answered.
            self.cycle.keep_alive = False
            return
        if not self._is_responding:
            self.transport.write(raw_response(error))
        self.transport.close()

    def _refuse_rest(self, error: ApiError) -> None:
        """Refuse the rest of a request, and ignore all further data on the connection."""
        self._is_rejected, self._reads_head = True, False
        self._refuse(error)

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        # The unsent rest is small, but a connection that is closing stays open for it.
        if not self.transport.is_closing():
            self._stop_watching_reader()

    def _watch_reader(self) -> None:
        if self._reader is None:
            self._reader = ReaderWatch(self.transport.get_extra_info("socket"), self.transport.abort)
            self._reader.start()

    def _stop_watching_reader(self) -> None:
        if self._reader is not None:
            self._reader.stop()
            self._reader = None

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() and self._has_unsent():
            self._watch_reader()

    @override
    def timeout_keep_alive_handler(self) -> None:
        if self._has_unsent() and not self.transport.is_closing():
            # A large answer may take longer than that. Its client has a limit of its own.
            self._watch_reader()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        else:
            super().timeout_keep_alive_handler()

    def _has_unsent(self) -> bool:
        transport: asyncio.WriteTransport = self.transport
        return transport.get_write_buffer_size() > 0

    @override
    def send_400_response(self, msg: str) -> None:
        self._refuse_rest(invalid_request())

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_watching_reader()
        super().connection_lost(exc)
        if self._on_disconnect is not None:
            self._on_disconnect()

    def _watch_client(self, disconnected: Callable[[], None] | None) -> None:
        """Call a function when the client disconnects, also if it has done so already. None ends this."""
        self._on_disconnect = disconnected
        if disconnected is None:
            return
        # uvicorn drops its parser when the connection is lost.
        if self.parser is None:
            self.loop.call_soon(disconnected)
            return
        # The body may have been so large that reading is paused. Only a connection that is read can be lost.
        self.flow.resume_reading()

    @override
    def _should_upgrade(self) -> bool:
        # A proxy may have agreed with the client on the first of several protocols.
        is_only_one = sum(name == b"upgrade" for name, _ in self.headers) == 1
        return is_only_one and self.parser.get_method() == b"GET" and super()._should_upgrade()

    @override
    def handle_websocket_upgrade(self) -> None:
        # A length of 0 is allowed here, but not by the parser of WebSockets.
        self.scope["headers"] = [pair for pair in self.scope["headers"] if pair[0] != b"content-length"]
        self._stop_head_timer()
        self._stop_watching_reader()
        super().handle_websocket_upgrade()

    @override
    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._is_rejected:
            return
        self._reads_head = True
        # The data in which the head starts may contain the end of another request.
        self._head_bytes = self._early_bytes = 0
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope[ABORT] = self.transport.abort
        scope[WATCH] = self._watch_client

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._reads_head:
            super().on_header(name, value)
        elif self._head_bytes > MAX_HEAD_BYTES and not self._is_rejected:
            self._refuse_rest(HeadersTooLarge())

    @override
    def on_headers_complete(self) -> None:
        if self._is_rejected:
            return
        head_bytes = self._head_bytes + len(self.url)
        # From now on, the bytes that surround the body are counted.
        self._reads_head, self._head_bytes, self._early_bytes = False, 0, 0
        if len(self.url) > MAX_URL_BYTES:
            self._reject(UrlTooLong())
        elif head_bytes > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            self._reject(HeadersTooLarge())
        elif not self._has_valid_framing():
            self._refuse_rest(invalid_request())
        elif len(self.pipeline) >= _MAX_PIPELINED:
            self._is_rejected = True
            self.pipeline[0][0].keep_alive = False
        elif self.parser.should_upgrade() and self._should_upgrade():
            self._check_upgrade()
        elif self.parser.should_upgrade() and any(name == b"upgrade" for name, _ in self.headers):
            self._head_to_repeat = self._head_without_upgrade()
        else:
            # Clients of HTTP/1.0 do not know this response, and without a body there is nothing to continue with.
            has_expectation = self.expect_100_continue and self._has_body()
            self.expect_100_continue = has_expectation and self.parser.get_http_version() != "1.0"
            self._start_request()

    def _check_upgrade(self) -> None:
        if self._has_body():
            self._reject(upgrade_with_body())
        elif self.cycle is not None and not self.cycle.response_complete:
            # The response to the request before would be read as frames.
            self._refuse_rest(invalid_request())
        elif not has_valid_handshake(self.headers):
            self._refuse_rest(invalid_request())
        else:
            self._start_request()

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _has_valid_framing(self) -> bool:
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        return self.parser.get_http_version() in ("1.0", "1.1") and all(map(is_chunked_only, codings))

    def _has_body(self) -> bool:
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
            for name, value in self.headers
        )

    def _start_request(self) -> None:
        super().on_headers_complete()
        if self.cycle is not None:
            _shrink(self.cycle.message_event)

    def _reject(self, error: ApiError) -> None:
        """Let the application answer a request with an error, then close the connection."""
        self._stop_head_timer()
        self._is_rejected, self._reads_head = True, False
        self.url = short_path(self.url)
        # Neither an upgrade nor half of a header must be acted upon.
        self.headers.clear()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope[REJECTED] = error
        self._start_request()
        scope["http_version"] = "1.1"

    @override
    def on_body(self, body: bytes) -> None:
        self._early_bytes = max(0, self._early_bytes - framing_bytes(body))
        if not self._is_rejected and not self._head_to_repeat:
            super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        if not self._is_rejected and not self._head_to_repeat:
            super().on_message_complete()


def _shrink(event: asyncio.Event) -> None:
    """Store the waiters of an event in a list, which supports everything that `asyncio.Event` does with its deque."""
    if not event._waiters:  # noqa: SLF001
        event._waiters = []  # type: ignore[assignment]  # noqa: SLF001
