"""Attributes of the answer of a model, for the span of its call."""

from collections.abc import Sequence
from typing import Any

from core.telemetry import telemetry_names
from engine.turn import Attempt, TurnResult


def answer_attributes(result: TurnResult, attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Return the attributes of an answer. The last of the `attempts` is the HTTP request that was answered."""
    attributes: dict[str, Any] = {telemetry_names.FINISH_REASONS: [result.finish_reason or str(result.finish)]}
    if (usage := result.usage) is not None:
        attributes |= {
            telemetry_names.INPUT_TOKENS: usage.input_tokens,
            telemetry_names.CACHE_READ_TOKENS: usage.cached_tokens,
            telemetry_names.CACHE_CREATION_TOKENS: usage.cache_write_tokens,
            telemetry_names.OUTPUT_TOKENS: usage.output_tokens,
            telemetry_names.REASONING_TOKENS: usage.reasoning_tokens,
        }
    if result.first_token_at is not None and attempts:
        waited = result.first_token_at - attempts[0].began
        attributes[telemetry_names.FIRST_CHUNK_SECONDS] = waited.total_seconds()
    if len(attempts) > 1:
        attributes[telemetry_names.HTTP_RESENDS] = len(attempts) - 1
    return attributes
