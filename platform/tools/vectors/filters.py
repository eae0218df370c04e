"""Attribute filters as SQL conditions on the files of a store.

Only values of the same type compare: a number never equals a string and is never greater or less than one. A file
without the attribute is not equal to any value.
"""

from typing import Any

import orjson

from responses.schema.file_search import ComparisonFilter, CompoundFilter

Condition = tuple[str, list[Any]]
_ORDER = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


def sql_condition(given: ComparisonFilter | CompoundFilter | None, *, column: str) -> Condition:
    """Return an SQL condition and its parameters; `column` holds the attributes as JSON."""
    match given:
        case None:
            return "true", []
        case CompoundFilter(type=how, filters=filters):
            parts = [sql_condition(operand, column=column) for operand in filters]
            joined = f" {how.upper()} ".join(sql for sql, _ in parts)
            return f"({joined})", [value for _, values in parts for value in values]
        case ComparisonFilter(type="eq" | "ne" as how, key=key, value=value):
            return _among(key, [value], column, wanted=how == "eq")
        case ComparisonFilter(type="in" | "nin" as how, key=key, value=list() as values):
            return _among(key, values, column, wanted=how == "in")
        case ComparisonFilter(type=how, key=key, value=value):
            return _ordered(_ORDER[how], key, value, column)


def _among(key: str, values: list[Any], column: str, *, wanted: bool) -> Condition:
    # Compared as JSON: numbers are equal whether or not they are written with a decimal point.
    listed = [orjson.dumps(value).decode() for value in values]
    found = f"coalesce({column} -> %s = ANY (%s::jsonb[]), false)"
    return (found if wanted else f"NOT {found}"), [key, listed]


def _ordered(operator: str, key: str, value: Any, column: str) -> Condition:
    # Strings compare by code point (collation "C"), so results do not depend on the server's locale.
    if isinstance(value, str):
        kind, compared = "string", f'({column} ->> %s) COLLATE "C" {operator} %s'
    else:
        kind, compared = "number", f"({column} ->> %s)::numeric {operator} %s::numeric"
    # CASE guarantees that only numbers are cast: PostgreSQL may evaluate the operands of AND in any order.
    sql = f"CASE WHEN jsonb_typeof({column} -> %s) = '{kind}' THEN {compared} ELSE false END"
    return sql, [key, key, value if isinstance(value, str) else orjson.dumps(value).decode()]
