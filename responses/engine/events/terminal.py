"""The events that a run begins and ends with."""

from typing import Any

from kernel.errors import Failure
from responses.engine.events.response_body import Ending, response_body
from responses.engine.events.types import (
    Body,
    ErrorEvent,
    Event,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    ResponseQueued,
)

_UNKNOWN = Failure(code="server_error", message="The server had an error while processing your request.")


def opening(parameters: dict[str, Any]) -> list[Event]:
    """The events that a run begins with. They are committed with the response itself, before the upstream is asked."""
    return [
        ResponseCreated(response=response_body(parameters, status="in_progress")),
        ResponseInProgress(response=response_body(parameters, status="in_progress")),
    ]


def queued(parameters: dict[str, Any]) -> list[Event]:
    """The events that a run begins with which waits for a worker; that it has begun comes later, when it has."""
    body = response_body(parameters, status="queued")
    return [ResponseCreated(response=body), ResponseQueued(response=body)]


def failed(failure: Failure) -> Ending:
    """The ending of a run that cannot go on."""
    return Ending(status="failed", error={"code": failure.code, "message": failure.message}, failure=failure)


def closing(ending: Ending, body: Body) -> list[Event]:
    """The events that a run ends with. A cancelled one just ends: there is no event for it."""
    match ending.status:
        case "completed":
            return [ResponseCompleted(response=body)]
        case "incomplete":
            return [ResponseIncomplete(response=body)]
        case "failed":
            failure = ending.failure or _UNKNOWN
            return [ErrorEvent(error={**failure.as_api_error().detail()}), ResponseFailed(response=body)]
    return []
