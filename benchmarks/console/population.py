"""Test data: millions of responses of forty teams over ninety days, written by set-based SQL.

All values of a response are computed from its number, so the tables can be filled independently and at the same time.
Each response has a row, two items on each side with their places, a turn and a row of the ledger. Some responses have
tool calls or a conversation; `activity` has the other tables. Indexes of constraints exist from the start, other
indexes are created at the end. Foreign keys are correct but not checked.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psycopg
from django.db import models

from engine.events.compression import compress

DAYS, TEAMS, KEYS, MODELS = 90, 40, 200, 12
RARE_MODEL, RARE_ERROR, RARE_TOOL, RARE_USER = "model-11", "disk_full", "tool_14", "user-7"
# Two connections, because the benchmark machine has two cores. Tables are filled one after the other in each.
_AT_ONCE = 2
_SESSION = (
    "SET session_replication_role = replica",
    "SET synchronous_commit = off",
    "SET maintenance_work_mem = '1GB'",
    "SET work_mem = '256MB'",
    "SET max_parallel_maintenance_workers = 1",
)
# `u` are uniform random numbers, one per purpose; `power` makes few values frequent and many rare.
_SEED = """
CREATE UNLOGGED TABLE seed AS
SELECT i, at,
    'resp_' || lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || lpad(to_hex(i), 24, '0') AS id,
    'team_' || lpad(team::text, 36, '0') AS team_id,
    'key_' || lpad((team + {teams} * (u2 * {keys_each})::int)::text, 36, '0') AS key_id,
    CASE WHEN u3 < 0.0002 THEN 'model-11' ELSE 'model-' || ({models} * power(u3, 2))::int END AS model,
    CASE WHEN u4 < 0.01 THEN 'incomplete' WHEN u4 < 0.015 THEN 'cancelled' WHEN u4 < 0.035 THEN 'failed'
         ELSE 'completed' END AS status,
    CASE WHEN u4 >= 0.015 AND u4 < 0.035 THEN
         CASE WHEN u5 < 0.005 THEN 'disk_full' WHEN u5 < 0.3 THEN 'rate_limit_exceeded' ELSE 'server_error' END
    END AS error_code,
    CASE WHEN i % 10 = 0 THEN 'conv_' || lpad(to_hex(i / 50), 36, '0') END AS conversation_id,
    CASE WHEN u6 < 0.4 THEN 'user-' || (50000 * u5)::int END AS end_user,
    u5, u6, (200 + 60000 * power(u5, 6))::int AS duration,
    CASE WHEN u6 > 0.75 THEN 1 + (2 * u2)::int ELSE 0 END AS calls
