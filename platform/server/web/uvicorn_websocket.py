"""WebSockets under uvicorn whose large messages are received only while the process has memory for them."""

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from django.conf import settings
from typing_extensions import override
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets import http11
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.streams import StreamReader

from core.http.socket_messages import IncomingMessage
from server.web.request_heads import MAX_HEAD_BYTES, MAX_HEADERS, invalid_request, raw_response

# Frames up to this size are control frames or small messages.
_CONTROL_BYTES = 125
_DEFLATE_RATIO = 1032
# Patched, as these limits have no parameters. The HTTP connection has already checked the head with its own limits.
http11.MAX_NUM_HEADERS = MAX_HEADERS
http11.MAX_LINE_LENGTH = 2 * MAX_HEAD_BYTES


class _Reader(StreamReader):
    """Reader that waits before it returns a frame which could need much more memory after its decompression.

    `expected` is the size of the frame that is being read, and `may_expand` is asked with its size.
    """

    expected = 0

    def __init__(self, may_expand: Callable[[int], bool]) -> None:
        super().__init__()
        self._may_expand = may_expand

    @override
    def read_exact(self, n: int) -> Generator[None, None, bytes]:
        self.expected = n
        data = yield from super().read_exact(n)
        self.expected = 0
        while not self._may_expand(n):
            yield
        return data


class _Inbox(asyncio.Queue[dict[str, Any]]):
    """Messages for the application, each with its reservation of memory."""

    def __init__(self, incoming: IncomingMessage) -> None:
        super().__init__()
        self._incoming = incoming

    @override
    def _put(self, item: dict[str, Any]) -> None:
        self._incoming.hand_over(item)
        super()._put(item)


class LimitedSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket connection, whose messages reserve the memory that they need."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._reader = _Reader(self._may_expand)
        self.conn.reader = self._reader
        # The parser had started with the reader that is replaced.
        self.conn.parser = self.conn.parse()
        next(self.conn.parser)
        # Until the application has accepted the connection, nothing is read from it.
        self._is_accepted = False
        self._incoming = IncomingMessage(pause=self._update_reading, resume=self._resume, fail=self._fail)
        self.queue = _Inbox(self._incoming)  # type: ignore[assignment]

    @override
    def data_received(self, data: bytes) -> None:
        self._incoming.received(len(data))
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            # uvicorn would leave the client without an answer.
            self.transport.write(raw_response(invalid_request()))
            self.transport.close()
            return
        if self._reader.expected and self._is_accepted and not self.close_sent:
            self._incoming.grows_to(self._reader.expected + sum(map(len, self.frames)))

    @override
    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            self._incoming.scope = self.scope  # type: ignore[assignment]
            self._update_reading()

    @override
    async def send(self, message: Any) -> None:
        await super().send(message)
        if not self._is_accepted:
            self._is_accepted = True
            self._update_reading()

    @override
    def handle_cont(self, event: Frame) -> None:
        # In one buffer: uvicorn keeps an object for each fragment, even if it is empty.
        if not isinstance(self.frames[0], bytearray):
            self.frames = [bytearray(self.frames[0])]  # type: ignore[list-item]
        self.frames[0] += event.data
        if event.fin:
            self.send_receive_event_to_app()

    @override
    def send_receive_event_to_app(self) -> None:
        if self._incoming.ends_with(sum(map(len, self.frames))):
            super().send_receive_event_to_app()
        self.frames = []

    @override
    async def receive(self) -> Any:
        message: dict[str, Any] = await super().receive()  # type: ignore[assignment]
        self._update_reading()
        return message

    @override
    async def run_asgi(self) -> None:
        await super().run_asgi()
        # Messages that nothing will read must not reserve memory.
        while not self.queue.empty():
            self.queue.get_nowait()

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self._update_reading()

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        self._update_reading()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._incoming.close()
        self.frames = []
        super().connection_lost(exc)

    def _may_expand(self, size: int) -> bool:
        if not self.conn.extensions or size <= _CONTROL_BYTES:
            return True
        largest = min(size * _DEFLATE_RATIO + sum(map(len, self.frames)), settings.MAX_BODY_BYTES)
        return self._incoming.may_become(largest)

    def _resume(self) -> None:
        # The parser may wait for memory, and not for data.
        if not self.transport.is_closing():
            self.data_received(b"")
        self._update_reading()

    def _update_reading(self) -> None:
        if self.transport.is_closing():
            return
        # Pings are answered, also to a client that does not read.
        is_full = self.read_paused or not self.writable.is_set()
        is_paused = is_full or self._incoming.is_waiting or not (self._is_accepted or self.close_sent)
        if is_paused and self.transport.is_reading():
            self.transport.pause_reading()
        elif not is_paused and not self.transport.is_reading():
            self.transport.resume_reading()

    def _fail(self, code: int, reason: str) -> None:
        if self.close_sent or self.transport.is_closing():
            return
        self.conn.fail(code, reason)
        self.handle_parser_exception()
