"""Events for the outbox. Deliveries are inserted in the same statement or transaction that causes the event.

Each insert sends a PostgreSQL notification, which arrives with the commit and wakes the delivery workers.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson
from django.db import connection

from core.clock import now
from core.db.statement_pipeline import Statement
from deliveries.outbox.queue import CHANNEL
from responses.webhooks.events import new_event_id

# SKIP LOCKED: an endpoint whose row cannot be locked is being deleted, and the end of a run must not wait for this.
_INSERT = f"""
    INSERT INTO responses_webhookdelivery (
        event_id, team_id, endpoint_id, event_type, object_id, data, created_at, next_attempt_at,
        state, attempts, last_error, last_body, history
    )
    SELECT new.event_id, endpoint.team_id, endpoint.id, new.event_type, new.object_id, coalesce(new.data, '{{{{}}}}'),
        new.created_at, new.created_at, 'pending', 0, '', '', '[]'
    FROM json_to_recordset({{document}}::json) AS new (
        event_id text, team_id text, event_type text, object_id text, data jsonb, created_at timestamptz, guard text
    )
    JOIN responses_webhookendpoint AS endpoint
      ON endpoint.team_id = new.team_id AND endpoint.enabled AND new.event_type = ANY (endpoint.event_types)
    WHERE {{guard}}
    FOR KEY SHARE OF endpoint SKIP LOCKED
    ON CONFLICT DO NOTHING
    RETURNING endpoint_id, pg_notify('{CHANNEL}', '')
"""  # noqa: S608 - only constants are inserted


def announcement(*, guarded: str) -> Statement:
    """Return the statement of an `ExtraWrite` that inserts events; `guarded` is the condition that a row must meet."""
    return Statement(_INSERT.format(document="$1", guard=guarded))


def event_row(*, team_id: str, event_type: str, object_id: str, at: datetime) -> Mapping[str, Any]:
    """Return an event as a row of the JSON document that `announcement` reads."""
    return {
        "event_id": new_event_id(),
        "team_id": team_id,
        "event_type": event_type,
        "object_id": object_id,
        "created_at": at,
    }


def announce(*, team_id: str, event_type: str, object_id: str, data: Mapping[str, Any] | None = None) -> int:
    """Insert an event for each subscribed endpoint of the team, in the caller's transaction, and return their number.

    `data` is sent in addition to the object's id. The transaction must have a scope that sees the team.
    """
    row = {**event_row(team_id=team_id, event_type=event_type, object_id=object_id, at=now()), "data": data}
    with connection.cursor() as cursor:
        cursor.execute(_INSERT.format(document="%s", guard="true"), [orjson.dumps([row]).decode()])
        return int(cursor.rowcount)
