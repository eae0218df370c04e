"""Forwarding of requests whose answer may be a stream of events or of the bytes of a file.

The upstream's answer is not changed, except that errors in a stream of events are worded like all other errors. Only a
usage record is stored.
"""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from core.errors import Failure, UpstreamError
from core.ids import new_id
from engine.converter.chat import Chunk
from engine.events.types import DONE_FRAME
from engine.turn import Usage
from providers.clients import Form, UpstreamFailed, for_client, read_bytes
from providers.event_stream import EventStreamDecoder, is_streamed, read_document, unnamed_event
from providers.http_client import Answer
from providers.target_headers import add_target_headers
from responses.passthrough.embeddings_moderations import endpoint_error
from responses.runs import cost_bounds
from responses.runs.identity import RequestInfo
from responses.runs.usage_records import ExpectedTokens, RoutedCall
from tenants import directory
from tenants.capabilities import Capabilities
from tenants.directory import Route
from tenants.prices import Maxima
from tenants.principal import Principal

_PAGE = Failure.of(UpstreamError("The model's server sent a page instead of an answer."))
EVENT_STREAM = "text/event-stream; charset=utf-8"


class AnswerReader:
    """Reader of the usage in an answer that is forwarded, and writer of the answer's events for the client."""

    def __init__(self) -> None:
        self.id = ""

    def read(self, document: Chunk) -> None:
        """Read a JSON answer or the data of an event."""
        self.id = self.id or str(document.get("id") or "")

    def read_text(self, text: bytes) -> None:
        """Read a piece of an answer that is text but not JSON."""

    def write(self, chunk: Chunk) -> bytes:
        """Return the event for the client; empty if the client does not get this chunk."""
        return unnamed_event(chunk)

    def end(self, *, done: bool) -> bytes:
        """Return the last events. `done` is true if the upstream has sent `[DONE]`."""
        return DONE_FRAME if done else b""

    def estimate_input(self) -> int:
        """Return the input tokens of a request whose usage the upstream has not reported."""
        return 0

    def usage(self, outcome: str) -> Usage:
        """Return the usage that the upstream has reported, or an estimate. "failed": nothing is charged."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedAnswer:
    """An answer whose upstream has begun to respond. `pieces` raises `ApiError` if the upstream fails later."""

    content_type: str
    pieces: AsyncGenerator[bytes, None]

    @property
    def is_document(self) -> bool:
        """True for JSON and text, which are complete when they are sent."""
        kind = self.content_type.partition(";")[0].strip().lower()
        return kind == "application/json" or (kind.startswith("text/") and kind != "text/event-stream")

    @property
    def is_event_stream(self) -> bool:
        """True for server-sent events."""
        return self.content_type == EVENT_STREAM


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedRequest:
    """A checked request. `path` is below the upstream's base URL, `endpoint` the name in usage records.

    `supports` names the feature, for the error of a server without the path. `max_output_tokens` counts towards the
    limits of tokens. `most` returns the largest amounts that can be billed for the call.
    """

    path: str
    endpoint: str
    supports: str
    values: dict[str, Any]
    files: tuple[tuple[str, tuple[str, bytes, str]], ...] = ()
    max_output_tokens: int | None = 0
    most: Callable[[Capabilities], Maxima]


async def forward(
    forwarded: ForwardedRequest,
    new_reader: Callable[[], AnswerReader],
    *,
    principal: Principal,
    route: Route,
    request: RequestInfo,
) -> ForwardedAnswer:
    """Send a request and return the answer once it has begun. Raises `ApiError`. Always writes a usage record.

    If the model has several targets, the next one is tried until the client can get something of an answer. Each answer
    is read by a new reader.
    """
    route = directory.with_affinity(route, key="")
    reader = new_reader()
    call = RoutedCall(
        principal=principal,
        route=route,
        endpoint=forwarded.endpoint,
        request_id=request.request_id,
        end_user=str(forwarded.values.get("user") or ""),
        targets=route.targets if route.others else (),
        on_answer=add_target_headers,
        estimate_input=reader.estimate_input,
    )
    await call.reserve(
        partial(forwarded.most, cost_bounds.widest([target.capabilities for target in route.targets])),
        ExpectedTokens(input=reader.estimate_input(), max_output=forwarded.max_output_tokens),
        is_stream=bool(forwarded.values.get("stream")),
    )
    pieces = _pieces(forwarded, new_reader, call)
    # The first piece is the media type. Reading it starts the generator, and a started generator is always closed,
    # even if the client disconnects before the second piece. So the usage record is always written.
    return ForwardedAnswer(content_type=(await anext(pieces)).decode("latin-1"), pieces=pieces)


async def _pieces(
    forwarded: ForwardedRequest, new_reader: Callable[[], AnswerReader], call: RoutedCall
) -> AsyncGenerator[bytes, None]:
    reader, route, sends_events = new_reader(), call.route, False

    def spent(outcome: str) -> tuple[str, Usage]:
        if outcome in {"failed", "interrupted"}:
            # An answer that broke off may be charged like a complete one. Refused requests and pauses are not charged.
            outcome = "interrupted" if call.may_be_charged else "failed"
        usage = reader.usage(outcome)
        return reader.id or new_id(forwarded.endpoint.partition(".")[0]), usage

    async def begin(response: Answer) -> tuple[list[bytes], AsyncGenerator[bytes, None]]:
        """Return the pieces that are ready, and the generator of the others."""
        nonlocal reader
        reader = new_reader()
        pieces = _events(response, reader, call) if is_streamed(response) else _body(response, reader, call)
        ready = [await anext(pieces)]
        if call.targets:
            # Another target can answer until there is something for the client.
            async for piece in pieces:
                ready.append(piece)
                if piece:
                    break
        return ready, pieces

    values = {**forwarded.values, "model": route.upstream_model}
    body = Form(fields=values, files=forwarded.files) if forwarded.files else values
    begins_soon = bool(values.get("stream"))
    try:
        async with (
            call.recorded(spent),
            call.answered(forwarded.path, body, begin, begins_soon=begins_soon) as (ready, pieces),
        ):
            sends_events = ready[0] == EVENT_STREAM.encode()
            for piece in ready:
                yield piece
            async for piece in pieces:
                yield piece
    except UpstreamFailed as failed:
        if not sends_events:
            raise endpoint_error(failed, call.answering, supports=forwarded.supports) from failed
        # The status has been sent, so the error can only be an event.
        yield unnamed_event({"error": for_client(call.answering, failed.failure).as_api_error().detail()})


async def _events(response: Answer, reader: AnswerReader, call: RoutedCall) -> AsyncGenerator[bytes, None]:
    """Yield the media type and then the events of an answer."""
    yield EVENT_STREAM.encode()
    lines = EventStreamDecoder()
    async for piece in read_bytes(response):
        yield _written(lines.feed(piece), reader, call)
        if lines.done or lines.failure is not None:
            break
    else:
        yield _written(lines.end(), reader, call)
    if lines.failure is not None:
        raise UpstreamFailed(lines.failure)
    yield reader.end(done=lines.done)


def _written(chunks: list[Chunk], reader: AnswerReader, call: RoutedCall) -> bytes:
    for chunk in chunks:
        reader.read(chunk)
    return b"".join(reader.write(call.named(chunk)) for chunk in chunks)


async def _body(response: Answer, reader: AnswerReader, call: RoutedCall) -> AsyncGenerator[bytes, None]:
    """Yield the media type and then the pieces of an answer that is not a stream of events."""
    content_type = response.headers.get("content-type", "")
    if content_type.lower().startswith("application/json"):
        # Read completely before the client gets anything, because some upstreams report errors with status 200.
        document = await read_document(response)
        reader.read(document)
        yield b"application/json"
        # Serialized again, because some values that are accepted from upstreams would be refused by clients.
        yield orjson.dumps(call.named(document))
        return
    if content_type.lower().startswith("text/html"):
        # An error page of a proxy, or of a server without this endpoint.
        raise UpstreamFailed(_PAGE)
    yield (content_type or "application/octet-stream").encode("latin-1")
    async for piece in read_bytes(response):
        if content_type.startswith("text/"):
            reader.read_text(piece)
        yield piece
