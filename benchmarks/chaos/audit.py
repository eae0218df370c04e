"""Independent record of tool calls: a database trigger stores when a call starts and when its result is stored."""

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
    """A stored tool call. `stored_at` is the time at which its result was first written."""

    response_id: str
    name: str
    step: int
    status: str
    attempt: int
    stored_at: datetime | None


def install(admin: str) -> None:
    """Install the trigger."""
    with psycopg.connect(admin) as connection:
        connection.execute(_INSTALL)


def calls(admin: str) -> Iterator[Call]:
    """Return all tool calls of the database."""
    with psycopg.connect(admin) as connection:
        for response_id, name, step, status, attempt, stored_at in connection.execute(_CALLS).fetchall():
            yield Call(
                response_id=response_id, name=name, step=step, status=status, attempt=attempt, stored_at=stored_at
            )
