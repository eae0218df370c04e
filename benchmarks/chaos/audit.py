"""The database itself notes when a tool call begins and when its result is stored; the platform knows nothing of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import psycopg

_INSTALL = """
CREATE SCHEMA chaos;
CREATE TABLE chaos.note (
    at timestamptz NOT NULL, response_id text NOT NULL, call_id text NOT NULL, status text NOT NULL
);
CREATE FUNCTION chaos.note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO chaos.note VALUES (clock_timestamp(), NEW.response_id, NEW.call_id, NEW.status);
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_note AFTER UPDATE ON responses_toolcall FOR EACH ROW EXECUTE FUNCTION chaos.note();
"""
_CALLS = """
SELECT call.response_id, call.name, (call.arguments::json ->> 'step')::integer, call.status, call.attempt, (
    SELECT min(note.at) FROM chaos.note
    WHERE note.response_id = call.response_id AND note.call_id = call.call_id
      AND note.status IN ('returned', 'completed', 'failed')
)
FROM responses_toolcall AS call
"""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A tool call as it is stored. `stored_at`: when its result was written first."""

    response_id: str
    name: str
    step: int
    status: str
    attempt: int
    stored_at: datetime | None


def install(admin: str) -> None:
    """Begin to take notes."""
    with psycopg.connect(admin) as connection:
        connection.execute(_INSTALL)


def calls(admin: str) -> Iterator[Call]:
    """All tool calls of the database."""
    with psycopg.connect(admin) as connection:
        for response_id, name, step, status, attempt, stored_at in connection.execute(_CALLS).fetchall():
            yield Call(
                response_id=response_id, name=name, step=step, status=status, attempt=attempt, stored_at=stored_at
            )
