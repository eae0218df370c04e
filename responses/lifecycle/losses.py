"""Losses of a run whose process died: the calls that were in progress, and the reservations of the process."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from functools import partial

from django.db import transaction
from django.db.models import Q

import limits
from core.work.leases import lease_until
from engine.loop import Run
from engine.steps import TurnRecord
from engine.turn import Call, Finish, Usage
from limits import Grant
from responses.models import Response, ToolCall, Turn
from responses.runs.identity import RunIdentity
from responses.runs.open_calls import open_row, turn_id
from responses.runs.reservations import is_of_tool, price_key_of, spent
from responses.runs.rows import Row
from responses.runs.run_usage import PRICE_KEYS, call_record, turn_records
from responses.runs.stored_state import call_of
from tenants.models import Reservation, UsageRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """The calls that a run lost because its previous process died, and the reservations of that process.

    `turn` is the lost model call, with an estimate of its usage. `call_records` are the usage records of lost hosted
    calls. `grants` are the reservations; for a queued run, this is the reservation of its place in the queue.
    """

    turn: TurnRecord | None = None
    call_records: Sequence[Row] = ()
    grants: Sequence[Grant] = ()


def last_activity(
    response: Response, turns: Sequence[Turn], calls: Sequence[ToolCall], *, is_claimed: bool
) -> datetime:
    """Return the time of the last known activity: the begin of the last attempt, or the end of a turn or call."""
    claims = [datetime.fromisoformat(claim["at"]) for claim in response.claims]
    # Leave out the present claim, for which the run is loaded.
    earlier = claims[:-1] if is_claimed else claims
    ends = [turn.ended_at for turn in turns] + [call.ended_at for call in calls]
    return max([response.created_at, *earlier, *filter(None, ends)])


def lost_turn(
    response: Response, run: Run, turns: Sequence[Turn], *, began: datetime, ended: datetime
) -> TurnRecord | None:
    """Return the model call that was in progress when the process died, unless the process has recorded it."""
    lost = run.lost_turn(began=began, ended=ended)
    if lost is None:
        return None
    records = UsageRecord.objects.filter(object_id=response.pk, turn=response.turns, occurred_at__gte=began)
    if records.filter(endpoint=response.endpoint).exists():
        return None
    return lost if response.stored else replace(lost, usage=_usage_without_log(response, turns))


def _usage_without_log(response: Response, turns: Sequence[Turn]) -> Usage:
    # Without the log, the output is unknown. The input is known from the request, or from the previous turn.
    known = response.options.get("input_tokens", 0)
    if turns:
        known = turns[-1].input_tokens + turns[-1].output_tokens
    return Usage(input_tokens=known, estimated=True)


def lost_calls(
    response: Response, identity: RunIdentity, calls: Sequence[ToolCall], grants: Sequence[Grant], *, at: datetime
) -> list[Row]:
    """Return the usage records of hosted calls that were in progress when the process died."""
    lost = [
        (call_of(row), PRICE_KEYS[row.name], row.turn)
        for row in calls
        if row.status == "in_progress" and row.name in PRICE_KEYS
    ]
    if not response.stored and not calls:
        # An earlier release wrote no rows for the calls of unstored responses; only the reservations identify them.
        keys = [price_key_of(grant.id) for grant in grants if is_of_tool(grant.id)]
        turn = max(0, response.turns - 1)
        lost = [(Call(item_id="", call_id="", name=key, arguments=""), key, turn) for key in keys]
    outcome = str(Finish.INTERRUPTED)
    return [call_record(identity, call, key, turn=turn, at=at, outcome=outcome) for call, key, turn in lost]


def open_turn_row(response: Response, identity: RunIdentity, turn: TurnRecord | None, *, until: datetime) -> Row | None:
    """Return the row of the open model call of a process that is alive but has lost its run.

    The process records the call when it notices the loss. If it dies before, the call is recorded from this row.
    """
    if turn is None:
        return None
    (record,) = turn_records(identity, turn)
    return open_row(
        turn_id(response.pk, turn.number),
        record,
        owner=response.lease_owner,
        until=max(until, lease_until()),
        adds_to=response.pk,
    )


# -- reservations ------------------------------------------------------------------------------------------------------


def stored_grants(response_id: str) -> list[Grant]:
    """Return the stored reservations of a response. Runs in a scope of the response's team."""
    rows = Reservation.objects.filter(Q(response_id=response_id) | Q(pk=response_id))
    return [
        Grant(
            id=row.pk,
            team_id=row.team_id,
            key_id=row.api_key_id,
            end_user=row.end_user,
            epoch=row.epoch,
            amount=row.amount,
            tokens=row.tokens,
            run=row.is_run,
            stream=row.is_stream,
            queued=row.is_queued,
            needs_row=True,
            at=row.created_at,
            time_zone=row.team.time_zone,
        )
        for row in rows.select_related("team")
    ]


def charge_reserved(grants: Sequence[Grant], rows: Sequence[Row]) -> None:
    """Charge the full reservations of a dead process to the budgets, by means of these usage records of its calls.

    The records are estimates: the amount that the upstream has charged is unknown. With a lower amount, a hard budget
    could be exceeded.
    """
    for of_tools in (False, True):
        reserved = sum((grant.amount for grant in grants if is_of_tool(grant.id) == of_tools), Decimal(0))
        records = [
            values
            for table, values in rows
            # Hosted calls have no upstream.
            if table is UsageRecord and values["estimated"] and (not values["upstream_id"]) == of_tools
        ]
        missing = reserved - sum(values["cost"] or 0 for values in records)
        if records and missing > 0:
            records[-1]["budget_cost"] = (records[-1]["cost"] or 0) + missing


def settle_on_commit(grants: Sequence[Grant], records: Sequence[Row]) -> None:
    """After the commit, settle the reservations of a dead process with the usage of its lost calls.

    The caller's transaction deletes the rows of the reservations.
    """
    _, cost, at = spent(records, grants[0] if grants else None)
    for grant in grants:
        # The first reservation gets the whole cost. It does not matter which reservation gets it, because all of them
        # count for the same subjects.
        settle = partial(limits.settle_sync, grant, tokens=0, cost=cost if grant is grants[0] else None, at=at)
        transaction.on_commit(settle)
