"""JSON documents and server-sent events with JSON data: those of upstreams are decoded, those for clients written."""

from collections.abc import Callable
from typing import Any

import orjson

from kernel.errors import Failure
from kernel.storable_json import is_too_deep, without_nul
from responses.providers.clients import UpstreamFailed, failure_from_status, read_bytes
from responses.providers.http_client import Answer

Chunk = dict[str, Any]
Check = Callable[[object, bytes], Chunk]
"""Takes a parsed document and its bytes, and raises `UpstreamFailed` if it is not what was expected."""
DONE = b"[DONE]"
MAX_EVENT_BYTES = 64 * 1024 * 1024
"""Largest event. Images are the largest ones that servers send."""
_TOO_LARGE = Failure(code="server_error", message="The model's server sent an event that is too large.")
_NO_JSON = Failure(code="server_error", message="The model's server sent something that is not JSON.")


def check_object(parsed: object, data: bytes) -> Chunk:
    """Return a JSON object that PostgreSQL can store. Raises `UpstreamFailed` for anything else."""
    if not isinstance(parsed, dict):
        raise UpstreamFailed(
            Failure(code="server_error", message="The model's server sent something that is not a JSON object.")
        )
    if is_too_deep(parsed, data):
        raise UpstreamFailed(
            Failure(code="server_error", message="The model's server sent something that is nested too deeply.")
        )
    return without_nul(parsed) if b"\\u0000" in data else parsed


def check_chunk(parsed: object, data: bytes) -> Chunk:
    """Return a chunk or a completion. Raises `UpstreamFailed` also for an error object."""
    chunk = check_object(parsed, data)
    # Some upstreams send an error with status 200, and some do not put it into an object of its own.
    is_error = "error" in (chunk.get("type"), chunk.get("object"))
    if error := chunk.get("error") or (chunk if is_error else None):
        status = error.get("code") if isinstance(error, dict) else None
        raise UpstreamFailed(failure_from_status(status if isinstance(status, int) else 500, error))
    return chunk


def decode(data: bytes, *, check: Check = check_chunk) -> Chunk:
    """Return the document of an answer that was not streamed. Raises `UpstreamFailed` for invalid data."""
    try:
        return check(orjson.loads(data), data)
    except orjson.JSONDecodeError as broken:
        raise UpstreamFailed(_NO_JSON) from broken


async def read_document(response: Answer, *, check: Check = check_chunk) -> Chunk:
    """Return the document of a response that was not streamed. Raises `UpstreamFailed`."""
    return decode(b"".join([piece async for piece in read_bytes(response)]), check=check)


def is_streamed(response: Answer) -> bool:
    """Return True for a stream of events. Some upstreams ignore `stream: true`."""
    return response.headers.get("content-type", "").lower().startswith("text/event-stream")


def unnamed_event(body: Chunk) -> bytes:
    """Return a server-sent event without a name, as chat completions use them."""
    return b"data: %b\n\n" % orjson.dumps(body)


class EventStreamDecoder:
    """Incremental decoder of server-sent events with JSON data. `done` is set after `[DONE]`.

    An event that is not a chunk ends the stream: `failure` is set, and earlier chunks still count.

    Normally each event has one `data:` line with a whole JSON document, which is decoded immediately. A line that is
    not valid JSON is joined with further `data:` lines of the same event, and decoded at its end. Comments and other
    fields are ignored; lines may end with CRLF.
    """

    def __init__(self, *, check: Check = check_chunk, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._check = check
        self._max_event_bytes = max_event_bytes
        # The beginning of a line as it has arrived: joined at its end only, as the joins of an endless line would take
        # time that grows with its square.
        self._rest: bytes | list[bytes] = b""
        self._rest_bytes = 0
        self._begun: list[bytes] | None = None
        self._begun_bytes = 0
        self.done = False
        self.failure: Failure | None = None

    def feed(self, piece: bytes) -> list[Chunk]:
        """Return the chunks that this piece completes."""
        chunks: list[Chunk] = []
        if b"\n" not in piece:
            self._keep(piece)
            return chunks
        rest = self._rest
        *lines, self._rest = ((rest if isinstance(rest, bytes) else b"".join(rest)) + piece).split(b"\n")
        self._rest_bytes = len(self._rest)
        for line in lines:
            if line.startswith(b"data:"):
                self._line(line[5:].strip(), chunks)
            elif self._begun is not None and not line.strip():
                data, self._begun, self._begun_bytes = b"".join(self._begun), None, 0
                self._decode(data, chunks)
            if self.done or self.failure is not None:
                break
        return chunks

    def _keep(self, piece: bytes) -> None:
        rest = self._rest
        if isinstance(rest, list):
            rest.append(piece)
        else:
            self._rest = [rest, piece] if rest else piece
        self._rest_bytes += len(piece)
        if self._rest_bytes > self._max_event_bytes:
            self._rest, self.failure = b"", _TOO_LARGE

    def end(self) -> list[Chunk]:
        """Return the chunk of a last event without a blank line after it."""
        return self.feed(b"\n\n")

    def _line(self, data: bytes, chunks: list[Chunk]) -> None:
        if data == DONE:
            self.done = True
            self.failure = None if self._begun is None else _NO_JSON
        elif self._begun is None:
            self._decode(data, chunks, may_continue=True)
        else:
            # Not decoded with each line, which would take time that grows with the square of their number.
            self._begun.append(data)
            self._begun_bytes += len(data)
            if self._begun_bytes > self._max_event_bytes:
                self.failure = _TOO_LARGE

    def _decode(self, data: bytes, chunks: list[Chunk], *, may_continue: bool = False) -> None:
        try:
            parsed = orjson.loads(data)
        except orjson.JSONDecodeError:
            if may_continue:
                self._begun, self._begun_bytes = [data], len(data)
            else:
                self.failure = _NO_JSON
            return
        try:
            chunks.append(self._check(parsed, data))
        except UpstreamFailed as failed:
            self.failure = failed.failure
