"""`null` means "not sent": the SDK dumps a null for whatever newer field its types have."""

from typing import Any

from pydantic import ValidationError

from kernel.validation import TAG, Schema

# Of an honest body, one round for each kind of object in it; after as many the next null is an unknown parameter.
MOST_ROUNDS = 64


def validate_without_nulls(schema: type[Schema], body: dict[str, Any]) -> Schema:
    """Validate into `schema`, taking those nulls out of `body` that it does not know; raises `ValidationError`."""
    for _ in range(MOST_ROUNDS):
        try:
            return schema.model_validate(body)
        except ValidationError as error:
            if not _drop_unknown_nulls(body, error):
                raise
            defect = error
    raise defect


def _drop_unknown_nulls(body: dict[str, Any], error: ValidationError) -> bool:
    """Take the nulls out of `body` that `error` complains of as unknown, and from all objects like those; whether there
    were any."""
    details = error.errors(include_url=False)
    unknown = [detail["loc"] for detail in details if detail["type"] == "extra_forbidden" and detail["input"] is None]
    for loc in unknown:
        way, name = [step for step in loc[:-1] if not str(step).startswith(TAG)], str(loc[-1])
        for place in _alike(body, way):
            if place.get(name, name) is None:
                del place[name]
    return bool(unknown)


def _alike(body: Any, way: list[str | int]) -> list[dict[str, Any]]:
    """The object at the end of a way and, in the lists on the way, what is of the same kind: its defect is theirs, and
    validating again for each of thousands of items would take the time of everybody else."""
    there, places = body, [body]
    for step in way:
        there = there[step]
        if isinstance(step, int):
            places = [entry for place in places for entry in place if _kind(entry) == _kind(there)]
        else:
            places = [place[step] for place in places if type(place.get(step)) is type(there)]
    return places


def _kind(value: Any) -> tuple[Any, ...]:
    return (value.get("type"), value.get("role")) if isinstance(value, dict) else (type(value),)
