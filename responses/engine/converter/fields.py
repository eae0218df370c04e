"""Fields of upstreams' answers in the format of OpenAI's API: citations, log probabilities and usage."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from conversations.items import OutputText
from responses.engine.events.types import Body
from responses.engine.turn import Usage

# Token counts are stored in 32-bit integer columns.
_MAX_TOKENS = 2**31 - 1


def citations(annotations: Iterable[Any]) -> list[Body]:
    """Return the annotations that OpenAI's API defines; others are dropped, because the text is usable without them."""
    known: list[Body] = []
    for annotation in annotations:
        try:
            part = OutputText.model_validate({"text": "", "annotations": [annotation]})
        except ValidationError:
            continue
        known += [citation.model_dump() for citation in part.annotations or ()]
    return known


def read_logprobs(entries: object, *, top: int) -> list[Body]:
    """Return the entries of a piece of text, each with at most `top` alternatives and with all fields."""
    if not isinstance(entries, list):
        return []
    return [
        {**_token(entry), "top_logprobs": [_token(other) for other in entry.get("top_logprobs") or ()][:top]}
        for entry in entries
    ]


def _token(entry: Mapping[str, Any]) -> Body:
    token = entry.get("token") or ""
    raw = entry.get("bytes")
    return {
        "token": token,
        "logprob": entry.get("logprob") or 0.0,
        "bytes": list(token.encode()) if raw is None else raw,
    }


def read_usage(usage: Mapping[str, Any], *, read: str = "prompt", written: str = "completion") -> Usage:
    """Return the usage of a `usage` object. Values that are not numbers count as 0.

    `read` and `written` are the API's prefixes of its fields; the default is those of chat completions.
    """
    read_details = usage.get(f"{read}_tokens_details") or {}
    written_details = usage.get(f"{written}_tokens_details") or {}
    return Usage(
        input_tokens=_count(usage.get(f"{read}_tokens")),
        cached_tokens=_count(read_details.get("cached_tokens")),
        cache_write_tokens=_count(read_details.get("cache_write_tokens")),
        output_tokens=_count(usage.get(f"{written}_tokens")),
        reasoning_tokens=_count(written_details.get("reasoning_tokens")),
    )


def _count(tokens: object) -> int:
    return min(max(int(tokens), 0), _MAX_TOKENS) if isinstance(tokens, int | float) else 0
