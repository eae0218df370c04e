"""Proxy for containers with network access: tunnels their connections to the allowed domains.

A container itself has no network, only a socket. While a call runs in the container, the sandbox service passes the
connections to this socket on to the process that made the call. That process checks the domain and connects under the
rules of `core.egress`.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import httpcore2

from core.egress import Egress
from core.errors import EgressFailed, EgressRefused
from sandbox.client import ContainerGone, SandboxClient, SandboxUnavailable
from sandbox.frames import Stream

logger = logging.getLogger(__name__)
_MAX_CONNECTIONS = 32
_HEAD_SECONDS = 30.0
_PIECE = 64 * 1024
_CONNECT = re.compile(rb"CONNECT ([A-Za-z0-9.-]{1,253}):([0-9]{1,5}) HTTP/1\.[01]\r\n")


@asynccontextmanager
async def open_network(
    client: SandboxClient, container: str, *, domains: Collection[str], egress: Egress
) -> AsyncIterator[None]:
    """Let the programs of a container connect to these domains inside the `async with` block."""
    if not domains:
        yield
        return
    proxy = asyncio.ensure_future(_accept(client, container, domains, egress))
    try:
        yield
    finally:
        proxy.cancel()
        await asyncio.wait([proxy])


async def _accept(client: SandboxClient, container: str, domains: Collection[str], egress: Egress) -> None:
    places = asyncio.Semaphore(_MAX_CONNECTIONS)
    tunnels: set[asyncio.Task[None]] = set()

    async def serve(stream: Stream) -> None:
        try:
            await _serve(stream, container, domains, egress)
        finally:
            stream[1].close()
            places.release()

    try:
        while True:
            await places.acquire()
            tunnel = asyncio.create_task(serve(await client.accept(container)))
            tunnels.add(tunnel)
            tunnel.add_done_callback(tunnels.discard)
    except (ContainerGone, SandboxUnavailable):
        # The call in the container fails for the same reason and reports the error.
        return
    finally:
        for tunnel in tunnels:
            tunnel.cancel()
        if tunnels:
            await asyncio.wait(tunnels)


async def _serve(stream: Stream, container: str, domains: Collection[str], egress: Egress) -> None:
    reader, writer = stream
    try:
        async with asyncio.timeout(_HEAD_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
            found = _CONNECT.match(head)
            if found is None:
                await _refuse(stream, b"405 Method Not Allowed", b"Only https is supported.")
                return
            host, port = found[1].decode().lower(), int(found[2])
            if host not in domains:
                await _refuse(stream, b"403 Forbidden", b"The network policy does not allow this host.")
                return
            outside = await egress.connect(host, port)
    except EgressRefused:
        await _refuse(stream, b"403 Forbidden", b"This address is not allowed.")
        return
    except EgressFailed:
        await _refuse(stream, b"502 Bad Gateway", b"The host could not be reached.")
        return
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return
    logger.info("a container connected to a host", extra={"container": container, "host": host})
    try:
        writer.write(b"HTTP/1.1 200 Connection Established\r\n\r\n")
        await _tunnel(stream, outside)
    finally:
        await outside.aclose()


async def _refuse(stream: Stream, status: bytes, reason: bytes) -> None:
    head = b"HTTP/1.1 %s\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    try:
        stream[1].write(head % (status, len(reason)) + reason)
        await stream[1].drain()
    except OSError:
        return


async def _tunnel(stream: Stream, outside: httpcore2.AsyncNetworkStream) -> None:
    """Copy bytes until the server closes the connection or either side fails."""
    reader, writer = stream

    async def upload() -> None:
        while piece := await reader.read(_PIECE):
            await outside.write(piece)
        # The transport cannot close one direction alone; the server still answers the request that it has read.
        await asyncio.Event().wait()

    async def download() -> None:
        while piece := await outside.read(_PIECE):
            writer.write(piece)
            await writer.drain()

    copies = [asyncio.ensure_future(upload()), asyncio.ensure_future(download())]
    try:
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for copy in copies:
            copy.cancel()
        # Network failures on either side end the tunnel, and cannot be reported through it.
        await asyncio.gather(*copies, return_exceptions=True)
