"""The kinds of usage: the usage records that belong to each, their sums, and the possible groupings and filters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Sums = Mapping[str, Any]

DIMENSIONS: Mapping[str, str] = {
    "project_id": "team_id",
    "api_key_id": "api_key_id",
    "user_id": "api_key_id",  # the owner of the key
    "model": "model",
    "batch": "batch",
    "service_tier": "service_tier",
}
"""The dimension of the sums by which a grouping is computed."""

WEB_SEARCH, FILE_SEARCH = "web_search", "file_search"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageKind:
    """Usage of one kind.

    - `endpoints`: the endpoints whose usage records belong to it.
    - `measures`: the columns of the sums that its figures need; `figures` computes them.
    - `groups`: the values of `group_by`; `filters`: the parameters that select projects, keys and so on.
    """

    name: str
    result: str
    endpoints: Sequence[str] = ()
    measures: Sequence[str] = ("calls",)
    figures: Callable[[Sums], dict[str, Any]]
    groups: Sequence[str] = ("project_id", "user_id", "api_key_id", "model")
    filters: Sequence[str] = ("project_ids", "user_ids", "api_key_ids", "models")


def _completions(sums: Sums) -> dict[str, Any]:
    read, cached, written = sums["input_tokens"], sums["cached_tokens"], sums["cache_write_tokens"]
    audio, images = sums["input_audio_tokens"], sums["input_image_tokens"]
    spoken, drawn = sums["output_audio_tokens"], sums["output_image_tokens"]
    return {
        "input_tokens": read,
        "input_cached_tokens": cached,
        "input_uncached_tokens": read - cached - written,
        "input_cache_write_tokens": written,
        "input_audio_tokens": audio,
        "input_image_tokens": images,
        "output_tokens": sums["output_tokens"],
        "output_text_tokens": sums["output_tokens"] - spoken - drawn,
        "output_audio_tokens": spoken,
        "output_image_tokens": drawn,
        "num_model_requests": sums["calls"],
    }


def _inputs(sums: Sums) -> dict[str, Any]:
    return {"input_tokens": sums["input_tokens"], "num_model_requests": sums["calls"]}


COMPLETIONS = UsageKind(
    name="completions",
    result="organization.usage.completions.result",
    endpoints=(
        "responses",
        "responses.compact",
        "reasoning.summary",
        "chat.completions",
        "completions",
        "messages",
    ),
    measures=(
        "calls", "input_tokens", "cached_tokens", "cache_write_tokens", "input_audio_tokens", "input_image_tokens",
        "output_tokens", "output_audio_tokens", "output_image_tokens",
    ),
    figures=_completions,
    groups=("project_id", "user_id", "api_key_id", "model", "batch", "service_tier", "api_source"),
    filters=("project_ids", "user_ids", "api_key_ids", "models", "batch"),
)  # fmt: skip
EMBEDDINGS = UsageKind(
    name="embeddings",
    result="organization.usage.embeddings.result",
    endpoints=("embeddings",),
    measures=("calls", "input_tokens"),
    figures=_inputs,
)
MODERATIONS = UsageKind(
    name="moderations",
    result="organization.usage.moderations.result",
    endpoints=("moderations",),
    measures=("calls", "input_tokens"),
    figures=_inputs,
)
IMAGES = UsageKind(
    name="images",
    result="organization.usage.images.result",
    endpoints=("images",),
    measures=("calls", "images"),
    figures=lambda sums: {"images": sums["images"], "num_model_requests": sums["calls"]},
)
AUDIO_SPEECHES = UsageKind(
    name="audio_speeches",
    result="organization.usage.audio_speeches.result",
    endpoints=("audio.speech",),
    measures=("calls", "characters"),
    figures=lambda sums: {"characters": sums["characters"], "num_model_requests": sums["calls"]},
)
AUDIO_TRANSCRIPTIONS = UsageKind(
    name="audio_transcriptions",
    result="organization.usage.audio_transcriptions.result",
    endpoints=("audio.transcriptions", "audio.translations"),
    measures=("calls", "audio_seconds"),
    figures=lambda sums: {"seconds": round(sums["audio_seconds"]), "num_model_requests": sums["calls"]},
)
FILE_SEARCH_CALLS = UsageKind(
    name="file_search_calls",
    result="organization.usage.file_searches.result",
    endpoints=(FILE_SEARCH,),
    figures=lambda sums: {"num_requests": sums["calls"]},
    groups=("project_id", "user_id", "api_key_id"),
    filters=("project_ids", "user_ids", "api_key_ids"),
)
WEB_SEARCH_CALLS = UsageKind(
    name="web_search_calls",
    result="organization.usage.web_searches.result",
    endpoints=(WEB_SEARCH,),
    # Each search was requested by a model.
    figures=lambda sums: {"num_requests": sums["calls"], "num_model_requests": sums["calls"]},
    groups=("project_id", "user_id", "api_key_id", "model", "api_source"),
)
VECTOR_STORES = UsageKind(
    name="vector_stores",
    result="organization.usage.vector_stores.result",
    figures=lambda sums: {"usage_bytes": sums["usage_bytes"]},
    groups=("project_id",),
    filters=("project_ids",),
)
CODE_INTERPRETER_SESSIONS = UsageKind(
    name="code_interpreter_sessions",
    result="organization.usage.code_interpreter_sessions.result",
    figures=lambda sums: {"num_sessions": sums["sessions"]},
    groups=("project_id",),
    filters=("project_ids",),
)
COSTS = UsageKind(
    name="costs",
    result="organization.costs.result",
    measures=("calls", "cost", "unpriced"),
    figures=dict,
    groups=("project_id", "user_id", "line_item", "api_key_id", "api_source"),
    filters=("project_ids", "api_key_ids", "line_items"),
)
