"""Large bodies under daphne: uploads stay in Twisted's temporary file, and the use of disk and memory is bounded.

Unmodified, daphne reads a whole body before it calls the application, copies all of it into memory, and buffers
everything that the application sends, however slowly the client reads.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from io import BytesIO
from typing import Any

import daphne.http_protocol
import daphne.server
from twisted.internet.defer import Deferred
from typing_extensions import override

from kernel.asgi import Message, Scope

logger = logging.getLogger(__name__)


class _FlowControl:
    """Twisted producer that records whether the connection's send buffer can take more."""

    def __init__(self) -> None:
        self.can_write = asyncio.Event()
        self.can_write.set()

    def pauseProducing(self) -> None:  # noqa: N802 - Twisted's interface
        self.can_write.clear()

    def resumeProducing(self) -> None:  # noqa: N802
        self.can_write.set()

    def stopProducing(self) -> None:  # noqa: N802
        # The connection is lost: waiting writers continue, and their writes have no effect.
        self.can_write.set()


class DaphneRequest(daphne.http_protocol.WebRequest):  # type: ignore[misc]  # daphne has no types
    """daphne's request with a limit for the stored body and flow control for the response."""

    flow_control: _FlowControl | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        # Twisted would parse forms in memory, though nothing uses the result. The check for a form alone, which uses
        # the e-mail package, takes a quarter of a small request's time.
        super().__init__(*args, parsePOSTFormSubmission=False, **options)

    @override
    def handleContentChunk(self, data: bytes) -> None:
        """Store a part of the body, up to one byte beyond its limit."""
        # The extra byte lets `ApiShell` see that the body is too large, while the rest of it is never stored. The path
        # is taken from the channel: the request has none before the whole body has arrived.
        path = getattr(self.channel, "_path", b"")
        remaining = self.server.max_bytes(path) + 1 - self.content.tell()
        if remaining > 0:
            super().handleContentChunk(data[:remaining])

    async def drained(self) -> None:
        """Wait until the client has received most of what was sent, or has disconnected."""
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
        super().finish()

    @override
    def connectionLost(self, reason: Any) -> None:
        if self.flow_control is not None:
            self.flow_control.stopProducing()
        super().connectionLost(reason)


# Patched, as daphne's connection factory has no parameter for the class of requests.
daphne.http_protocol.WebRequest = DaphneRequest


class DaphneServer(daphne.server.Server):  # type: ignore[misc]  # daphne has no types
    """daphne's server that passes uploads on as files and waits for slow clients.

    `max_bytes` returns the limit of a body for a path. `before_stop` runs before the remaining requests are cancelled.
    """

    def __init__(
        self,
        *,
        is_upload: Callable[[Scope], bool],
        max_bytes: Callable[[bytes], int],
        before_stop: Callable[[], Coroutine[Any, Any, None]],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._before_stop = before_stop
        self.is_upload = is_upload
        self.max_bytes = max_bytes

    @override
    def kill_all_applications(self) -> "Deferred[Any]":
        """End what runs, then cancel the remaining requests; the reactor waits for both."""
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
        # Twisted keeps small bodies in memory; those are passed on as usual.
        if scope["type"] == "http" and self.is_upload(scope) and not isinstance(protocol.content, BytesIO):
            scope["spooled"], protocol.content = protocol.content, BytesIO()
        return super().create_application(protocol, scope)

    @override
    async def handle_reply(self, protocol: Any, message: Message) -> None:
        # A complete response is in memory as a whole already; flow control only helps with streams.
        has_more = message.get("more_body", False)
        if has_more:
            protocol.start_flow_control()
        await super().handle_reply(protocol, message)
        if has_more:
            await protocol.drained()
