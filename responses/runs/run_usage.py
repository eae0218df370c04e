"""The usage of a run: its totals, and the usage records of its model calls and hosted tool calls."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

from core.clock import now
from core.db.db_threads import in_db_thread
from core.db.statement_pipeline import Statement
from core.work.leases import lock
from engine.calls.outcomes import ToolResult
from engine.state import PendingCall
from engine.steps import ToolFinished, TurnRecord
from engine.turn import Call, Finish, Target, Usage
from responses.models import Response
from responses.runs import open_calls, store
from responses.runs.identity import RunIdentity
from responses.runs.rows import Row, new_row
from responses.runs.run_metrics import count_usage
from responses.runs.store import GUARDED, Change, ExtraWrite, writer
from responses.runs.usage_records import usage_columns, waive
from tenants import scope
from tenants.models import Reservation, UsageRecord
from tenants.prices import Quantities, sum_costs

# If a call of a dead process ended longer ago than this, its usage record gets a time this long ago, because the sums
# of earlier hours may be complete.
_LATEST = timedelta(hours=1)
_SET_TARGET = Statement(f"""
    UPDATE responses_response AS response
    SET model = new.model, upstream_id = new.upstream_id, upstream_model = new.upstream_model
    FROM json_to_recordset($1::json) AS new (id text, model text, upstream_id text, upstream_model text, guard text)
    WHERE response.id = new.id
      AND response.id = ANY (ARRAY(SELECT id FROM json_to_recordset($1::json) AS key (id text)))
      AND {GUARDED}
