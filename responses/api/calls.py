"""Calls of the endpoints that run models, with their answers as JSON or as server-sent events."""

from collections.abc import AsyncIterator, Callable
from typing import Generic, TypedDict, TypeVar

import orjson
from typing_extensions import override

from core.errors import ApiError, ServerError
from core.http.asgi import Scope as AsgiScope
from core.http.sending import JsonAnswer
from core.ids import new_id
from core.load.draining import draining
from engine.events.types import ErrorEvent, frame
from limits.throttle import add_headers
from responses.api.requests import Replay, info_of, warning_headers
from responses.lifecycle import create
from responses.lifecycle.resolve import NewRequest
from responses.models import Mode
from responses.runs import follow
from responses.runs.reservations import OPEN_STREAM, CallReservation
from responses.runs.runner import LiveRun
from responses.schema import CreateResponse
from tenants.principal import Principal

Input = TypeVar("Input")
"""The parsed body of a request, or without a body the arguments from its path and query."""


class Call(Generic[Input]):
    """One request to an endpoint that is served without DRF, and its answer: JSON, or server-sent events.

    The object keeps no reference to the input, because a stream may take minutes and a body may contain images.
    `disconnect` closes the connection of a client that does not read. Errors before the first byte become ordinary HTTP
    errors.
    """

    def __init__(self, scope: AsgiScope, disconnect: Callable[[], None]) -> None:
        self.scope = scope
        self.disconnect = disconnect
        self.headers: dict[str, str] = {}
        self.reservation: CallReservation | None = None

    async def answer(self, principal: Principal, values: Input, /) -> JsonAnswer:
        """Serve the request and return its result."""
        raise NotImplementedError

    async def open(self, principal: Principal, values: Input, /) -> AsyncIterator[bytes]:
        """Start the work and return an iterator of bytes, each of which contains only complete events."""
        raise NotImplementedError

    async def reserve(self, principal: Principal) -> None:
        """Reserve an open stream for a request that only reads a run; `close` releases it. Raises `RateLimited`."""
        draining.note_reader()
        self.reservation = CallReservation(principal, reservation_id=new_id("call"))
        await self.reservation.reserve(OPEN_STREAM)
        await add_headers(principal)

    def disconnected(self) -> None:
        """Handle a disconnect of the client. The task that reads the iterator has already been cancelled.

        By default nothing is left to do: a run that is only read continues, and cancelling the task has closed the
        upstream connection of a completion.
        """

    def close(self) -> None:
        """Release the reservation of the stream. Also called if the client disconnects before the first event."""
        if self.reservation is not None:
            self.reservation.release()
            self.reservation = None

    def error_frame(self, error: ApiError) -> bytes:
        """Return the event that reports an error to a client that has already received the first byte."""
        return b"event: error\ndata: %b\n\n" % orjson.dumps({"type": "error", "error": error.detail()})


class RunCall(Call[Input]):
    """A call that executes a run in this process. If the client disconnects, the run may continue without it."""

    run: LiveRun | None = None

    async def frames_of(self, run: LiveRun) -> AsyncIterator[bytes]:
        """Wait until the stream of a started run may begin, and return its events."""
        self.run = run
        self.headers |= warning_headers(run.warnings)
        await run.opened()
        return run.frames(self.disconnect)

    @override
    def disconnected(self) -> None:
        if self.run is not None:
            self.run.detach()


class ResponseCall(RunCall[CreateResponse]):
    """`POST /v1/responses`."""

    @override
    async def answer(self, principal: Principal, body: CreateResponse, /) -> JsonAnswer:
        request = NewRequest(principal=principal, body=body, info=info_of(self.scope), mode=Mode.JSON)
        if body.background:
            queued = await create.queue_response(request)
            return JsonAnswer(queued.body, headers=warning_headers(queued.warnings))
        self.run = await create.create_response(request)
        end = await self.run.finished()
        # The response of a failed run is stored like any other, but OpenAI reports the failure as an HTTP error here.
        if end.ending.status == "failed":
            raise end.ending.failure.as_api_error() if end.ending.failure else ServerError()
        if end.ending.status == "cancelled":
            raise ServerError("The response was cancelled.")
        return JsonAnswer(end.response, headers=warning_headers(self.run.warnings))

    @override
    async def open(self, principal: Principal, body: CreateResponse, /) -> AsyncIterator[bytes]:
        request = NewRequest(principal=principal, body=body, info=info_of(self.scope), mode=Mode.STREAM)
        if body.background:
            # A worker executes the run. This process streams the event log that the worker writes.
            await self.reserve(principal)
            queued = await create.queue_response(request)
            self.headers |= warning_headers(queued.warnings)
            return follow.follow_new(principal=principal, response_id=queued.body["id"], opening=queued.opening)
        return await self.frames_of(await create.create_response(request))

    @override
    def error_frame(self, error: ApiError) -> bytes:
        if self.run is None:
            return super().error_frame(error)
        # The error event has a sequence number like every other event, although it is not in the log.
        return frame(ErrorEvent(error={**error.detail()}), self.run.next_sequence)


class ReplayArguments(TypedDict):
    """The arguments of a request that streams a stored response."""

    response_id: str
    include: frozenset[str]
    replay: Replay


class ReplayCall(Call[ReplayArguments]):
    """`GET /v1/responses/{id}?stream=true`: the events after `starting_after`, then live events until the end."""

    @override
    async def open(self, principal: Principal, arguments: ReplayArguments, /) -> AsyncIterator[bytes]:
        await self.reserve(principal)
        return await follow.follow(
            principal=principal,
            response_id=arguments["response_id"],
            after=arguments["replay"].after,
            obfuscation=arguments["replay"].obfuscation,
            include=arguments["include"],
        )
