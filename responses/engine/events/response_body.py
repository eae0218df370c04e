"""The public response object: the constant part that the request fixed, and what the run has brought so far.

One function makes it for events and for retrieval, so that what is retrieved equals what was streamed.
Source: section 2 of the API surface specification.
"""

from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from conversations.items import project
from kernel.errors import Failure
from responses.engine import messages
from responses.engine.compaction import token_estimate
from responses.engine.events.types import Body
from responses.engine.turn import Usage


class Ending(NamedTuple):
    """How a response ended, as its public object shows it. `completed_at` in Unix seconds, only with `completed`.

    `moderation` is shown where it was asked for. `failure` is not shown: it says which HTTP error a JSON request gets
    for a failed run.
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
    """The response object. `usage` None: not known yet; `include` is what of the items is shown beyond the usual."""
    ending = ending or Ending(status=status)
    reason = ending.incomplete_reason
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
        # Whole, since nothing in them could be asked for.
        body["output_messages"] = messages.of_items(output or [])
    if ending.moderation is not None:
        body["moderation"] = ending.moderation
    return body


def usage_body(usage: Usage, *, tool_output_tokens: int = 0) -> Body:
    """Tokens as the wire shows them; those of the results of hosted tools only where there are any."""
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
