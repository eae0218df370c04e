"""The outbox: what endpoints are to be told is written with what happened, in the same statement or transaction.

The row comes with a notice of PostgreSQL's, which arrives when it is committed and wakes those that deliver.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson
from django.db import connection

from kernel.clock import now
from responses.webhooks.events import new_event_id

CHANNEL = "webhooks"
# An endpoint that is locked is being deleted: whoever ends a run does not wait for that.
_INSERT = f"""
    INSERT INTO responses_webhookdelivery (
        event_id, team_id, endpoint_id, event_type, object_id, created_at, next_attempt_at,
        state, attempts, last_error, last_body, history
    )
    SELECT new.event_id, endpoint.team_id, endpoint.id, new.event_type, new.object_id, new.created_at, new.created_at,
        'pending', 0, '', '', '[]'
    FROM json_to_recordset(%s::json) AS new (
        event_id text, team_id text, event_type text, object_id text, created_at timestamptz, guard text
    )
    JOIN responses_webhookendpoint AS endpoint
      ON endpoint.team_id = new.team_id AND endpoint.enabled AND new.event_type = ANY (endpoint.event_types)
    WHERE {{guard}}
    FOR KEY SHARE OF endpoint SKIP LOCKED
    ON CONFLICT DO NOTHING
    RETURNING endpoint_id, pg_notify('{CHANNEL}', '')
"""  # noqa: S608 - constants of ours


def wake() -> None:
    """Have couriers look, once the caller's transaction is committed."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, '')", [CHANNEL])


def announcement(*, guarded: str) -> str:
    """Return the SQL of an `ExtraWrite` that announces events; `guarded` is the condition of rows that count."""
    return f"announced AS ({_INSERT.format(guard=guarded)})"


def event_row(*, team_id: str, event_type: str, object_id: str, at: datetime) -> Mapping[str, Any]:
    """An event, as a row of that part's document."""
    return {
        "event_id": new_event_id(),
        "team_id": team_id,
        "event_type": event_type,
        "object_id": object_id,
        "created_at": at,
    }


def announce(*, team_id: str, event_type: str, object_id: str) -> int:
    """Write an event for every endpoint of the team that wants it, in the caller's transaction; returns how many.

    The transaction must see the team (`tenants.scope`).
    """
    row = event_row(team_id=team_id, event_type=event_type, object_id=object_id, at=now())
    with connection.cursor() as cursor:
        cursor.execute(_INSERT.format(guard="true"), [orjson.dumps([row]).decode()])
        return int(cursor.rowcount)
