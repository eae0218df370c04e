"""Admission of request bodies, independent of the server: their maximum size by sender, and their minimum rate.

A server calls the application as soon as the headers have arrived, and passes the body on through `receive`. It reads
from the connection only when the application asks for more, so no part of a refused body is stored.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from weakref import WeakValueDictionary

from django.http import HttpResponse

from core.errors import ApiError, RateLimited, RequestTimeout, RequestTooLarge, retry_headers
from core.http.asgi import App, Message, Receive, Scope, Send, header, send_response
from core.http.rendering import error_response

FREE_BYTES = 64 * 1024
"""Maximum size of a body from an unknown caller. Callers may send such bodies to any URL."""
REJECTED = "rejected"
"""Key of the scope with the `ApiError` of a request whose head the server has rejected."""
# Bodies beyond this size take one of their caller's slots.
_LARGE_BYTES = 1024 * 1024
_SLOTS = 32
_SLOT_SECONDS = 60
# After a refusal the rest of the body is dropped until the client pauses or this time has passed. A connection that is
# closed while data of the client is unread is reset, and many clients then lose the response.
_LINGER_SECONDS = 5
_PAUSE_SECONDS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyRule:
    """Limits of a body beyond `FREE_BYTES`: its maximum, and the check of its sender.

    `admit` reads the headers, returns a name of the caller, and raises an `ApiError` for unknown callers.
    """

    max_bytes: int
    admit: Callable[[Scope], Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Minimum rate of a body, measured over windows of `seconds`."""

    seconds: float
    bytes_per_second: int


class BodyGuard:
    """ASGI app that lets another app receive only bodies that `rule` allows, at the minimum `pace`.

    An excessive Content-Length is refused before any of the body is read; a body without a length is counted while it
    arrives. A response that starts before the body is complete closes the connection.
    """

    def __init__(
        self,
        app: App,
        *,
        rule: Callable[[Scope], BodyRule],
        pace: Pace,
        render: Callable[[Scope, ApiError], HttpResponse] = lambda _, error: error_response(error),
    ) -> None:
        self._app = app
        self._rule = rule
        self._pace = pace
        self._render = render
        self._slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        announced = header(scope, b"content-length")
        length = int(announced) if announced.isdigit() else None
        rejected: ApiError | None = scope.get(REJECTED)
        if rejected is None and not length and not header(scope, b"transfer-encoding"):
            await self._app(scope, receive, send)
            return
        body = _Body(scope, receive, send, rule=self._rule, pace=self._pace, slots=self._slots, length=length)
        try:
            if rejected is not None:
                # Not raised: the traceback of an error in the scope would keep the scope until a garbage collection.
                await send_response(self._render(scope, rejected), body.send)
                return
            await body.check(length or 0)
            await self._app(scope, body.receive, body.send)
        except ApiError as error:
            await send_response(self._render(scope, error), body.send)
        finally:
            body.release()


class _Body:
    """The body of one request, with the app's ways to receive it and to respond."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        rule: Callable[[Scope], BodyRule],
        pace: Pace,
        slots: WeakValueDictionary[str, asyncio.Semaphore],
        length: int | None,
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._rule = rule
        self._pace = pace
        self._slots = slots
        self._length = length
        self._loop = asyncio.get_running_loop()
        self._size = 0
        self._is_complete = False
        self._is_early = False
        self._admitted: tuple[str, int] | None = None
        self._slot: asyncio.Semaphore | None = None
        self._start_window()

    def _start_window(self) -> None:
        self._window_bytes = 0
        self._window_seconds = self._pace.seconds

    async def check(self, size: int) -> None:
        """Check that the body may have this size; raises an `ApiError`."""
        if size <= FREE_BYTES:
            return
        if self._admitted is None:
            rule = self._rule(self._scope)
            self._refuse_beyond(rule.max_bytes, size)
            self._admitted = await rule.admit(self._scope), rule.max_bytes
        caller, max_bytes = self._admitted
        self._refuse_beyond(max_bytes, size)
        if size > _LARGE_BYTES and self._slot is None:
            # A caller that sends many large bodies at once waits here, and so does its connection: its bodies must not
            # fill the disk either.
            slot = self._slots.setdefault(caller, asyncio.Semaphore(_SLOTS))
            try:
                async with asyncio.timeout(_SLOT_SECONDS):
                    await slot.acquire()
            except TimeoutError:
                message = f"Too many large requests: at most {_SLOTS} can be sent at the same time."
                raise RateLimited(message, headers=retry_headers(10)) from None
            self._slot = slot

    def _refuse_beyond(self, max_bytes: int, size: int) -> None:
        if size > max_bytes:
            unit, name = (1024 * 1024, "MiB") if max_bytes >= 1024 * 1024 else (1024, "KiB")
            raise RequestTooLarge(f"The request body is too large: the limit is {max_bytes // unit} {name}.")

    def receive(self) -> Awaitable[Message]:
        """Return the next part of the body, then the server's other messages; raises an `ApiError`."""
        # Not a coroutine: a stream waits for a disconnect as long as it lives.
        return self._receive() if self._is_complete else self._receive_part()

    async def _receive_part(self) -> Message:
        message = await self._receive_in_time()
        if message["type"] == "http.disconnect":
            self._is_complete = True
            return message
        received = len(message.get("body", b""))
        self._size += received
        self._window_bytes += received
        self._is_complete = not message.get("more_body", False)
        await self.check(self._size)
        if self._is_complete:
            self.release()
        return message

    async def _receive_in_time(self) -> Message:
        # Only the time spent here counts: while the app is busy, the client cannot send.
        while True:
            started = self._loop.time()
            try:
                async with asyncio.timeout(self._window_seconds):
                    message = await self._receive()
            except TimeoutError:
                if self._window_bytes < self._pace.bytes_per_second * self._pace.seconds:
                    raise RequestTimeout from None
                self._start_window()
            else:
                self._window_seconds = max(0.0, self._window_seconds - (self._loop.time() - started))
                return message

    async def send(self, message: Message) -> None:
        """Send a part of the response; with the last one, drop the rest of the body."""
        if message["type"] == "http.response.start" and not self._is_complete:
            await self._read_short_rest()
            self._is_early = not self._is_complete
            if self._is_early:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        if not self._is_early or message["type"] != "http.response.body" or message.get("more_body", False):
            await self._send(message)
            return
        await self._send({**message, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while not self._is_complete:
                    async with asyncio.timeout(_PAUSE_SECONDS):
                        dropped = await self._receive()
                    self._is_complete = not dropped.get("more_body", False)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _read_short_rest(self) -> None:
        # The rest is small, and after it the connection can serve the next request.
        if self._length is not None and self._length <= FREE_BYTES:
            with suppress(ApiError):
                while not self._is_complete:
                    await self.receive()

    def release(self) -> None:
        """Let another body of the caller take the slot; idempotent."""
        if self._slot is not None:
            self._slot.release()
            self._slot = None
