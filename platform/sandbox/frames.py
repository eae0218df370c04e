"""Messages between the platform, the service and the inside: a JSON object, and the bytes that belong to it.

On the wire: four bytes with the length of the object, the object, whose `size` says how many bytes follow, the bytes.
"""

import asyncio
import json
import struct
from dataclasses import dataclass, field
from typing import Any

MAX_HEAD = 8 * 1024 * 1024
MAX_BODY = 1024 * 1024 * 1024
_LENGTH = struct.Struct(">I")


class ProtocolError(Exception):
    """The other side has gone, or does not keep to the protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One message."""

    head: dict[str, Any]
    body: bytes = field(default=b"", repr=False)


async def send(writer: asyncio.StreamWriter, frame: Frame) -> None:
    """Write a message. Raises Broken."""
    head = json.dumps({**frame.head, "size": len(frame.body)}).encode()
    try:
        writer.write(_LENGTH.pack(len(head)) + head)
        writer.write(frame.body)
        await writer.drain()
    except OSError as error:
        raise ProtocolError(str(error)) from error


async def receive(reader: asyncio.StreamReader, *, max_head: int = MAX_HEAD, max_body: int = MAX_BODY) -> Frame:
    """Read a message; one that is longer than it may be is not read. Raises Broken."""
    head = await receive_head(reader, max_head=max_head)
    return Frame(head=head, body=await receive_body(reader, head, max_body=max_body))


async def receive_head(reader: asyncio.StreamReader, *, max_head: int = MAX_HEAD) -> dict[str, Any]:
    """Read a message up to its bytes, which nobody has to take in who does not want the message. Raises Broken."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > max_head:
            raise ProtocolError(f"a message of {length} bytes")
        head = json.loads(await reader.readexactly(length))
    except (OSError, EOFError, ValueError, RecursionError) as error:
        raise ProtocolError(str(error) or type(error).__name__) from error
    if not isinstance(head, dict):
        raise ProtocolError("a message that is none")
    return head


async def receive_body(reader: asyncio.StreamReader, head: dict[str, Any], *, max_body: int = MAX_BODY) -> bytes:
    """Read the bytes of the message with this head. Raises Broken."""
    size = head.get("size", 0)
    if not isinstance(size, int) or not 0 <= size <= max_body:
        raise ProtocolError("a message that is too long")
    try:
        return await reader.readexactly(size) if size else b""
    except (OSError, EOFError) as error:
        raise ProtocolError(str(error) or type(error).__name__) from error
