"""What keeps JSON from being stored, or from being written again."""

from typing import Any

# What is read must be written again: orjson reads 1,024 levels and writes 254.
MAX_DEPTH = 128


def is_too_deep(parsed: Any, raw: bytes) -> bool:
    """Whether JSON, parsed out of `raw`, is nested deeper than what can be written again."""
    return raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _is_deeper(parsed, MAX_DEPTH)


def without_nul(value: Any) -> Any:
    """The same JSON without NUL characters, which PostgreSQL cannot store in text or JSON."""
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
