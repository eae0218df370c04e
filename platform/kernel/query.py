"""What the query of a request says: unknown names are refused, nested ones and moments are read."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches

from django.http import QueryDict

from kernel.errors import InvalidType, UnknownParameter

_PAGE = ("limit", "order", "after", "before")


def refuse_unknown(query: QueryDict, *, filters: Sequence[str] = (), page: bool = True) -> None:
    """Refuse names that an endpoint does not know: a filter with a slip in its name would show everything."""
    known = (*(_PAGE if page else ()), *filters)
    for name in query:
        plain = "metadata[…]" if name.startswith("metadata[") and name.endswith("]") else name
        if plain not in known:
            near = get_close_matches(name, known, n=1)
            raise UnknownParameter(name, suggestion=near[0] if near else None)


def moment(query: Mapping[str, str], name: str) -> datetime | None:
    """A Unix time in seconds."""
    text = query.get(name)
    if text is None:
        return None
    try:
        return datetime.fromtimestamp(float(text), UTC)
    except (ValueError, OverflowError, OSError):
        raise InvalidType(name, expected="a Unix time in seconds", got="a string") from None


def nested(query: Mapping[str, str], name: str) -> dict[str, str]:
    """`metadata[key]=value` → `{key: value}`."""
    opening = f"{name}["
    found = {key: query[key] for key in query if key.startswith(opening) and key.endswith("]")}
    return {key[len(opening) : -1]: value for key, value in found.items()}