""")  # noqa: S608 - constants only
PRICE_KEYS = {"web_search": "web_search", "file_search": "file_search"}
"""Price keys of the hosted calls that cost money, by name of the function."""


@dataclass(slots=True, kw_only=True)
class RunProgress:
    """The next item position and the totals of a run so far. When a run is resumed, they are restored from its row."""

    next_position: int = 0
    turns: int = 0
    tool_calls: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: Decimal | None = None
    first_token_ms: int | None = None
    preview: str = ""

    def add_usage(self, turn: TurnRecord, records: Sequence[Row]) -> None:
        """Add a model call with its usage records to the totals."""
        self.usage += turn.total_usage
        for record in records:
            self.cost = sum_costs(self.cost, record.values["cost"])


def token_columns(usage: Usage) -> dict[str, int]:
    """Return the values of the columns of turns and responses that count tokens."""
    return {
        "input_tokens": usage.input_tokens,
        "cached_tokens": usage.cached_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "output_tokens": usage.output_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }


def milliseconds(span: timedelta) -> int:
    """Return a duration in whole milliseconds, at least zero: clocks of several processes may differ."""
    return max(0, round(span.total_seconds() * 1000))


# -- calls of the model ------------------------------------------------------------------------------------------------


def turn_records(identity: RunIdentity, turn: TurnRecord) -> list[Row]:
    """Return the usage records of a turn: one for each HTTP request. The last request was answered or interrupted."""

    def record(
        usage: Usage, target: Target | None, *, outcome: str, began: datetime, ended: datetime, upstream_request_id: str
    ) -> Row:
        account = identity.at(target)
        return _new_record(
            account,
            ended=ended,
            endpoint=account.endpoint,
            turn=turn.number,
            upstream_id=account.upstream_id,
            upstream_model=account.upstream_model,
            outcome=outcome,
            duration_ms=milliseconds(ended - began),
            upstream_request_id=upstream_request_id[:200],
            **usage_columns(usage, account.prices, at=began, tier=turn.result.service_tier or ""),
        )

    repeated = [
        record(
            usage,
            attempt.target,
            outcome="failed",
            began=attempt.began,
            ended=attempt.ended or turn.ended_at,
            upstream_request_id=attempt.request_id,
        )
        for attempt, usage in zip(turn.result.lost_attempts, turn.repeated, strict=True)
    ]
    last = record(
        turn.usage,
        turn.result.target,
        outcome=turn.outcome,
        began=turn.started_at,
        ended=turn.ended_at,
        upstream_request_id=turn.result.upstream_request_id or "",
    )
    return [*repeated, last]


def answered(identity: RunIdentity) -> ExtraWrite:
    """Return the write that names the target that has answered in the row of the response."""
    named = {name: getattr(identity, name) for name in ("model", "upstream_id", "upstream_model")}
    return ExtraWrite(_SET_TARGET, {"id": identity.response_id, **named})


async def write_turn(
    identity: RunIdentity, turn: TurnRecord, records: Sequence[Row], writes: Sequence[ExtraWrite]
) -> None:
    """Write the usage records of a turn that no step will record, unless another process records the turn."""
    # In a thread, because the writes depend on the row of the response, which must not change in between.
    count_usage(await in_db_thread(partial(_write_turn, identity, turn, records, writes)))


async def write_no_turn(identity: RunIdentity, number: int) -> None:
    """Record that no model call was open in this turn of a run that another process has ended."""
    call_id = open_calls.turn_id(identity.response_id, number)
    extra = [open_calls.close(call_id), open_calls.no_usage(identity.response_id)]
    await writer.submit(Change(team_id=identity.team_id, extra=extra))


def _write_turn(
    identity: RunIdentity, turn: TurnRecord, records: Sequence[Row], writes: Sequence[ExtraWrite]
) -> Sequence[Row]:
    """Write the usage records of a turn and add them to its response. Return the records that were written.

    Records that are already stored, or that another process writes, are left out.
    """
    with scope.team(identity.team_id):
        # The row is locked until the commit. A process that resumes or ends the run either reads the usage that is
        # added here, or it has already changed the token. In the second case, nothing is added.
        rows = Response.objects.select_for_update(no_key=True).filter(pk=identity.response_id)
        row = rows.values("lease_token", "turns").first()
        call_id = open_calls.turn_id(identity.response_id, turn.number)
        # A locked row is being turned into a record by another process. Waiting for it could deadlock.
        if lock(Reservation.objects.filter(pk=call_id)).exists():
            # Another process has ended the run and expects this process to record the open turn.
            is_ours = True
        elif row is None:
            # The response was deleted.
            same = UsageRecord.objects.filter(object_id=identity.response_id, turn=turn.number)
            is_ours = not same.filter(endpoint=identity.endpoint, occurred_at__gte=turn.started_at).exists()
        else:
            # If the token differs, a process that resumed or ended the run considered this process dead and records an
            # estimate. If the number of turns differs, the step that records the turn was committed, although the run
            # was stopped during the commit.
            is_ours = row["lease_token"] == identity.lease_token and row["turns"] == turn.number
        kept = records if is_ours else ()
        added = [open_calls.added_usage(identity.response_id, record) for record in kept]
        extra = [*writes, open_calls.close(call_id), *added]
        store.apply([Change(team_id=identity.team_id, insert=kept, extra=extra)])
        return kept


# -- calls of hosted tools ---------------------------------------------------------------------------------------------


def call_record(identity: RunIdentity, call: Call, endpoint: str, *, turn: int, at: datetime, outcome: str) -> Row:
    """Return the usage record of a hosted tool call."""
    calls = Quantities(tool_calls={endpoint: 1})
    cost = identity.prices.cost(calls, at=at) or identity.tool_prices.cost(calls, at=at)
    return _new_record(
        identity,
        ended=at,
        cost=None if cost is None else cost.total,
        prices=None if cost is None else cost.stored(),
        endpoint=endpoint,
        turn=turn,
        upstream_id="",
        upstream_model=call.name[:200],
        outcome=outcome,
        estimated=outcome == str(Finish.INTERRUPTED),
    )


def finished_call_record(identity: RunIdentity, step: ToolFinished) -> Row | None:
    """Return the usage record of a hosted call that has ended; None if it is free."""
    result = step.result
    if result.cost is None:
        return None
    outcome = _outcome_of_call(result)
    return call_record(identity, step.call, result.cost, turn=step.turn, at=step.ended_at, outcome=outcome)


def abandoned_call_record(identity: RunIdentity, pending: PendingCall, *, at: datetime) -> Row | None:
    """Return the usage record of a hosted call that was abandoned because the run has ended; None if it is free."""
    outcome, key = str(Finish.INTERRUPTED), PRICE_KEYS.get(pending.call.name)
    if (result := pending.result) is not None:
        outcome, key = _outcome_of_call(result), result.cost
    elif not pending.attempt:
        key = None
    if key is None:
        return None
    return call_record(identity, pending.call, key, turn=pending.turn, at=at, outcome=outcome)


def _outcome_of_call(result: ToolResult) -> str:
    if result.error == "timeout":
        # It is unknown if the call is charged.
        return str(Finish.INTERRUPTED)
    return "failed" if result.error else "completed"


def _new_record(identity: RunIdentity, *, ended: datetime, **columns: Any) -> Row:
    record = new_row(
        UsageRecord,
        team_id=identity.team_id,
        api_key_id=identity.key_id,
        occurred_at=max(ended, now() - _LATEST),
        end_user=identity.end_user,
        batch=identity.batch,
        object_id=identity.response_id,
        model=identity.model,
        request_id=identity.request_id,
        **columns,
    )
    if not identity.bills_estimates:
        waive(record)
    return record
