"""Unknown nulls in request bodies mean "not sent": SDKs send a null for every field that their newer types have."""

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from kernel.validation import TAG, Schema

# An honest body needs one round for each kind of object in it. After that many the next unknown null is an error, so
# that a hostile body cannot make the server validate it thousands of times.
MAX_ROUNDS = 64

_Path = tuple[str | int, ...]


def validate_without_nulls(schema: type[Schema], body: dict[str, Any]) -> Schema:
    """Validate into `schema`, removing nulls of unknown fields from `body`; raises `ValidationError`."""
    rounds = iter(range(MAX_ROUNDS))
    for _ in rounds:
        try:
            return schema.model_validate(body)
        except ValidationError as error:
            unknown = _drop_unknown_nulls(body, error)
            if not unknown:
                raise
            defect = error
        for name, first in _lists(unknown):
            _clean_list(schema, name, body[name][first:], rounds)
    raise defect


def _clean_list(schema: type[Schema], name: str, rest: list[Any], rounds: Iterator[int]) -> None:
    # Validation of a list stops at its first defect. Validating only the rest after each defect keeps a list of
    # thousands of entries from being validated from the beginning once for each of them.
    for _ in rounds:
        try:
            schema.model_validate({name: rest})
        except ValidationError as error:
            first_entries = dict(_lists(_drop_unknown_nulls({name: rest}, error)))
            if name not in first_entries:
                return
            rest = rest[first_entries[name] :]
        else:
            return


def _lists(paths: list[_Path]) -> Iterator[tuple[str, int]]:
    """Yield the top-level lists that the paths lead into, each with its first affected index."""
    first: dict[str, int] = {}
    for path in paths:
        match path:
            case (str(name), int(entry), *_):
                first[name] = min(first.get(name, entry), entry)
    yield from first.items()


def _drop_unknown_nulls(body: dict[str, Any], error: ValidationError) -> list[_Path]:
    """Remove the nulls that `error` reports as unknown, also from similar objects; return the paths of the objects."""
    names: dict[_Path, set[str]] = {}
    for detail in error.errors(include_url=False):
        if detail["type"] == "extra_forbidden" and detail["input"] is None:
            path = tuple(step for step in detail["loc"] if not str(step).startswith(TAG))
            names.setdefault(path[:-1], set()).add(str(path[-1]))
    found: dict[_Path, tuple[Any, list[Any]]] = {(): (body, [body])}
    for path, unknown in names.items():
        for similar in _similar(path, found)[1]:
            for name in [name for name, value in similar.items() if value is None and name in unknown]:
                del similar[name]
    return list(names)


def _similar(path: _Path, found: dict[_Path, tuple[Any, list[Any]]]) -> tuple[Any, list[Any]]:
    """Return the object at `path`, and all objects of the same kind in the lists along it."""
    # They have the same unknown fields, as one SDK wrote them all. Cleaning them together avoids one round of
    # validation for each of thousands of items.
    if path not in found:
        parent, parents = _similar(path[:-1], found)
        step = path[-1]
        value = parent[step]
        if isinstance(step, int):
            kind = _kind(value)
            objects = [entry for entries in parents for entry in entries if _kind(entry) == kind]
        else:
            objects = [similar[step] for similar in parents if type(similar.get(step)) is type(value)]
        found[path] = value, objects
    return found[path]


def _kind(value: Any) -> tuple[Any, ...]:
    return (value.get("type"), value.get("role")) if isinstance(value, dict) else (type(value),)
