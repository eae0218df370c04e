"""The connection of the run writer, when the server closes it at the worst moment. The server is scripted."""

import asyncio
import socket
import struct
from collections.abc import Callable

import pytest
import uvloop

from core.db.statement_pipeline import ConnectionLost, Statement, StatementPipeline

LOOPS = [uvloop.new_event_loop, asyncio.new_event_loop]
SELECT = [(Statement("SELECT 1"), ())]


def message(kind: bytes, body: bytes = b"") -> bytes:
    """Return a message of PostgreSQL's protocol."""
    return kind + (len(body) + 4).to_bytes(4, "big") + body


STARTED = message(b"R", bytes(4)) + message(b"S", b"client_encoding\0UTF8\0") + message(b"Z", b"I")
COMMITTED = message(b"1") + message(b"2") + message(b"n") + message(b"C", b"SELECT 0\0") + message(b"Z", b"I")
# The first and last words of a server that stops immediately, to a transaction and to an idle connection.
STOPPING = message(b"N", b"SWARNING\0VWARNING\0C57P02\0Mterminating connection because of crash\0\0")


class Server:
    """A server that commits one transaction on each connection. `serve` ends when a client has lost its connection."""

    def __init__(self, listener: socket.socket, *, dies_idle: bool) -> None:
        self._listener = listener
        self._dies_idle = dies_idle
        self.has_died = asyncio.Event()

    async def serve(self) -> None:
        """Serve one client after the other."""
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self._listener)
            connection.setblocking(False)
            for answer in (STARTED, COMMITTED):
                await loop.sock_recv(connection, 65536)
                await loop.sock_sendall(connection, answer)
            if self._dies_idle:
                await asyncio.sleep(0.01)
            else:
                await loop.sock_recv(connection, 65536)
            # In one step of the loop: the client finds the message and the reset (RST) at the same time.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.send(STOPPING)
            connection.close()
            self.has_died.set()


@pytest.mark.parametrize("dies_idle", [True, False])
@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_reset_after_the_last_message_is_noticed(
    new_loop: Callable[[], asyncio.AbstractEventLoop], *, dies_idle: bool
) -> None:
    async def commit_and_lose(listener: socket.socket) -> None:
        server = Server(listener, dies_idle=dies_idle)
        serving = asyncio.ensure_future(server.serve())
        host, port = listener.getsockname()
        pipeline = StatementPipeline(
            lambda: f"host={host} port={port} user=app dbname=app sslmode=disable gssencmode=disable"
        )
        assert await pipeline.run(SELECT) == [[]]
        if dies_idle:
            await server.has_died.wait()
            await asyncio.sleep(0.05)
        else:
            with pytest.raises(ConnectionLost):
                await pipeline.run(SELECT)
        assert await pipeline.run(SELECT) == [[]]
        pipeline.close()
        serving.cancel()

    with socket.create_server(("127.0.0.1", 0)) as listener, asyncio.Runner(loop_factory=new_loop) as runner:
        listener.setblocking(False)
        runner.run(asyncio.wait_for(commit_and_lose(listener), 60))
