"""Public response object, and the first and last events of a run, which contain it.

The same function builds it for events and for retrieval, so a retrieved response equals the streamed one.
"""

from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from conversations.items import project
from core.errors import Failure, ServerError
from engine import messages
from engine.compaction import token_estimate
from engine.events.types import (
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
from engine.turn import Usage


class Ending(NamedTuple):
    """End of a response, with the values that its public object shows.

    `completed_at` is in Unix seconds and only set with the status `completed`. `moderation` is the moderation result if
    one was requested. `failure` is not public: it determines the HTTP error of a non-streaming request.
    """

    status: str
    completed_at: int | None = None
    error: Body | None = None
    incomplete_reason: str | None = None
    service_tier: str = "default"
    failure: Failure | None = None
    moderation: Body | None = None


def response_body(
    parameters: dict[str, Any],
    *,
    status: str,
    output: list[Body] | None = None,
    usage: Usage | None = None,
    ending: Ending | None = None,
    include: AbstractSet[str] = frozenset(),
) -> Body:
    """Return the response object. `usage` None: not known yet. `include` names the optional fields of items to show."""
    ending = ending or Ending(status=status)
    reason = ending.incomplete_reason
    # A running response shows the requested tier, a finished one the tier that the upstream used.
    running = status in {"queued", "in_progress"}
    body = {
        **parameters,
        "status": status,
        "completed_at": ending.completed_at,
        "error": ending.error,
        "incomplete_details": {"reason": reason} if reason else None,
        "output": [project(item, include) for item in output or []],
        "service_tier": parameters["service_tier"] if running else ending.service_tier,
        "usage": usage_body(usage, tool_output_tokens=token_estimate.tool_output(output or [])) if usage else None,
    }
    if "input_messages" in parameters:
        # Unfiltered: `include` has no names for parts of messages.
        body["output_messages"] = messages.item_messages(output or [])
    if not running and (tool_usage := _tool_usage(output or [])) is not None:
        body["tool_usage"] = tool_usage
    if ending.moderation is not None:
        body["moderation"] = ending.moderation
    return body


def usage_body(usage: Usage, *, tool_output_tokens: int = 0) -> Body:
    """Return the `usage` object. Tokens of hosted tool results are only present if there are any."""
    of_tools = {"tool_output_tokens": tool_output_tokens} if tool_output_tokens else {}
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens, **of_tools},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def _tool_usage(output: list[Body]) -> Body | None:
    """Return the `tool_usage` object; None without a web search. The tokens of generated images are unknown."""
    actions = [item["action"]["type"] for item in output if item["type"] == "web_search_call"]
    if not actions:
        return None
    tokens = {"image_tokens": 0, "text_tokens": 0}
    image_gen = {"input_tokens": 0, "input_tokens_details": tokens, "output_tokens": 0, "total_tokens": 0}
    return {"image_gen": image_gen, "web_search": {"num_requests": actions.count("search")}}


_UNKNOWN = Failure.of(ServerError())


def opening(parameters: dict[str, Any]) -> list[Event]:
    """Return the first events of a foreground run. They depend only on the committed response."""
    body = response_body(parameters, status="in_progress")
    return [ResponseCreated(response=body), ResponseInProgress(response=body)]


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
