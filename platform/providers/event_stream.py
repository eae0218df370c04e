"""JSON documents and server-sent events with JSON data: decoded from upstreams, encoded for clients."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from core.errors import Failure, UpstreamError
from core.json import lenient_json
from core.json.storable_json import MAX_DEPTH, is_too_deep, without_nul
from providers.clients import UpstreamFailed, read_bytes
from providers.http_client import Answer
from providers.upstream_errors import failure_from_error, reported_error

Chunk = dict[str, Any]
Check = Callable[[object, bytes], Chunk]
"""Function of a parsed document and its bytes that returns the document, or raises `UpstreamFailed`."""
DONE = b"[DONE]"
MAX_EVENT_BYTES = 64 * 1024 * 1024
"""Maximum size of an event. The largest events that servers send contain images."""
_TOO_LARGE = Failure.of(UpstreamError("The model's server sent an event that is too large."))
NO_JSON = Failure.of(UpstreamError("The model's server sent something that is not JSON."))
"""Failure of an answer with an event that is not JSON."""
_BOM = b"\xef\xbb\xbf"
_NUL = b"\\u0000"
# Each level of a document has two brackets.
_SHORT_BYTES = 2 * MAX_DEPTH
# Comments that some servers send as data, to keep the connection alive: "ping", "[PING]", ": OPENROUTER PROCESSING".
_KEEP_ALIVE = re.compile(
    rb"""[\[("':]*(\w+[ _-])?(ping|pong|keep[ _-]?alive|heart[ _-]?beat|processing|waiting|no-?op)[\])"'.]*""",
    re.IGNORECASE,
)
_END_MARK = re.compile(rb"""["']?\[?done\]?["']?""", re.IGNORECASE)


def check_object(parsed: object, data: bytes) -> Chunk:
    """Return a JSON object that PostgreSQL can store. Raises `UpstreamFailed` for anything else."""
    if type(parsed) is dict and len(data) <= _SHORT_BYTES and data.find(_NUL) < 0:
        # Nearly every chunk.
        return parsed
    if isinstance(parsed, list) and parsed and isinstance(parsed[0], dict):
        # Google's server puts a list around its errors.
        _raise_error(parsed[0])
        parsed = parsed[0] if len(parsed) == 1 else parsed
    if not isinstance(parsed, dict):
        raise UpstreamFailed(Failure.of(UpstreamError("The model's server sent something that is not a JSON object.")))
    if is_too_deep(parsed, data):
        raise UpstreamFailed(Failure.of(UpstreamError("The model's server sent something that is nested too deeply.")))
    return without_nul(parsed) if _NUL in data else parsed


def check_chunk(parsed: object, data: bytes) -> Chunk:
    """Return a chunk or a completion. If the document is an error, raises `UpstreamFailed` with the upstream's text."""
    chunk = check_object(parsed, data)
    # Nearly every chunk has choices and no such key, and needs no closer look. In a text, the quotes are escaped.
    if data.find(b'"error"') >= 0 or not chunk.get("choices") or "base_resp" in chunk:
        _raise_error(chunk)
    return chunk


def check_event(parsed: object, data: bytes) -> Chunk:
    """Return an event of the Responses API, or a response. Raises `UpstreamFailed` if the document is another error."""
    event = check_object(parsed, data)
    # The converter reads the error of a response that has failed.
    if not str(event.get("type") or "").startswith("response.") and event.get("object") != "response":
        _raise_error(event)
    return event


def _raise_error(document: Chunk) -> None:
    # Some upstreams send an error with status 200, and some do not put it into an object of its own.
    if (error := reported_error(document)) is not None:
        raise UpstreamFailed(failure_from_error(error))


def parse(data: bytes, *, halves: lenient_json.Halves | None = None) -> object:
    """Parse an upstream's JSON. Raises `ValueError`. `halves`: see `lenient_json.loads`."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        # Only after an error, so that valid answers take no longer.
        return lenient_json.loads(data, halves=halves)


def decode(data: bytes, *, check: Check = check_chunk) -> Chunk:
    """Return the document of an answer that was not streamed. Raises `UpstreamFailed` for invalid data."""
    try:
        return check(parse(data), data)
    except ValueError as broken:
        raise UpstreamFailed(NO_JSON) from broken


async def read_document(response: Answer, *, check: Check = check_chunk) -> Chunk:
    """Return the document of a response that was not streamed. Raises `UpstreamFailed`."""
    return decode(b"".join([piece async for piece in read_bytes(response)]), check=check)


def is_streamed(response: Answer) -> bool:
    """Return True for a stream of events. Some upstreams ignore `stream: true`."""
    return response.headers.get("content-type", "").lower().startswith("text/event-stream")


def usage_only(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Return the chunks that report usage, without their output."""
    return [{**chunk, "choices": []} for chunk in chunks if chunk.get("usage")]


def unnamed_event(body: Chunk) -> bytes:
    """Return a server-sent event without a name, as chat completions use them."""
    return b"data: %b\n\n" % orjson.dumps(body)


@dataclass(frozen=True, slots=True)
class _Halved:
    """Document with a text that ends in the middle of a character. `parsed` lacks the half character in `halves`."""

    data: bytes
    parsed: object
    halves: lenient_json.Halves


class EventStreamDecoder:
    """Incremental decoder of server-sent events with JSON data. `done` is set after `[DONE]`.

    An event that is not a chunk ends the stream: `failure` is set, and earlier chunks remain valid. With
    `skips_invalid`, the first event that is not even JSON is left out. The chunks after it are kept in `held`, because
    the event may have contained output: the caller decides at the end of the stream.

    Normally each event has one `data:` line with a whole JSON document, which is decoded immediately. A line that is
    not valid JSON is joined with further `data:` lines of the same event, and decoded at its end. The same
    applies to the lines of a document without `data:`, which is how some servers report errors. Comments and other
    fields are ignored; lines may end with LF, CR or both. A document whose text ends in the middle of a character is
    held back until the next document.
    """

    def __init__(
        self, *, check: Check = check_chunk, max_event_bytes: int = MAX_EVENT_BYTES, skips_invalid: bool = False
    ) -> None:
        self._skips_invalid = skips_invalid
        # The number of chunks of a read before the event that was skipped.
        self._valid = 0
        self._check = check
        self._max_event_bytes = max_event_bytes
        # Pieces of a line whose end has not arrived. They are joined only at its end, because repeated joins would take
        # quadratic time for an endless line.
        self._rest: bytes | list[bytes] = b""
        self._rest_bytes = 0
        self._begun: list[bytes] | None = None
        self._begun_bytes = 0
        # True if the lines that have begun are a document without `data:`.
        self._is_bare = False
        self._is_start = True
        self._ended_with_cr = False
        # True in an event with the name `error`.
        self._is_error = False
        self._halved: _Halved | None = None
        self.done = False
        self.held: list[Chunk] | None = None
        """The chunks after an event that was skipped; None if no event was skipped."""
        self.failure: Failure | None = None

    def feed(self, piece: bytes) -> list[Chunk]:
        """Return the chunks that this piece completes, unless they are held."""
        if self.held is not None:
            self.held += self._feed(piece)
            return []
        chunks = self._feed(piece)
        if self.held is not None:
            self.held, chunks = chunks[self._valid :], chunks[: self._valid]
        return chunks

    def _feed(self, piece: bytes) -> list[Chunk]:
        chunks: list[Chunk] = []
        # `find` takes a third of the time of `in`.
        if self._ended_with_cr or piece.find(b"\r") >= 0:
            piece = self._with_line_feeds(piece)
        if piece.find(b"\n") < 0:
            self._keep(piece)
            return chunks
        rest = self._rest
        *lines, self._rest = ((rest if isinstance(rest, bytes) else b"".join(rest)) + piece).split(b"\n")
        self._rest_bytes = len(self._rest)
        if self._is_start:
            self._is_start, lines[0] = False, lines[0].removeprefix(_BOM)
        check = self._check
        for line in lines:
            if line.startswith(b"data:"):
                # What `_line` and `_decode` do with nearly every line, without calling them: 64 tokens take a sixth
                # less time.
                if self._begun is None and self._halved is None and not self._is_error:
                    data = line[5:].strip()
                    try:
                        parsed = orjson.loads(data)
                        if parsed and type(parsed) is dict:
                            chunks.append(check(parsed, data))
                            continue
                    except orjson.JSONDecodeError:
                        pass
                    except UpstreamFailed as failed:
                        self.failure = failed.failure
                        break
                self._line(line[5:], chunks)
            elif not line:
                if self._begun is not None or self._is_error:
                    self._end_event(chunks)
            elif line.startswith(b"event:"):
                self._is_error = line.endswith(b"error") and line[6:].strip() == b"error"
            else:
                self._other_line(line, chunks)
            if self.done or self.failure is not None:
                self._end_halved(chunks)
                break
        return chunks

    def _with_line_feeds(self, piece: bytes) -> bytes:
        # A CR ends its line at once, as a client may wait for the event; an LF that follows it is part of the same end.
        if self._ended_with_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        self._ended_with_cr = piece.endswith(b"\r")
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

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
        """Return the chunk of the last event if no blank line has ended it."""
        chunks = self.feed(b"\n\n")
        self._end_halved(chunks if self.held is None else self.held)
        return chunks

    def _line(self, value: bytes, chunks: list[Chunk]) -> None:
        data = value.strip()
        if self._is_bare:
            # A document without `data:` ends here at the latest.
            self._end_event(chunks)
        if data == DONE:
            self.done = True
            if self._begun is not None or self._is_error:
                self.failure = self.failure or (failure_from_error("") if self._is_error else NO_JSON)
        elif self._begun is None:
            self._decode(data, chunks, raw=value)
        else:
            # Not decoded with each line, which would take quadratic time.
            self._begin(value)

    def _begin(self, value: bytes) -> None:
        self._begun = self._begun or []
        # White space matters where a line ends inside of a string. Only the first space belongs to the field.
        self._begun.append(value.removeprefix(b" "))
        self._begun_bytes += len(value)
        if self._begun_bytes > self._max_event_bytes:
            self.failure = _TOO_LARGE

    def _other_line(self, line: bytes, chunks: list[Chunk]) -> None:
        """Read a line that is not empty and begins with none of the usual fields."""
        if line.startswith(b"error:"):
            # Versions of llama.cpp from before September 2025 have this field instead of `data`, and still end the
            # stream with `[DONE]`.
            self._is_error = True
            self._line(line.removeprefix(b"error:"), chunks)
        elif not line.strip():
            if self._begun is not None or self._is_error:
                self._end_event(chunks)
        elif self._is_bare:
            self._begin(line)
        elif self._begun is None and line.lstrip()[:1] in {b"{", b"["}:
            self._is_bare = True
            self._begin(line)
            try:
                orjson.loads(line)
            except orjson.JSONDecodeError:
                # The document continues in the following lines.
                return
            self._end_event(chunks)

    def _end_event(self, chunks: list[Chunk]) -> None:
        # Joined with line feeds, as the standard says.
        data, is_bare = b"\n".join(self._begun or ()).strip(), self._is_bare
        self._begun, self._begun_bytes, self._is_bare = None, 0, False
        if _END_MARK.fullmatch(data):
            self.done = True
        elif data:
            try:
                self._read_odd(data, chunks)
            except ValueError:
                # Lines without `data:` that are no document are ignored like other unknown fields.
                if self._is_error and not is_bare:
                    self.failure = failure_from_error(data.decode(errors="replace"))
                elif self._skips_invalid and not is_bare:
                    self._skips_invalid, self.held, self._valid = False, [], len(chunks)
                elif not is_bare:
                    self.failure = NO_JSON
        elif self._is_error:
            # An error without any text.
            self.failure = failure_from_error("")
        self._is_error = False

    def _decode(self, data: bytes, chunks: list[Chunk], *, raw: bytes) -> None:
        try:
            parsed = orjson.loads(data)
        except orjson.JSONDecodeError:
            if data and not (data.startswith(b":") or _KEEP_ALIVE.fullmatch(data)):
                self._begin(raw)
            return
        if self._halved is not None:
            self._end_halved(chunks)
        if not parsed or self._is_error or type(parsed) is not dict:
            self._read(parsed, data, chunks)
            return
        # Inlined `_append`, because nearly every line gets here.
        try:
            chunks.append(self._check(parsed, data))
        except UpstreamFailed as failed:
            self.failure = failed.failure

    def _read_odd(self, data: bytes, chunks: list[Chunk]) -> None:
        """Read a document that has several lines or that `orjson` refuses. Raises `ValueError`."""
        halved = self._halved
        halves = lenient_json.Halves(first={} if halved is None else dict(halved.halves.later))
        parsed = parse(data, halves=halves)
        if halved is not None and not halves.first:
            # The second half of the character is in this document.
            self._halved = None
            self._append(halved.parsed, halved.data, chunks)
        self._end_halved(chunks)
        if halves.later:
            self._halved = _Halved(data, parsed, halves)
        else:
            self._read(parsed, data, chunks)

    def _end_halved(self, chunks: list[Chunk]) -> None:
        """Read the document that was held back, with U+FFFD instead of the half character."""
        halved, self._halved = self._halved, None
        if halved is not None:
            self._append(parse(halved.data), halved.data, chunks)

    def _read(self, parsed: object, data: bytes, chunks: list[Chunk]) -> None:
        if self._is_error:
            self._is_error, self.failure = False, failure_from_error(parsed)
            return
        if isinstance(parsed, str) and _END_MARK.fullmatch(data):
            self.done = True
            return
        if not parsed or (isinstance(parsed, str) and _KEEP_ALIVE.fullmatch(data)):
            # Another way to keep the connection alive.
            return
        self._append(parsed, data, chunks)

    def _append(self, parsed: object, data: bytes, chunks: list[Chunk]) -> None:
        try:
            chunks.append(self._check(parsed, data))
        except UpstreamFailed as failed:
            self.failure = failed.failure
