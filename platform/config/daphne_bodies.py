"""Large bodies under daphne: uploads stay on the disk where Twisted has put them, nobody fills that disk or the memory.

daphne reads a whole body before it calls the application, queues all of it in memory, and then takes whatever the
application sends, however slowly the client reads.
"""

import asyncio
from collections.abc import Callable
from io import BytesIO
from typing import Any

import daphne.http_protocol
import daphne.server
from typing_extensions import override

from kernel.asgi import Message, Scope


class _Valve:
    """What Twisted tells when the client's connection has taken enough, and when it can take more."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.is_open.set()

    def pauseProducing(self) -> None:  # noqa: N802 - Twisted's interface
        self.is_open.clear()

    def resumeProducing(self) -> None:  # noqa: N802
        self.is_open.set()

    def stopProducing(self) -> None:  # noqa: N802
        self.is_open.set()


class Request(daphne.http_protocol.WebRequest):  # type: ignore[misc]  # daphne has no types
    """daphne's request, with an end to what it stores and a valve for what it sends."""

    valve: _Valve | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        # Twisted would read forms into memory and parse them, for nobody; just looking for one, with the
        # e-mail package, takes a quarter of a small request's time.
        super().__init__(*args, parsePOSTFormSubmission=False, **options)

    @override
    def handleContentChunk(self, data: bytes) -> None:
        """Keep one byte more than is allowed at most: the shell sees that it was too much, and the disk does not."""
        # The channel knows the path already, the request only once the whole body is there.
        path = getattr(self.channel, "_path", b"")
        room = self.server.most_bytes(path) + 1 - self.content.tell()
        if room > 0:
            super().handleContentChunk(data[:room])

    async def drained(self) -> None:
        """Wait until the client has taken most of what was sent, or has gone."""
        if self.valve is not None:
            await self.valve.is_open.wait()

    def watch(self) -> None:
        """Begin to hear of a client that reads slowly."""
        if self.valve is None and not self.finished and self.channel is not None:
            self.valve = _Valve()
            self.registerProducer(self.valve, streaming=True)

    @override
    def finish(self) -> None:
        if self.producer is not None:
            self.unregisterProducer()
        super().finish()

    @override
    def connectionLost(self, reason: Any) -> None:
        if self.valve is not None:
            self.valve.stopProducing()
        super().connectionLost(reason)


# Its factory of connections has no parameter for this.
daphne.http_protocol.WebRequest = Request


class Server(daphne.server.Server):  # type: ignore[misc]  # daphne has no types
    """daphne's server, which hands uploads over as files and waits for slow clients."""

    def __init__(
        self, *, is_upload: Callable[[Scope], bool], most_bytes: Callable[[bytes], int], **options: Any
    ) -> None:
        super().__init__(**options)
        self.is_upload = is_upload
        self.most_bytes = most_bytes

    @override
    def create_application(self, protocol: Any, scope: Scope) -> Any:
        if scope["type"] == "http" and self.is_upload(scope) and not isinstance(protocol.content, BytesIO):
            scope["spooled"], protocol.content = protocol.content, BytesIO()
        return super().create_application(protocol, scope)

    @override
    async def handle_reply(self, protocol: Any, message: Message) -> None:
        goes_on = message.get("more_body", False)
        if goes_on:
            protocol.watch()
        await super().handle_reply(protocol, message)
        if goes_on:
            await protocol.drained()
