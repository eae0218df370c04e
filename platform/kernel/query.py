"""Query parameters: rejecting unknown names, reading nested names and Unix times."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches

from django.http import QueryDict

from kernel.errors import InvalidType, UnknownParameter

_PAGE = ("limit", "order", "after", "before")


def reject_unknown(query: QueryDict, *, filters: Sequence[str] = (), page: bool = True) -> None:
    """Raise `UnknownParameter` for names that the endpoint does not support.

    A filter with a typing error in its name would otherwise return everything.
    """
    known = (*(_PAGE if page else ()), *filters)
    for name in query:
        plain = "metadata[…]" if name.startswith("metadata[") and name.endswith("]") else name
        if plain not in known:
            near = get_close_matches(name, known, n=1)
            raise UnknownParameter(name, suggestion=near[0] if near else None)


def unix_time(query: Mapping[str, str], name: str) -> datetime | None:
    """Read a Unix time in seconds, None if it is not given; raises `InvalidType`."""
    text = query.get(name)
    if text is None:
        return None
    try:
        return datetime.fromtimestamp(float(text), UTC)
    except (ValueError, OverflowError, OSError):
        raise InvalidType(name, expected="a Unix time in seconds", got="a string") from None


def nested_values(query: Mapping[str, str], name: str) -> dict[str, str]:
    """Read `metadata[key]=value` as `{key: value}`."""
    prefix = f"{name}["
    found = {key: query[key] for key in query if key.startswith(prefix) and key.endswith("]")}
    return {key[len(prefix) : -1]: value for key, value in found.items()}
