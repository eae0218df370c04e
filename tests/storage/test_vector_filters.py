"""Filters of vector stores: SQL and a plain Python implementation select the same rows."""

import random
from typing import Any

import orjson
import pytest
from django.db import connection
from pydantic import TypeAdapter

from responses.schema.file_search import Filter
from tools.vectors.filters import sql_condition

KEYS = ["a", "b", 'c"\\', "d'%s"]
VALUES: list[Any] = [0, 1, 1.0, -3, 2.5, 1e20, True, False, "", "1", "true", "a", "B", "ä", "x'y%", "\N{GRINNING FACE}"]
ADAPTER: TypeAdapter[Any] = TypeAdapter(Filter)


def attributes_of(dice: random.Random) -> dict[str, Any]:
    return {key: dice.choice(VALUES) for key in dice.sample(KEYS, dice.randrange(len(KEYS) + 1))}


def filter_of(dice: random.Random, depth: int = 3) -> dict[str, Any]:
    """Return a strategy for all filters that a request may contain."""
    if depth and dice.random() < 0.4:
        several = [filter_of(dice, depth - 1) for _ in range(dice.randrange(1, 4))]
        return {"type": dice.choice(["and", "or"]), "filters": several}
    kind = dice.choice(["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"])
    ordered = [value for value in VALUES if not isinstance(value, bool)]
    value: Any = dice.choice(ordered if kind in {"gt", "gte", "lt", "lte"} else VALUES)
    if kind in {"in", "nin"}:
        value = dice.sample(ordered, dice.randrange(4))
    return {"type": kind, "key": dice.choice(KEYS), "value": value}


def kind_of(value: Any) -> str:
    return "bool" if isinstance(value, bool) else "text" if isinstance(value, str) else "number"


def same(one: Any, other: Any) -> bool:
    return kind_of(one) == kind_of(other) and one == other


def matches(given: dict[str, Any], attributes: dict[str, Any]) -> bool:
    """Return whether attributes match a filter, in plain Python."""
    if given["type"] in {"and", "or"}:
        each = [matches(one, attributes) for one in given["filters"]]
        return all(each) if given["type"] == "and" else any(each)
    kind, value, there = given["type"], given["value"], given["key"] in attributes
    own = attributes.get(given["key"])
    if kind in {"eq", "ne"}:
        return (there and same(own, value)) is (kind == "eq")
    if kind in {"in", "nin"}:
        return (there and any(same(own, one) for one in value)) is (kind == "in")
    if not there or kind_of(own) != kind_of(value):
        return False
    compared = {"gt": own > value, "gte": own >= value, "lt": own < value, "lte": own <= value}
    return bool(compared[kind])


def found_by_sql(given: dict[str, Any], rows: list[dict[str, Any]]) -> list[int]:
    sql, values = sql_condition(ADAPTER.validate_python(given), column="row.attributes")
    table = (
        "SELECT number - 1, attributes FROM jsonb_array_elements(%s::jsonb) WITH ORDINALITY AS r (attributes, number)"
    )
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT row.number FROM ({table}) AS row (number, attributes) WHERE {sql} ORDER BY 1",
            [orjson.dumps(rows).decode(), *values],
        )
        return [number for (number,) in cursor.fetchall()]


@pytest.mark.slow
def test_filters_select_the_same_rows_in_sql_and_python(database: None) -> None:
    dice = random.Random(20)
    rows = [attributes_of(dice) for _ in range(60)]
    for _ in range(400):
        given = filter_of(dice)
        assert found_by_sql(given, rows) == [n for n, row in enumerate(rows) if matches(given, row)], given
