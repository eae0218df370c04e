"""Compare the requirements of a request with the configured capabilities of its model.

A capability that is not configured allows everything: a parameter is only rejected if the model is known not to support
it.
"""

from typing import Any

from kernel.errors import ContextTooLong, UnsupportedParameter, UnsupportedValue
from responses.engine.compaction.window import fit, is_too_long
from responses.engine.state import ModelTraits, RunContext
from responses.requests.parameters import EXTRA_SAMPLING, LOGPROBS
from responses.schema import CreateResponse
from tenants.capabilities import Capabilities
from tenants.directory import Route
from tenants.models import WireApi

_TOO_LONG = "Your input exceeds the context window of this model. Please adjust your input and try again."


def check(body: CreateResponse, route: Route) -> None:
    """Raise the API error of the first parameter that the model does not support."""
    _check_logprobs(body, route)
    _check_reasoning(body, route)
    _check_extra_sampling(body, route)


def traits(can: Capabilities) -> ModelTraits:
    """Return the abilities of the model that the engine depends on."""
    return ModelTraits(
        structured_output=can.structured_output,
        forced_tool_choice=can.forced_tool_choice,
        context_window=can.context_window,
    )


def check_length(context: RunContext) -> None:
    """Raise `ContextTooLong` if the input exceeds the model's context window even after truncation.

    Does nothing if the window is not known. Input is truncated only with `truncation: "auto"`.
    """
    limits: dict[str, Any] = {
        "window": context.traits.context_window,
        "instructions": context.instructions,
        "sampling": context.sampling,
        "attachments": context.attachments,
    }
    items = context.items
    # The same rule as in the run, which truncates again before each turn.
    if is_too_long(items=items, **limits) and context.parameters["truncation"] == "auto":
        items = fit(items, halved=False, **limits)
    if is_too_long(items=items, **limits):
        raise ContextTooLong(_TOO_LONG)


def _check_logprobs(body: CreateResponse, route: Route) -> None:
    if route.capabilities.logprobs:
        return
    if LOGPROBS in (body.include or []):
        message = f"The model '{route.model}' does not support log probabilities."
        raise UnsupportedParameter(message, param="include")
    if body.top_logprobs:
        message = f"The model '{route.model}' does not support log probabilities."
        raise UnsupportedParameter(message, param="top_logprobs")


def _check_reasoning(body: CreateResponse, route: Route) -> None:
    reasoning, can = body.reasoning, route.capabilities
    if reasoning is None:
        return
    if (
        reasoning.effort is not None
        and can.reasoning_efforts is not None
        and reasoning.effort not in can.reasoning_efforts
    ):
        known = ", ".join(f"'{effort}'" for effort in can.reasoning_efforts)
        raise UnsupportedValue(
            f"Unsupported value: '{reasoning.effort}' is not supported with the '{route.model}' model. "
            f"Supported values are: {known}.",
            param="reasoning.effort",
        )
    if reasoning.style in {None, "auto"}:
        return
    # Chat completions have no parameter for summaries, so the style would be silently ignored.
    if not can.reasoning_summaries or route.upstream.wire_api != WireApi.RESPONSES:
        raise UnsupportedValue(
            f"Unsupported value: '{reasoning.style}' is not supported with the '{route.model}' model. "
            "Supported values are: 'auto'.",
            param="reasoning.summary" if reasoning.summary else "reasoning.generate_summary",
        )


def _check_extra_sampling(body: CreateResponse, route: Route) -> None:
    if route.capabilities.extra_sampling:
        return
    for name in EXTRA_SAMPLING:
        if getattr(body, name) is not None:
            message = f"Unsupported parameter: '{name}' is not supported with the '{route.model}' model."
            raise UnsupportedParameter(message, param=name)
