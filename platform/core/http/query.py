"""Query parameters: descriptions, rejection of unknown names, and readers for nested names and Unix times."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any

from django.http import QueryDict

from core.errors import ArrayTooLong, InvalidType, InvalidValue, LimitExceeded, UnknownParameter

_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
# Columns have room for 19 digits, and `int` raises an error for some thousand.
_MAX_DIGITS = 20
# Parameters that appear under other names in a query: clients differ in how they write several values.
_WRITTEN = {"metadata": ("metadata[…]",), "include": ("include", "include[]")}


@dataclass(frozen=True, slots=True)
class QueryArgument:
    """Query parameters that a handler receives as one argument; `parameters` are their OpenAPI descriptions."""

    name: str
    parameters: Sequence[dict[str, Any]]
    read: Callable[[QueryDict], Any]


def parameter(name: str, schema: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Return the OpenAPI description of an optional query parameter."""
    return {"name": name, "in": "query", "required": False, "schema": schema, **options}


METADATA_FILTER = parameter(
    "metadata", {"type": "object", "additionalProperties": {"type": "string"}}, style="deepObject", explode=True
)


def reject_unknown(query: QueryDict, arguments: Sequence[QueryArgument]) -> None:
    """Raise `UnknownParameter` for names that the endpoint does not support.

    A filter with a typing error in its name would otherwise return everything.
    """
    parameters = [entry for argument in arguments for entry in argument.parameters]
    # Filters such as `effective_at[gte]=…`.
    ranges = [(entry["name"], key) for entry in parameters for key in entry["schema"].get("properties", ())]
    described = [entry["name"] for entry in parameters if "properties" not in entry["schema"]]
    described += [f"{name}[{key}]" for name, key in ranges]
    known = [spelling for name in described for spelling in _WRITTEN.get(name, (name,))]
    known += [f"{entry['name']}[]" for entry in parameters if entry["schema"].get("type") == "array"]
    for name in query:
        plain = "metadata[…]" if name.startswith("metadata[") and name.endswith("]") else name
        if plain not in known:
            near = get_close_matches(name, known, n=1)
            raise UnknownParameter(name, suggestion=near[0] if near else None)


def reject_unstorable(text: str, *, param: str) -> None:
    """Raise `InvalidValue` for a value from the URL that PostgreSQL cannot store or compare."""
    if "\x00" in text:
        raise InvalidValue(f"Invalid '{param}': the value contains a NUL character.", param=param)


def reject_unstorable_values(query: QueryDict) -> None:
    """Raise `InvalidValue` for names and values that PostgreSQL cannot store or compare."""
    for name, values in query.lists():
        for text in (name, *values):
            reject_unstorable(text, param=name)


def texts_argument(name: str, *, items: dict[str, Any] | None = None, most: int = 100) -> QueryArgument:
    """Return the argument for a list of texts, sent as `name=…` or `name[]=…` several times; empty without them.

    Reading it raises `LimitExceeded` for more than `most` texts.
    """

    def read(query: QueryDict) -> list[str]:
        texts = [*query.getlist(name), *query.getlist(f"{name}[]")]
        if len(texts) > most:
            raise ArrayTooLong(
                f"Invalid '{name}': array too long. Expected an array with maximum length {most}, "
                f"but got an array with length {len(texts)} instead.",
                param=name,
            )
        return texts

    schema = {"type": "array", "items": items or {"type": "string"}, "maxItems": most}
    return QueryArgument(name, [parameter(name, schema)], read)


def choice(query: Mapping[str, str], name: str, supported: Sequence[str]) -> str | None:
    """Read one of the supported values, None if it is not given; raises `InvalidValue`."""
    text = query.get(name)
    if text is not None and text not in supported:
        raise InvalidValue.unsupported(text, supported, param=name)
    return text


def integer(query: Mapping[str, str], name: str, *, least: int = 0, most: int) -> int | None:
    """Read an integer, None if it is not given; raises `InvalidType`, or `LimitExceeded` beyond its bounds."""
    text = query.get(name)
    if text is None:
        return None
    if not _INTEGER.fullmatch(text):
        raise InvalidType(name, expected="an integer", got="a string")
    number = int(text[:_MAX_DIGITS])
    if not least <= number <= most:
        raise LimitExceeded.integer(number, name, least, most)
    return number


def row_number(text: str) -> int | None:
    """Return the key or number of a row in a URL; None for a text that cannot be one."""
    return int(text) if _INTEGER.fullmatch(text) and len(text) < _MAX_DIGITS else None


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
    return {key[len(prefix) : -1]: query[key] for key in query if key.startswith(prefix) and key.endswith("]")}
