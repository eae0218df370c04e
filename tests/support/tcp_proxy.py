"""A TCP proxy that simulates an unreachable server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Proxy:
    """Forwards connections to a server while it is open."""

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._cut_at: bytes | None = None
        self._stall_at: bytes | None = None

    def hold(self) -> None:
        """Keep connections open without forwarding data."""
        self._flows.clear()

    def cut_at(self, words: bytes) -> None:
        """Close the first connection on which either side sends these bytes, without forwarding them."""
        self._cut_at = words

    def stall_at(self, words: bytes) -> None:
        """Stop forwarding the direction in which these bytes occur first; the connection stays open."""
        self._stall_at = words

    @property
    def has_stalled(self) -> bool:
        """True after the connection of `stall_at` has stalled."""
        return self._stall_at is None

    @property
    def has_cut(self) -> bool:
        """True after the connection of `cut_at` was closed."""
        return self._cut_at is None

    async def open(self) -> None:
        """Accept connections, on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Close all connections and accept no more."""
        if self._server is not None:
            self._server.close()
        for writer in [*self._writers]:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._writers |= {writer, far_writer}
        try:
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        except (ConnectionError, asyncio.CancelledError):
            pass  # asyncio logs handlers that end with these errors
        finally:
            self._writers -= {writer, far_writer}
            far_writer.close()
            writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._flows.wait()
            if self._cut_at is not None and self._cut_at in data:
                self._cut_at = None
                raise ConnectionError
            if self._stall_at is not None and self._stall_at in data:
                self._stall_at = None
                while await reader.read(65536):
                    pass
                return
            writer.write(data)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def proxied(host: str, port: int) -> AsyncIterator[Proxy]:
    """Run a proxy in this event loop, initially open."""
    proxy = Proxy(host, port)
    await proxy.open()
    try:
        yield proxy
    finally:
        await proxy.close()
