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


class Broken(Exception):
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
        raise Broken(str(error)) from error


async def receive(reader: asyncio.StreamReader, *, max_head: int = MAX_HEAD, max_body: int = MAX_BODY) -> Frame:
    """Read a message; one that is longer than it may be is not read. Raises Broken."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > max_head:
            raise Broken(f"a message of {length} bytes")
        head = json.loads(await reader.readexactly(length))
        size = head.get("size", 0) if isinstance(head, dict) else -1
        if not isinstance(size, int) or not 0 <= size <= max_body:
            raise Broken("a message that is none, or too long")
        return Frame(head=head, body=await reader.readexactly(size) if size else b"")
    except (OSError, EOFError, ValueError, RecursionError) as error:
        raise Broken(str(error) or type(error).__name__) from error
