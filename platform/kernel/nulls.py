"""`null` means "not sent": the SDK dumps a null for whatever newer field its types have."""

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from kernel.validation import TAG, Schema

# Of an honest body, one round for each kind of object in it; after as many the next null is an unknown parameter.
MOST_ROUNDS = 64

_Way = tuple[str | int, ...]


def validate_without_nulls(schema: type[Schema], body: dict[str, Any]) -> Schema:
    """Validate into `schema`, taking those nulls out of `body` that it does not know; raises `ValidationError`."""
    rounds = iter(range(MOST_ROUNDS))
    for _ in rounds:
        try:
            return schema.model_validate(body)
        except ValidationError as error:
            unknown = _drop_unknown_nulls(body, error)
            if not unknown:
                raise
            defect = error
        for name, first in _lists(unknown):
            _tidy(schema, name, body[name][first:], rounds)
    raise defect


def _tidy(schema: type[Schema], name: str, rest: list[Any], rounds: Iterator[int]) -> None:
    """The same for the rest of a list alone, from one entry with such a null to the next: lists are read up to their
    first defect, and what stands before it need not be validated again and again."""
    for _ in rounds:
        try:
            schema.model_validate({name: rest})
        except ValidationError as error:
            places = dict(_lists(_drop_unknown_nulls({name: rest}, error)))
            if name not in places:
                return
            rest = rest[places[name] :]
        else:
            return


def _lists(ways: list[_Way]) -> Iterator[tuple[str, int]]:
    """The lists that the ways lead into, each with the first entry that they lead to."""
    first: dict[str, int] = {}
    for way in ways:
        match way:
            case (str(name), int(entry), *_):
                first[name] = min(first.get(name, entry), entry)
    yield from first.items()


def _drop_unknown_nulls(body: dict[str, Any], error: ValidationError) -> list[_Way]:
    """Take the nulls out of `body` that `error` complains of as unknown, and from all objects like those; returns the
    ways to the objects that had them."""
    names: dict[_Way, set[str]] = {}
    for detail in error.errors(include_url=False):
        if detail["type"] == "extra_forbidden" and detail["input"] is None:
            way = tuple(step for step in detail["loc"] if not str(step).startswith(TAG))
            names.setdefault(way[:-1], set()).add(str(way[-1]))
    found: dict[_Way, tuple[Any, list[Any]]] = {(): (body, [body])}
    for way, unknown in names.items():
        for place in _alike(way, found)[1]:
            for name in [name for name, value in place.items() if value is None and name in unknown]:
                del place[name]
    return list(names)


def _alike(way: _Way, found: dict[_Way, tuple[Any, list[Any]]]) -> tuple[Any, list[Any]]:
    """The object at the end of a way, and what is of the same kind in the lists on the way: its defect is theirs, and
    validating again for each of thousands of items would take the time of everybody else."""
    if way not in found:
        before, places = _alike(way[:-1], found)
        step = way[-1]
        there = before[step]
        if isinstance(step, int):
            kind = _kind(there)
            places = [entry for place in places for entry in place if _kind(entry) == kind]
        else:
            places = [place[step] for place in places if type(place.get(step)) is type(there)]
        found[way] = there, places
    return found[way]


def _kind(value: Any) -> tuple[Any, ...]:
    return (value.get("type"), value.get("role")) if isinstance(value, dict) else (type(value),)
