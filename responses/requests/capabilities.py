"""What a request demands of its model, held against what the operator says that the model can do.

What is only forwarded is never refused without reason: a capability that nobody has described allows it. Source:
section 6.3 of the API surface specification (`unsupported_value`, `unsupported_parameter`).
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
    """Refuse by name what the model cannot do."""
    _check_logprobs(body, route)
    _check_reasoning(body, route)
    _check_extra_sampling(body, route)


def traits(can: Capabilities) -> ModelTraits:
    """What the engine has to know of the model."""
    return ModelTraits(
        structured_output=can.structured_output,
        forced_tool_choice=can.forced_tool_choice,
        context_window=can.context_window,
    )


def check_length(given: RunContext) -> None:
    """Refuse what the model cannot read, where its window is known and nothing may be left out, or not enough."""
    around: dict[str, Any] = {
        "window": given.traits.context_window,
        "instructions": given.instructions,
        "sampling": given.sampling,
        "attachments": given.attachments,
    }
    items = given.items
    if is_too_long(items=items, **around) and given.parameters["truncation"] == "auto":
        items = fit(items, halved=False, **around)
    if is_too_long(items=items, **around):
        raise ContextTooLong(_TOO_LONG)


def _check_logprobs(body: CreateResponse, route: Route) -> None:
    if route.capabilities.logprobs:
        return
    if LOGPROBS in (body.include or []):
        message = f"The model '{route.model}' does not give log probabilities."
        raise UnsupportedParameter(message, param="include")
    if body.top_logprobs:
        message = f"The model '{route.model}' does not give log probabilities."
        raise UnsupportedParameter(message, param="top_logprobs")


def _check_reasoning(body: CreateResponse, route: Route) -> None:
    asked, can = body.reasoning, route.capabilities
    if asked is None:
        return
    if asked.effort is not None and can.reasoning_efforts is not None and asked.effort not in can.reasoning_efforts:
        known = ", ".join(f"'{effort}'" for effort in can.reasoning_efforts)
        raise UnsupportedValue(
            f"Unsupported value: '{asked.effort}' is not supported with the '{route.model}' model. "
            f"Supported values are: {known}.",
            param="reasoning.effort",
        )
    if asked.style in {None, "auto"}:
        return
    # Chat completions have no place for it, so that nobody would hear of the style.
    if not can.reasoning_summaries or route.upstream.wire_api != WireApi.RESPONSES:
        raise UnsupportedValue(
            f"Unsupported value: '{asked.style}' is not supported with the '{route.model}' model. "
            "Supported values are: 'auto'.",
            param="reasoning.summary" if asked.summary else "reasoning.generate_summary",
        )


def _check_extra_sampling(body: CreateResponse, route: Route) -> None:
    if route.capabilities.extra_sampling:
        return
    for name in EXTRA_SAMPLING:
        if getattr(body, name) is not None:
            message = f"Unsupported parameter: '{name}' is not supported with the '{route.model}' model."
            raise UnsupportedParameter(message, param=name)
