"""Messages between the platform, the service and the agents: a JSON head and an optional binary body.

Wire format: four bytes (big-endian) with the length of the head, the head as JSON, the body. `size` in the head is the
length of the body in bytes.
"""

import asyncio
import json
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

MAX_HEAD = 8 * 1024 * 1024
MAX_BODY = 1024 * 1024 * 1024
_LENGTH = struct.Struct(">I")
_PIECE = 64 * 1024
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}


class ProtocolError(Exception):
    """The peer closed the connection or violated the protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One message: JSON head and binary body."""

    head: dict[str, Any]
    body: bytes = field(default=b"", repr=False)


async def send(writer: asyncio.StreamWriter, frame: Frame) -> None:
    """Write a message. Raises ProtocolError if the peer is gone."""
    head = json.dumps({**frame.head, "size": len(frame.body)}).encode()
    try:
        writer.write(_LENGTH.pack(len(head)) + head)
        writer.write(frame.body)
        await writer.drain()
    except OSError as error:
        raise ProtocolError(str(error)) from error


async def receive(reader: asyncio.StreamReader, *, max_head: int = MAX_HEAD, max_body: int = MAX_BODY) -> Frame:
    """Read a message. Raises ProtocolError, also for a message above the size limits, whose content is not read."""
    head = await receive_head(reader, max_head=max_head)
    return Frame(head=head, body=await receive_body(reader, head, max_body=max_body))


async def receive_head(reader: asyncio.StreamReader, *, max_head: int = MAX_HEAD) -> dict[str, Any]:
    """Read the head of a message only, so that a server can authenticate the peer before it accepts the body.

    Raises ProtocolError.
    """
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > max_head:
            raise ProtocolError(f"the head of the message has {length} bytes, at most {max_head} are allowed")
        head = json.loads(await reader.readexactly(length))
    # RecursionError: deeply nested JSON. Containers run untrusted code, so every defect has to end as ProtocolError.
    except (OSError, EOFError, ValueError, RecursionError) as error:
        raise ProtocolError(str(error) or type(error).__name__) from error
    if not isinstance(head, dict):
        raise ProtocolError("the head of the message is not a JSON object")
    return head


async def receive_body(reader: asyncio.StreamReader, head: dict[str, Any], *, max_body: int = MAX_BODY) -> bytes:
    """Read the body that belongs to a head. Raises ProtocolError."""
    size = head.get("size", 0)
    if not isinstance(size, int) or not 0 <= size <= max_body:
        raise ProtocolError(f"the body of the message has an invalid size or more than {max_body} bytes")
    try:
        return await reader.readexactly(size) if size else b""
    except (OSError, EOFError) as error:
        raise ProtocolError(str(error) or type(error).__name__) from error


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def detect_dead_peer(writer: asyncio.StreamWriter) -> None:
    """Let a TCP connection fail when its peer has confirmed nothing for about ten seconds.

    Both sides wait for the end of a call without sending anything, so neither would notice that the network is cut.
    """
    connection = writer.get_extra_info("socket")
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        # Systems other than Linux do not have all of them.
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def splice(one: Stream, other: Stream) -> None:
    """Copy bytes between two connections until both directions have ended, or one of them fails."""
    copies = [asyncio.ensure_future(_copy(one[0], other[1])), asyncio.ensure_future(_copy(other[0], one[1]))]
    try:
        await asyncio.gather(*copies)
    except OSError:
        return
    finally:
        for copy in copies:
            copy.cancel()
        await asyncio.wait(copies)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE):
        writer.write(piece)
        await writer.drain()
    # The other direction may still have data.
    writer.write_eof()
