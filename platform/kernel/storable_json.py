"""Limits of JSON that can be stored in PostgreSQL and serialised again."""

from typing import Any

# orjson parses 1,024 levels but serialises only 254; responses wrap stored values in more levels.
MAX_DEPTH = 128


def is_too_deep(parsed: Any, raw: bytes) -> bool:
    """Return true if JSON, parsed from `raw`, has more than `MAX_DEPTH` levels."""
    # Counting brackets is fast and bounds the depth; only few bodies need the recursive check.
    return raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _is_deeper(parsed, MAX_DEPTH)


def without_nul(value: Any) -> Any:
    """Return the JSON value without NUL characters, which PostgreSQL cannot store in text or JSON."""
    match value:
        case str():
            return value.replace("\x00", "")
        case list():
            return [without_nul(entry) for entry in value]
        case dict():
            return {without_nul(key): without_nul(entry) for key, entry in value.items()}
    return value


def _is_deeper(value: Any, levels: int) -> bool:
    match value:
        case dict():
            return not levels or any(_is_deeper(entry, levels - 1) for entry in value.values())
        case list():
            return not levels or any(_is_deeper(entry, levels - 1) for entry in value)
    return False
