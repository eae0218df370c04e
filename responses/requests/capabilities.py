"""Compare the requirements of a request with the configured capabilities of its model.

A capability that is not configured allows everything: a parameter is only rejected if the model is known not to support
it.
"""

from typing import Any

from core.errors import ContextTooLong, UnsupportedParameter, UnsupportedValue
from engine.compaction.window import fit, is_too_long
from engine.state import RunContext
from responses.requests.parameters import EXTRA_SAMPLING, LOGPROBS
from responses.schema import CreateResponse
from tenants.directory import Route
from tenants.models import WireApi


def check(body: CreateResponse, route: Route) -> None:
    """Raise the API error of the first parameter that the model does not support."""
    reasoning, can = body.reasoning, route.capabilities
    if not can.logprobs:
        sent = {"include": LOGPROBS in (body.include or []), "top_logprobs": bool(body.top_logprobs)}
        for param, is_sent in sent.items():
            if is_sent:
                raise UnsupportedParameter(
                    f"The model '{route.model}' does not support log probabilities.", param=param
                )
    effort, efforts = reasoning.effort if reasoning else None, can.reasoning_efforts
    if effort is not None and efforts is not None and effort not in efforts:
        known = ", ".join(f"'{supported}'" for supported in efforts)
        raise UnsupportedValue(
            f"Unsupported value: '{effort}' is not supported with the '{route.model}' model. "
            f"Supported values are: {known}.",
            param="reasoning.effort",
        )
    # The platform itself summarizes the reasoning of chat completions.
    has_summaries = can.reasoning_summaries or route.upstream.wire_api == WireApi.CHAT_COMPLETIONS
    if reasoning is not None and reasoning.style not in {None, "auto"} and not has_summaries:
        raise UnsupportedValue(
            f"Unsupported value: '{reasoning.style}' is not supported with the '{route.model}' model. "
            "Supported values are: 'auto'.",
            param="reasoning.summary" if reasoning.summary else "reasoning.generate_summary",
        )
    if not can.extra_sampling:
        for name in EXTRA_SAMPLING:
            if getattr(body, name) is not None:
                raise UnsupportedParameter(
                    f"Unsupported parameter: '{name}' is not supported with the '{route.model}' model.", param=name
                )


def check_length(context: RunContext) -> None:
    """Raise `ContextTooLong` if the input exceeds the model's context window even after truncation.

    Does nothing if the context window is not known. Input is truncated only with `truncation: "auto"`.
    """
    limits: dict[str, Any] = {
        "window": context.traits.context_window,
        "instructions": context.instructions,
        "sampling": context.sampling,
        "attachments": context.attachments,
    }
    items = context.items
    # The run truncates again before each turn, by the same rule.
    if is_too_long(items=items, **limits) and context.parameters["truncation"] == "auto":
        items = fit(items, halved=False, **limits)
    if is_too_long(items=items, **limits):
        raise ContextTooLong
