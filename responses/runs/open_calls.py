"""Open calls: rows from which an upstream call is recorded if its process dies before it has recorded the call.

For a call outside of a run, the row is stored before the request is sent, and deleted in the transaction that writes
the usage record. A run needs no such row, because its own row and its log show the open call. There is one exception:
if another process ends the run, that process stores a row for the open turn, which the executing process deletes when
it notices the end and records the turn. If the lease of a row has expired, its process has died, and the sweeper
converts the row to a usage record with the estimate that the row contains.
"""

import asyncio
import logging
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any

from django.conf import settings

from core.clock import shared_now
from core.db import wait_limit
from core.db.db_threads import in_db_thread
from core.db.statement_pipeline import Statement
from core.per_loop import PerLoop
from core.process_name import process_name
from core.work.leases import expired_before, has_expired, lease_until, lock
from responses.runs import store
from responses.runs.rows import Row, new_row
from responses.runs.store import GUARDED, Change, ExtraWrite
from tenants import scope
from tenants.models import Reservation, ReservationKind, Team, UnknownUsage, UsageRecord

logger = logging.getLogger(__name__)
_BATCH_SIZE = 100
_CLOSE = Statement(f"""
    DELETE FROM tenants_reservation WHERE id = ANY (ARRAY(
        SELECT id FROM json_to_recordset($1::json) AS closed (id text, guard text) WHERE {GUARDED}
    ))
""")  # noqa: S608 - constants only
_TOKENS = ("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")
# Rows are grouped by id, because an UPDATE uses only one of several rows with the same id.
_ADD = Statement(f"""
    UPDATE responses_response AS response SET
        {", ".join(f"{name} = response.{name} + added.{name}" for name in _TOKENS)},
        cost = CASE WHEN added.cost IS NULL THEN response.cost ELSE coalesce(response.cost, 0) + added.cost END,
        has_open_call = false
    FROM (
        SELECT id, {", ".join(f"sum({name})::integer AS {name}" for name in _TOKENS)}, sum(cost) AS cost
        FROM json_to_recordset($1::json) AS spent (
            id text, {", ".join(f"{name} integer" for name in _TOKENS)}, cost numeric, guard text
        ) WHERE {GUARDED} GROUP BY id
    ) AS added
    WHERE response.id = added.id
    AND response.id = ANY (ARRAY(SELECT id FROM json_to_recordset($1::json) AS spent (id text)))
""")  # noqa: S608 - constants only


def turn_id(response_id: str, turn: int) -> str:
    """Return the id of the row of a run's open turn."""
    return f"{response_id}/turn/{turn}"


def open_row(
    call_id: str,
    record: Row,
    *,
    owner: str | None = None,
    until: datetime | None = None,
    adds_to: str = "",
    reserved: Mapping[str, Decimal] | None = None,
) -> Row:
    """Return the row of an open call with its estimated usage record.

    `adds_to` is the response of which the call is a part. `reserved` are the amounts of the call's reservations, by the
    ids of the reservations.
    """
    values = record.values
    return new_row(
        Reservation,
        id=call_id,
        team_id=values["team_id"],
        api_key_id=values["api_key_id"] or "",
        end_user=values["end_user"],
        kind=ReservationKind.CALL.value,
        epoch=0,
        lease_owner=owner or process_name(),
        lease_until=until or lease_until(),
        details={
            "record": values,
            "adds_to": adds_to,
            "reserved": {name: f"{amount:f}" for name, amount in (reserved or {}).items()},
        },
    )


def close(call_id: str) -> ExtraWrite:
    """Return the write that deletes the row of an open call."""
    return ExtraWrite(_CLOSE, {"id": call_id})


def added_usage(response_id: str, record: Row) -> ExtraWrite:
    """Return the write that adds a usage record to the totals of its response, if no step of the run will add it."""
    values = record.values
    return ExtraWrite(_ADD, {"id": response_id, "cost": values["cost"], **{name: values[name] for name in _TOKENS}})


def no_usage(response_id: str) -> ExtraWrite:
    """Return the write that makes the totals of a response final without adding a call."""
    return ExtraWrite(_ADD, {"id": response_id, "cost": None, **dict.fromkeys(_TOKENS, 0)})


def record_lost_calls() -> int:
    """Write the usage records of open calls whose process died. Return their number."""
    with scope.every_team():
        lost = Reservation.objects.filter(has_expired(), details__isnull=False).order_by("lease_until")
        rows = list(lock(lost)[:_BATCH_SIZE])
        changes = [_lost(row.pk, row.team_id, row.details or {}) for row in rows]
        if changes:
            store.apply(changes)
    return len(rows)


def _lost(call_id: str, team_id: str, details: Mapping[str, Any]) -> Change:
    values = {**details["record"], "occurred_at": shared_now()}
    values["cost"] = None if values["cost"] is None else Decimal(values["cost"])
    policy = Team.objects.values_list("unknown_usage", flat=True).filter(pk=team_id).first()
    if values["cost"] is not None and policy == UnknownUsage.FREE:
        values["cost"] = Decimal(0)
    reserved = {name: Decimal(amount) for name, amount in details["reserved"].items()}
    if (total := sum(reserved.values(), Decimal(0))) > (values["cost"] or 0):
        # The amount that the upstream has charged is unknown. With a lower amount, a hard budget could be exceeded.
        values["budget_cost"] = total
    record = Row(UsageRecord, values)
    added = [added_usage(details["adds_to"], record)] if details["adds_to"] else []
    closed = [close(name) for name in (call_id, *reserved)]
    return Change(team_id=team_id, insert=[record], extra=[*closed, *added])


class _OpenCalls:
    """Renews the leases of the open calls of an event loop."""

    def __init__(self) -> None:
        self._until: dict[str, datetime] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, call_id: str, until: datetime) -> None:
        self._until[call_id] = until
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._renew(), context=wait_limit.unrelated())

    def discard(self, call_id: str) -> None:
        """Stop renewing the lease of a call."""
        self._until.pop(call_id, None)

    async def _renew(self) -> None:
        while self._until:
            # Renewed three times per lease, like the leases of runs.
            await asyncio.sleep(settings.LEASE_SECONDS / 3)
            # Most calls end before their lease must be renewed, so their rows need no update.
            soon = lease_until()
            old = [call_id for call_id, until in self._until.items() if (soon - until).total_seconds() > 1]
            try:
                renewed = await in_db_thread(partial(_renew, old, soon)) if old else ()
            except Exception:
                logger.exception("leases of calls could not be renewed")
                continue
            for call_id in renewed:
                if call_id in self._until:
                    self._until[call_id] = soon


@PerLoop
def of_loop() -> _OpenCalls:
    """Return the open calls of the running event loop."""
    return _OpenCalls()


def _renew(call_ids: list[str], until: datetime) -> list[str]:
    with scope.every_team():
        rows = Reservation.objects.filter(pk__in=call_ids, lease_until__gt=expired_before())
        found = [*rows.select_for_update(no_key=True).values_list("pk", flat=True)]
        Reservation.objects.filter(pk__in=found).update(lease_until=until)
    return found