FROM (
    SELECT i, now() - interval '{days} days' * (1 - i::float8 / {rows}) - interval '1 minute' AS at,
        ({teams} * power(random(), 2.5))::int % {teams} AS team,
        random() AS u2, random() AS u3, random() AS u4, random() AS u5, random() AS u6
    FROM generate_series(1, {rows}) AS i
) AS chances
"""
_MESSAGE = (
    """('{"id":"msg_' || lpad(to_hex(i * 4 + %s), 36, '0') || '","type":"message","role":"%s","status":"completed","""
    """"content":[{"type":"%s","text":"Where is the parcel ' || i || ', and when will it be here? %s"}]}')::jsonb"""
)
PADDING = "It was sent on Monday and has not moved since. " * 3
"""Text of usual length for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """SQL expressions for the columns of a table; other columns get their defaults."""

    model: type[models.Model]
    columns: Mapping[str, str]
    source: str = "seed"

    @property
    def name(self) -> str:
        """Table name in the database."""
        return self.model._meta.db_table  # noqa: SLF001 - as above

    def statement(self) -> str:
        """The INSERT statement."""
        meta = self.model._meta  # noqa: SLF001 - Django's documented API for models
        known = {field.attname: field for field in meta.concrete_fields}
        values = {name: sql for name, sql in self.columns.items() if name in known}
        for name, field in known.items():
            if name not in values and not isinstance(field, models.AutoField | models.BigAutoField):
                values[name] = _default(field)
        names = ", ".join(f'"{known[name].column}"' for name in values)
        return f'INSERT INTO "{meta.db_table}" ({names}) SELECT {", ".join(values.values())} FROM {self.source}'


def _default(field: Any) -> str:
    if field.null:
        return "NULL"
    value = field.get_default() if field.has_default() else ""
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case dict() | list():
            return f"'{json.dumps(value)}'::jsonb" if isinstance(field, models.JSONField) else "'{}'"
    return f"'{value}'"


def fill(*, admin: str, rows: int, tell: Callable[[str], None]) -> None:
    """Write a number of responses with all related rows. `admin` is a superuser's connection string."""
    began = time.monotonic()
    _run(admin, [_SEED.format(rows=rows, days=DAYS, teams=TEAMS, keys_each=KEYS // TEAMS - 1, models=MODELS - 2)])
    _run(admin, ["ANALYZE seed"])
    load(admin=admin, groups=_groups())
    _run(admin, ["DROP TABLE seed", "ANALYZE"])
    tell(f"{rows:,} responses and {4 * rows:,} items were written in {time.monotonic() - began:.0f} s")


def load(*, admin: str, groups: Sequence[Sequence[Table]]) -> None:
    """Fill tables. Groups are filled in parallel, the tables of a group one after the other, indexes at the end."""
    tables = list(dict.fromkeys(table.name for group in groups for table in group))
    indexes = _indexes(admin, tables)
    _run(admin, [f'DROP INDEX "{name}"' for name, _ in indexes])
    _side_by_side(admin, [[table.statement() for table in group] for group in groups])
    _side_by_side(admin, [[statement] for _, statement in indexes])
    _side_by_side(admin, [[f'VACUUM (ANALYZE, PARALLEL 0) "{table}"'] for table in tables])


def _run(admin: str, statements: Sequence[str]) -> None:
    with psycopg.connect(admin, autocommit=True) as connection:
        for statement in (*_SESSION, *statements):
            connection.execute(statement.encode())


def _side_by_side(admin: str, groups: Sequence[Sequence[str]]) -> None:
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        list(pool.map(lambda statements: _run(admin, statements), groups))


def _indexes(admin: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the indexes that belong to no constraint, with their definitions, largest tables first."""
    wanted = """
        SELECT name.relname, pg_get_indexdef(index.indexrelid)
        FROM pg_index AS index JOIN pg_class AS name ON name.oid = index.indexrelid
        JOIN pg_class AS owner ON owner.oid = index.indrelid
        WHERE owner.relname = ANY(%s) AND NOT index.indisunique
        ORDER BY array_position(%s, owner.relname::text)
    """
    with psycopg.connect(admin) as connection:
        found = connection.execute(wanted, [list(names), list(names)])
        # The definition of a partitioned index is that of an empty one, without those of the partitions.
        return [(str(name), str(made).replace(" ON ONLY ", " ON ")) for name, made in found.fetchall()]


# -- tables ------------------------------------------------------------------------------------------------------------


def _uuid(part: str) -> str:
    return f"lpad(to_hex(i * 4 + {part}), 32, '0')::uuid"


_ENDED = "at + duration * interval '1 ms'"
_PARAMETERS = {
    "object": "response",
    "instructions": "You are the friendly agent of a shop that sells garden tools. Be brief. " * 3,
    "tools": [{"type": "function", "name": "look_up", "parameters": {"type": "object", "properties": {}}}],
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "reasoning": {"effort": None, "summary": None},
    "temperature": 1.0,
    "top_p": 1.0,
    "store": True,
    "truncation": "disabled",
    "metadata": {},
    "tool_choice": "auto",
    "parallel_tool_calls": True,
}
_TOOL = "CASE WHEN u5 < 0.0005 THEN 14 ELSE (13 * u5 * u5)::int END"
_FRAME = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":0}\n\n'
_QUESTION = _MESSAGE % (0, "user", "input_text", PADDING)
_ANSWER = _MESSAGE % (2, "assistant", "output_text", PADDING * 2)
_ITEM = {
    "key": _uuid("part"),
    "team_id": "team_id",
    "id": "'msg_' || lpad(to_hex(i * 4 + part), 36, '0')",
    "type": "'message'",
    "body": f"CASE WHEN part < 2 THEN {_QUESTION} ELSE {_ANSWER} END",
    "created_at": "at",
}
_PLACEMENT = {
    "team_id": "team_id",
    "owner": "id",
    "section": "CASE WHEN part < 2 THEN 'input' ELSE 'output' END",
    "position": "part % 2",
    "item_id": _uuid("part"),
}
_RESPONSE = {
    "id": "id",
    "team_id": "team_id",
    "api_key_id": "key_id",
    "created_at": "at",
    "status": "status",
    "mode": "CASE WHEN u6 < 0.7 THEN 'stream' ELSE 'json' END",
    "background": "u6 > 0.95",
    "conversation_id": "conversation_id",
    "history_id": "conversation_id",
    "history_end": "CASE WHEN conversation_id IS NOT NULL THEN 0 END",
    "model": "model",
    "upstream_id": "'upst_' || lpad('1', 36, '0')",
    "upstream_model": "model",
    "parameters": f"'{json.dumps(_PARAMETERS)}'::jsonb",
    "options": """'{"sent": [], "include": [], "obfuscate": true, "logprobs": false}'::jsonb""",
    "metadata": 'CASE WHEN i % 100 = 0 THEN (\'{"order": "\' || i || \'", "shop": "s\' || i % 7 || \'"}\')::jsonb '
    "WHEN u6 < 0.5 THEN ('{\"shop\": \"s' || i % 7 || '\"}')::jsonb ELSE '{}'::jsonb END",
    "end_user": "end_user",
    "request_id": "replace(id, 'resp_', 'req_')",
    "input_preview": "'Where is the parcel ' || i || ', and when will it be here?'",
    "output_preview": "'It was sent on Monday and will be here tomorrow, before noon.'",
    "first_token_ms": "(100 + 900 * u6)::int",
    "duration_ms": "duration",
    "completed_at": f"CASE WHEN status = 'completed' THEN {_ENDED} END",
    "ended_at": _ENDED,
    "turns": "1",
    "tool_calls": "calls",
    "input_tokens": "(200 + 20000 * u6 * u6)::int",
    "cached_tokens": "(100 * u6)::int",
    "output_tokens": "(20 + 2000 * u5 * u5)::int",
    "cost": "round((0.0001 + 0.05 * u5 * u6)::numeric, 10)",
    "error": """CASE WHEN status = 'failed' THEN '{"message": "The upstream failed."}'::jsonb END""",
    "error_code": "error_code",
    "incomplete_reason": "CASE WHEN status = 'incomplete' THEN 'max_output_tokens' END",
}
_TURN = {
    "team_id": "team_id",
    "response_id": "id",
    "number": "0",
    "state": "'stop'",
    "started_at": "at",
    "first_token_at": "at + interval '300 ms'",
    "ended_at": "at + duration * interval '1 ms'",
    "finish_reason": "'stop'",
    "input_tokens": "1000",
    "output_tokens": "100",
}
_CALL = {
    "team_id": "team_id",
    "response_id": "id",
    "turn": "call",
    "call_id": "'call_' || i || '_' || call",
    "kind": "CASE WHEN u5 < 0.0005 THEN 'image_generation' WHEN u6 > 0.97 THEN 'mcp' ELSE 'function' END",
    "name": f"'tool_' || {_TOOL}",
    "arguments": """'{"order": ' || i || '}'""",
    "output": "'It is on its way.'",
    "status": "CASE WHEN u5 > 0.98 THEN 'failed' ELSE 'completed' END",
    "started_at": "at + interval '400 ms'",
    "ended_at": "at + interval '900 ms'",
}
_USAGE = {
    "team_id": "team_id",
    "api_key_id": "key_id",
    "occurred_at": "at + duration * interval '1 ms'",
    "endpoint": "'responses'",
    "object_id": "id",
    "model": "model",
    "upstream_id": "'upst_' || lpad('1', 36, '0')",
    "upstream_model": "model",
    "outcome": "status",
    "input_tokens": "(200 + 20000 * u6 * u6)::int",
    "cached_tokens": "(100 * u6)::int",
    "output_tokens": "(20 + 2000 * u5 * u5)::int",
    "cost": "round((0.0001 + 0.05 * u5 * u6)::numeric, 10)",
    "duration_ms": "duration",
    "request_id": "replace(id, 'resp_', 'req_')",
}
_AUDIT = {
    "team_id": "team_id",
    "occurred_at": "at",
    "actor": "'key:' || key_id",
    "action": "CASE WHEN u6 < 0.01 THEN 'api_key.created' ELSE 'response.deleted' END",
    "target": "id",
    "request_id": "replace(id, 'resp_', 'req_')",
}
_CONVERSATION = {
    "id": "'conv_' || lpad(to_hex(i / 50), 36, '0')",
    "team_id": "team_id",
    "api_key_id": "key_id",
    "created_at": "at",
}
_EVENTS = {
    "team_id": "team_id",
    "response_id": "id",
    "first_sequence": "0",
    "last_sequence": "0",
    "created_at": "at",
    "compressed": f"decode('{compress(_FRAME).hex()}', 'hex')",
}


def _groups() -> list[list[Table]]:
    """Return the tables in groups for `load`."""
    from benchmarks.console import activity
    from conversations.models import Conversation, Item, Placement
    from responses.models import EventBatch, Response, ToolCall, Turn
    from tenants.models import AuditEvent, UsageRecord

    items = Table(model=Item, columns=_ITEM, source="seed CROSS JOIN generate_series(0, 3) AS part")
    places = Table(model=Placement, columns=_PLACEMENT, source="seed CROSS JOIN generate_series(0, 3) AS part")
    return [
        [items],
        [
            Table(model=Response, columns=_RESPONSE),
            places,
            Table(model=Turn, columns=_TURN),
            Table(model=ToolCall, columns=_CALL, source="seed CROSS JOIN LATERAL generate_series(1, calls) AS call"),
            Table(model=UsageRecord, columns=_USAGE),
            Table(model=AuditEvent, columns=_AUDIT, source="seed WHERE i % 20 = 0"),
            Table(model=Conversation, columns=_CONVERSATION, source="seed WHERE i % 50 = 0"),
            Table(model=EventBatch, columns=_EVENTS, source="seed WHERE i > (SELECT max(i) - 2000 FROM seed)"),
            *activity.tables(),
        ],
    ]
