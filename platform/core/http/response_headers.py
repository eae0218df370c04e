"""Headers that the code for a request adds to its response, which may be a success, an error or a stream."""

from collections.abc import Mapping
from contextvars import ContextVar

_collected: ContextVar[dict[str, str] | None] = ContextVar("_collected", default=None)


def collect() -> dict[str, str]:
    """Return a new dictionary to which this context adds the headers of a request's answer."""
    headers: dict[str, str] = {}
    _collected.set(headers)
    return headers


def add(headers: Mapping[str, str]) -> None:
    """Add headers; the last value of a name counts. Without a request, as in a worker, they are dropped."""
    if (collected := _collected.get()) is not None:
        collected |= headers


def added() -> Mapping[str, str]:
    """Return the headers of the current request so far."""
    return _collected.get() or {}
