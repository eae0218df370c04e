"""The calls of a run that were open when its previous process died, or that a living process still has open."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from core.work.leases import lease_until
from engine.loop import Run
from engine.steps import TurnRecord
from engine.turn import Call, Finish, Usage
from limits import Grant
from responses.models import Response, ToolCall, Turn
from responses.runs.identity import RunIdentity
from responses.runs.open_calls import open_row, turn_id
from responses.runs.reservations import is_of_tool, price_key_of
from responses.runs.rows import Row
from responses.runs.run_usage import PRICE_KEYS, call_record, turn_records
from responses.runs.stored_state import call_of
from tenants.models import UsageRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """The calls that a run has lost with its previous process, and that process's reservations.

    `turn` is the lost model call, with an estimate of its usage; `call_records` are the usage records of hosted calls.
    For a run that waits in the queue, `grants` is its place there.
    """

    turn: TurnRecord | None = None
    call_records: Sequence[Row] = ()
    grants: Sequence[Grant] = ()


def last_activity(
    response: Response, turns: Sequence[Turn], calls: Sequence[ToolCall], *, is_claimed: bool
) -> datetime:
    """Return when the last attempt to run a response began, or its last finished turn or call ended."""
    claims = [datetime.fromisoformat(claim["at"]) for claim in response.claims]
    # Leave out the claim for which the run is loaded.
    earlier = claims[:-1] if is_claimed else claims
    ends = [turn.ended_at for turn in turns] + [call.ended_at for call in calls]
    return max([response.created_at, *earlier, *filter(None, ends)])


def lost_turn(
    response: Response, run: Run, turns: Sequence[Turn], *, began: datetime, ended: datetime
) -> TurnRecord | None:
    """Return the model call that was lost with its process, if there was one and the process has not recorded it."""
    lost = run.lost_turn(began=began, ended=ended)
    if lost is None:
        return None
    records = UsageRecord.objects.filter(object_id=response.pk, turn=response.turns, occurred_at__gte=began)
    if records.filter(endpoint=response.endpoint).exists():
        return None
    return lost if response.stored else replace(lost, usage=_usage_without_log(response, turns))


def _usage_without_log(response: Response, turns: Sequence[Turn]) -> Usage:
    # Without the log, the output is unknown. The input is known from the request, or from the turn before.
    known = response.options.get("input_tokens", 0)
    if turns:
        known = turns[-1].input_tokens + turns[-1].output_tokens
    return Usage(input_tokens=known, estimated=True)


def lost_calls(
    response: Response, identity: RunIdentity, calls: Sequence[ToolCall], grants: Sequence[Grant], *, at: datetime
) -> list[Row]:
    """Return the usage records of hosted calls that were lost with their process."""
    lost = [
        (call_of(row), PRICE_KEYS[row.name], row.turn)
        for row in calls
        if row.status == "in_progress" and row.name in PRICE_KEYS
    ]
    if not response.stored:
        # An unstored response has no rows of its calls; only its reservations name them.
        keys = [price_key_of(grant.id) for grant in grants if is_of_tool(grant.id)]
        turn = max(0, response.turns - 1)
        lost = [(Call(item_id="", call_id="", name=key, arguments=""), key, turn) for key in keys]
    outcome = str(Finish.INTERRUPTED)
    return [call_record(identity, call, key, turn=turn, at=at, outcome=outcome) for call, key, turn in lost]


def open_turn_row(response: Response, identity: RunIdentity, turn: TurnRecord | None, *, until: datetime) -> Row | None:
    """Return the row of the open call of a process that lives.

    The process records the call when it notices that it has lost the run; if it dies before, the record is in this row.
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
