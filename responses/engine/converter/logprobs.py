"""Log probabilities in the format of OpenAI's API, with defaults for fields that upstreams omit."""

from collections.abc import Mapping
from typing import Any

from responses.engine.events.types import Body


def read_logprobs(entries: object, *, top: int) -> list[Body]:
    """Return the entries of a piece of text, each with at most `top` alternatives."""
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
