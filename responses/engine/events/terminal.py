"""First and last events of a run."""

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
    """Return the first events of a run. They are committed with the response, before the upstream is called."""
    return [
        ResponseCreated(response=response_body(parameters, status="in_progress")),
        ResponseInProgress(response=response_body(parameters, status="in_progress")),
    ]


def queued(parameters: dict[str, Any]) -> list[Event]:
    """Return the first events of a background run. `response.in_progress` follows when a worker starts it."""
    body = response_body(parameters, status="queued")
    return [ResponseCreated(response=body), ResponseQueued(response=body)]


def failed(failure: Failure) -> Ending:
    """Return the ending of a failed run."""
    return Ending(status="failed", error={"code": failure.code, "message": failure.message}, failure=failure)


def closing(ending: Ending, body: Body) -> list[Event]:
    """Return the last events of a run."""
    # OpenAI defines no event for a cancelled response, so its stream just ends.
    match ending.status:
        case "completed":
            return [ResponseCompleted(response=body)]
        case "incomplete":
            return [ResponseIncomplete(response=body)]
        case "failed":
            failure = ending.failure or _UNKNOWN
            return [ErrorEvent(error={**failure.as_api_error().detail()}), ResponseFailed(response=body)]
    return []
