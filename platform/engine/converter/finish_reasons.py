"""Meaning of the finish reasons that chat-completions upstreams send.

Gateways pass on the words of other APIs (Anthropic, Cohere, Gemini, Mistral, Text Generation Inference), and servers
have some of their own. Case is ignored, and a reason such as `content_filter: SAFETY` is read as several words.
"""

from enum import Enum

import regex


class FinishKind(Enum):
    """Kind of a finish reason. `UNKNOWN` includes an empty reason."""

    STOP = "stop"
    CALLS = "calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    FAILED = "failed"
    UNKNOWN = "unknown"


_WORDS = {
    FinishKind.STOP: (
        "stop stopped stop_sequence stop_token eos eos_token end_turn end_of_turn end complete completed finished "
        "done success"
    ),
    FinishKind.CALLS: "tool_calls tool_call tool_use function_call function_calls",
    FinishKind.LENGTH: (
        "length max_length max_tokens max_token max_output_tokens max_new_tokens max_completion_tokens token_limit "
        "model_length model_context_window_exceeded context_length context_length_exceeded context_window_exceeded "
        "too_long limit max_len"
    ),
    FinishKind.CONTENT_FILTER: (
        "content_filter content_filtered content_filter_error filtered filter safety recitation blocklist blocked "
        "prohibited_content spii language image_safety image_recitation image_prohibited_content refusal refused "
        "sensitive guardrail guardrails guardrail_intervened moderation error_toxic"
    ),
    FinishKind.FAILED: (
        "error errored abort aborted cancel cancelled canceled user_cancel interrupted failed failure timeout "
        "time_limit insufficient_system_resource network_error overloaded error_limit server_error internal_error "
        "other malformed_function_call malformed_tool_call malformed_response unexpected_tool_call too_many_tool_calls "
        "function_call_filter missing_thought_signature no_image pause_turn load unload"
    ),
}
# Words of DashScope, Python gateways and Gemini for null, the finish reason of all chunks but the last one.
_NO_REASONS = {"null", "none", "unspecified"}
_KINDS = {word: kind for kind, words in _WORDS.items() for word in words.split()}
# If the words of a reason have several kinds, the kind that is first in this order counts.
_BY_WEIGHT = (
    FinishKind.FAILED,
    FinishKind.CONTENT_FILTER,
    FinishKind.LENGTH,
    FinishKind.CALLS,
    FinishKind.STOP,
)
_PREFIX = regex.compile(r"^(?:finish_?reason|stop_?reason|reason)[._]")


def _word(reason: str) -> str:
    return _PREFIX.sub("", reason.strip().lower().replace("-", "_").replace(" ", "_"))


def is_finish_reason(reason: object) -> bool:
    """Return False if the answer goes on: the value of a finish reason is empty, or a word for null."""
    return bool(reason) and _word(str(reason)) not in _NO_REASONS


def finish_kind(reason: str) -> FinishKind:
    """Return the meaning of a finish reason."""
    word = _word(reason)
    if word in _KINDS:
        return _KINDS[word]
    kinds = {_KINDS.get(part) for part in regex.split(r"[^a-z_]+_*", word)}
    return next((kind for kind in _BY_WEIGHT if kind in kinds), FinishKind.UNKNOWN)
