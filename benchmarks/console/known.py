"""Existing rows for the paths of the pages."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from benchmarks.console.organization import key_id, team_id
from benchmarks.console.population import TEAMS

_COLUMNS = "id, request_id, conversation_id, metadata ->> 'order', created_at"
_TEN_DAYS_AGO = "created_at < now() - interval '10 days' ORDER BY created_at DESC LIMIT 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A response of the largest team from about ten days ago, related ids, and the oldest response with its time."""

    response: str
    other_response: str
    request: str
    conversation: str
    number: int
    big_team: str
    small_team: str
    busy_key: str
    idle_key: str
    oldest: datetime
    oldest_response: str


def known_rows(connection: psycopg.Connection) -> Known:
    """Return rows of the test data. Raises RuntimeError if it has too few responses."""

    def first(condition: str) -> tuple[Any, ...]:
        statement = f"SELECT {_COLUMNS} FROM responses_response WHERE team_id = %s AND {condition}"
        row = connection.execute(statement.encode(), [team_id(0)]).fetchone()
        if row is None:
            raise RuntimeError("There are too few responses.")
        return row

    response = first(f"conversation_id IS NOT NULL AND metadata ? 'order' AND {_TEN_DAYS_AGO}")
    other = first(f"tool_calls > 0 AND NOT metadata ? 'order' AND {_TEN_DAYS_AGO}")
    oldest = first("id IS NOT NULL ORDER BY created_at LIMIT 1")
    last = TEAMS - 1
    return Known(
        response=response[0],
        other_response=other[0],
        request=response[1],
        conversation=response[2],
        number=int(response[3]),
        big_team=team_id(0),
        small_team=team_id(last),
        busy_key=key_id(0),
        idle_key=key_id(last + 4 * TEAMS),
        oldest=oldest[4],
        oldest_response=oldest[0],
    )
