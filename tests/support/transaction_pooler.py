"""A pooler for PostgreSQL in transaction mode that knows nothing of prepared statements, like PgBouncer before 1.21."""

import asyncio
import itertools
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg

# Messages of PostgreSQL's protocol: a type, the length of the rest, the rest.
_STARTED = (
    b"R" + (8).to_bytes(4, "big") + (0).to_bytes(4, "big"),  # authenticated
    b"S" + (4 + 21).to_bytes(4, "big") + b"client_encoding\0UTF8\0",
    b"Z" + (5).to_bytes(4, "big") + b"I",  # ready
)


class TransactionPooler:
    """Gives each transaction of a client the next of its server connections."""

    def __init__(self) -> None:
        self.port = 0
        self.transactions = 0
        self.parses = 0

    async def serve(
        self,
        servers: "list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]",
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Serve a client; its transactions end with a sync."""
        await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big") - 4)
        writer.write(b"".join(_STARTED))
        try:
            for server_reader, server_writer in itertools.cycle(servers):
                kind = b""
                while kind != b"S":
                    kind, message = await _message(reader)
                    self.parses += kind == b"P"
                    server_writer.write(message)
                self.transactions += 1
                while kind != b"Z":
                    kind, message = await _message(server_reader)
                    writer.write(message)
        except asyncio.IncompleteReadError:
            writer.close()


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:], "big") - 4)


@asynccontextmanager
async def pooled(conninfo: str, *, servers: int) -> AsyncIterator[TransactionPooler]:
    """Run a pooler in this event loop, with a number of server connections."""
    pooler = TransactionPooler()
    connections = [await psycopg.AsyncConnection.connect(conninfo) for _ in range(servers)]
    streams = []
    for connection in connections:
        streams.append(await asyncio.open_connection(sock=socket.socket(fileno=os.dup(connection.pgconn.socket))))
    server = await asyncio.start_server(lambda *client: pooler.serve(streams, *client), "127.0.0.1", 0)
    pooler.port = server.sockets[0].getsockname()[1]
    try:
        yield pooler
    finally:
        server.close()
        for connection, (_, writer) in zip(connections, streams, strict=True):
            writer.close()
            await connection.close()
