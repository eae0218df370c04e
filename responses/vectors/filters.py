"""Filters by attributes, as conditions on the rows of a store's files.

Only values of one kind compare: a number is never equal to a text, greater or less than one. A file without the
attribute is unequal to whatever a filter names.
"""

from typing import Any

import orjson

from responses.schema.file_search import ComparisonFilter, CompoundFilter

Condition = tuple[str, list[Any]]
_ORDER = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


def sql_condition(given: ComparisonFilter | CompoundFilter | None, *, column: str) -> Condition:
    """An SQL condition with its parameters; `column` holds the attributes."""
    match given:
        case None:
            return "true", []
        case CompoundFilter(type=how, filters=filters):
            parts = [sql_condition(one, column=column) for one in filters]
            joined = f" {how.upper()} ".join(sql for sql, _ in parts)
            return f"({joined})", [value for _, values in parts for value in values]
        case ComparisonFilter(type="eq" | "ne" as how, key=key, value=value):
            return _among(key, [value], column, wanted=how == "eq")
        case ComparisonFilter(type="in" | "nin" as how, key=key, value=list() as values):
            return _among(key, values, column, wanted=how == "in")
        case ComparisonFilter(type=how, key=key, value=value):
            return _ordered(_ORDER[how], key, value, column)


def _among(key: str, values: list[Any], column: str, *, wanted: bool) -> Condition:
    """Equal to one of these. Numbers are equal as JSON has them, whether or not they are written with a point."""
    listed = [orjson.dumps(value).decode() for value in values]
    found = f"coalesce({column} -> %s = ANY (%s::jsonb[]), false)"
    return (found if wanted else f"NOT {found}"), [key, listed]


def _ordered(operator: str, key: str, value: Any, column: str) -> Condition:
    """The order of texts is that of their code points, on every server. CASE: nothing else is read as a number."""
    if isinstance(value, str):
        kind, compared = "string", f'({column} ->> %s) COLLATE "C" {operator} %s'
    else:
        kind, compared = "number", f"({column} ->> %s)::numeric {operator} %s::numeric"
    sql = f"CASE WHEN jsonb_typeof({column} -> %s) = '{kind}' THEN {compared} ELSE false END"
    return sql, [key, key, value if isinstance(value, str) else orjson.dumps(value).decode()]
