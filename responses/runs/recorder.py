"""The recorder of a run: stores each step with its rows and events, and then releases the events to the client.

The recorder converts each step of the engine to bytes for the client and a change for the store. Steps that must not be
lost are committed before their bytes are released. Deltas are released immediately and stored later by the event log.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, assert_never

from conversations.models import Section
from core.clock import now
from core.db.group_commit import uncancelled
from core.json.large_work import in_thread, is_large
from engine import spans
from engine.events.response_body import Ending
from engine.events.types import DONE_FRAME
from engine.state import OutputItem, PendingCall
from engine.steps import (
    CallRecord,
    CallsWaiting,
    ContextCompacted,
    Emitted,
    FragmentsClosed,
    RunEnded,
    RunStarted,
    RunSuspended,
    Step,
    ToolFinished,
    ToolsPrepared,
    ToolsReturned,
    ToolsStarted,
    TurnDiscarded,
    TurnEnded,
    TurnRecord,
)
from responses.models import Status, ToolCall, Turn
from responses.runs import run_usage
from responses.runs.conversation_lock import ConversationAppend
from responses.runs.decisions import writes
from responses.runs.event_log import EventLog
from responses.runs.identity import RunIdentity
from responses.runs.reservations import RunReservation, Settlement
from responses.runs.rows import Row, item_rows, new_row, preview
from responses.runs.run_metrics import RunMetrics
from responses.runs.run_usage import RunProgress, milliseconds, token_columns, turn_records
from responses.runs.store import GUARDED, CallUpdate, Change, ExtraWrite, ResponseUpdate
from responses.webhooks.outbox import announcement, event_row

_INSERT_DELIVERIES = announcement(guarded=GUARDED)


class Recorder:
    """Records the steps of one run, in order.

    For a resumed run, pass its `progress` and the number of its next event. `append` is for a run with a conversation.
    """

    def __init__(
        self,
        identity: RunIdentity,
        progress: RunProgress | None = None,
        *,
        next_sequence: int = 0,
        append: ConversationAppend | None = None,
        reservation: RunReservation | None = None,
    ) -> None:
        self._reservation = reservation
        self._settlement: Settlement | None = None
        self._identity = identity
        self.log = EventLog(identity, next_sequence=next_sequence)
        self.metrics = RunMetrics(identity)
        self._progress = progress or RunProgress()
        self._append = append

    async def record(self, step: Step) -> bytes:
        """Store a step and return its bytes for the client. All steps except deltas are committed before the return.

        Raises `LeaseLost` if another process has ended or resumed the run.
        """
        log, is_cancelled = self.log, False
        if isinstance(step, Emitted):
            log.raise_failed_flush()
            data = log.append(step.events)
            log.flush_soon()
            return data
        measured = spans.span(spans.Activity.STORAGE, "Commit")
        try:
            await log.flushed()
        except asyncio.CancelledError:
            # The step has happened: without it, the end of the run would lack its calls and their results.
            is_cancelled = True
            await log.flushed()
        data = b""
        large: asyncio.Task[bytes] | None = None
        if is_large():
            # Until the step is planned, the event log must not store the events that belong to the step.
            log.hold()
            large = asyncio.create_task(self._store_large(step))
            commit = uncancelled(large)
        else:
            data, change = self.plan(step)
            commit = log.submit(change)
        # A cancellation waits for the commit, which decides if the step counts. If the last step of the run was
        # committed, the run is over and the cancellation came too late.
        try:
            with measured:
                await commit
        except asyncio.CancelledError:
            if commit.exception() is None:
                self._committed(step)
            if not isinstance(step, RunEnded) or commit.exception() is not None:
                raise
        else:
            self._committed(step)
        if is_cancelled and not isinstance(step, RunEnded):
            raise asyncio.CancelledError
        return data if large is None else large.result()

    def _committed(self, step: Step) -> None:
        self.metrics.count(step, first_token_ms=self._progress.first_token_ms)
        # Settled before the client receives the end of the run, so that the client's next request finds the place free.
        if self._settlement is not None:
            self._settlement.settle()
            self._settlement = None

    def use(self, reservation: RunReservation) -> None:
        """Use this reservation for the run."""
        self._reservation = reservation

    def release_reservation(self) -> None:
        """Release the reservations of a run that this process does not continue, without waiting for it."""
        if self._reservation is not None:
            self._reservation.release()

    async def _store_large(self, step: Step) -> bytes:
        """Commit a large step and return its bytes. The step is planned in a thread.

        The terminal event contains the instructions and tools of the request. With 9 MB of them, `plan` would block the
        event loop for up to 86 ms. Do not cancel this coroutine, because the log would lack the events that `plan` has
        numbered.
        """
        try:
            data, change = await in_thread(partial(self.plan, step))
        finally:
            self.log.release()
        await self.log.submit(change)
        return data

    def plan(self, step: Step) -> tuple[bytes, Change]:
        """Return the bytes of a step, and the change that stores the step and all events that are not stored yet."""
        # Even a large batch of events is not stored before the step, because if the run has lost its lease, its
        # terminal event must not be in the log.
        data = self.log.append(step.events)
        identity = self._identity
        rows: list[Row] = []
        calls: list[CallUpdate] = []
        extra: list[ExtraWrite] = []
        tools: dict[str, Row | None] = {}
        match step:
            case TurnEnded() | RunEnded():
                turn = self._turn_rows(step.turn) if step.turn else []
                decisions = writes.decision_rows(identity, step.calls)
                rows = [*turn, *self._item_rows(step.items), *self._call_rows(step.calls), *decisions]
            case ToolsPrepared():
                rows = [*self._item_rows(step.items), *self._call_rows(step.calls)]
            case TurnDiscarded() | ContextCompacted():
                rows = [*self._turn_rows(step.turn), *self._item_rows(step.items)]
            case FragmentsClosed():
                rows = self._item_rows(step.items)
            case ToolsStarted() | ToolsReturned():
                calls = [self._open_call(p, step) for p in step.calls]
                if isinstance(step, ToolsStarted):
                    extra += writes.dispatches(step.calls)
            case CallsWaiting():
                rows = writes.waiting_rows(identity, step.calls)
                calls = [self._waiting_call(p) for p in step.calls]
            case ToolFinished():
                record = run_usage.finished_call_record(identity, step)
                rows = [*self._item_rows(step.items), *filter(None, [record])]
                calls = [self._finished_call(step)]
                tools = {step.call.call_id: record}
            case RunSuspended():
                extra.append(writes.suspension(identity.response_id))
            case RunStarted() | Emitted():
                pass
            case never:
                assert_never(never)
        if self._append is not None:
            unwritten, appends = self._appended(self._append, step)
            rows += unwritten
            extra += appends
        if self._identity is not identity:
            extra.append(run_usage.answered(self._identity))
        measured = self._spans_without_turn(step, rows)
        ended: dict[str, Any] = {}
        if isinstance(step, RunEnded):
            data += DONE_FRAME
            ending = step.ending
            calls = [self._update(p.call.call_id, ended_at=step.ended_at, **self._outcome(p)) for p in step.unfinished]
            tools = {
                p.call.call_id: run_usage.abandoned_call_record(identity, p, at=step.ended_at) for p in step.unfinished
            }
            rows += filter(None, tools.values())
            # Webhook events are sent only for background responses, because other clients receive the end directly.
            if identity.background:
                event = event_row(
                    team_id=identity.team_id,
                    event_type=f"response.{ending.status}",
                    object_id=identity.response_id,
                    at=step.ended_at,
                )
                extra.append(ExtraWrite(_INSERT_DELIVERIES, event))
            ended = self._ended_columns(step)
        if self._reservation is not None:
            self._settlement = self._reservation.settlement(
                [row for row in rows if not any(row is record for record in tools.values())],
                has_call=isinstance(getattr(step, "turn", None), TurnRecord),
                has_ended=isinstance(step, RunEnded),
                may_be_charged=_may_be_charged(step),
                tools=tools,
            )
            extra += self._settlement.writes
        # Every step names the lease, so that a run that was resumed elsewhere writes nothing.
        update = self._response_update(measured, ended)
        insert = [*rows, *self.log.take_batch(ends_run=isinstance(step, RunEnded))]
        return data, Change(team_id=identity.team_id, insert=insert, update=update, calls=calls, extra=extra)

    async def record_usage(self, turn: TurnRecord) -> None:
        """Write the usage records of a turn that no step will record, unless another process records the turn."""
        identity, settlement = self._identity, None
        records = turn_records(identity, turn)
        if self._reservation is not None:
            settlement = self._reservation.settlement(
                records, has_call=True, has_ended=True, may_be_charged=turn.result.may_be_charged
            )
        writes = settlement.writes if settlement is not None else ()
        await run_usage.write_turn(identity, turn, records, writes)
        if settlement is not None:
            settlement.settle()

    async def record_no_usage(self, number: int) -> None:
        """Record that no model call was open in a run that another process has ended."""
        await run_usage.write_no_turn(self._identity, number)

    def count_lost(self, turn: TurnRecord) -> list[Row]:
        """Add a call to the totals of the run that was lost because another process died. Return its usage records."""
        records = turn_records(self._identity, turn)
        self._progress.add_usage(turn, records)
        return records

    # -- the rows ------------------------------------------------------------------------------------------------------

    def _turn_rows(self, turn: TurnRecord) -> list[Row]:
        identity, result, progress = self._identity, turn.result, self._progress
        usage_records = turn_records(identity, turn)
        self._identity = identity.at(result.answered_by)
        progress.turns += 1
        progress.add_usage(turn, usage_records)
        self.metrics.add_costs(usage_records)
        if progress.first_token_ms is None and result.first_token_at is not None:
            progress.first_token_ms = milliseconds(result.first_token_at - identity.created_at)
        row = new_row(
            Turn,
            team_id=identity.team_id,
            response_id=identity.response_id,
            number=turn.number,
            state=usage_records[-1].values["outcome"],
            started_at=turn.started_at,
            first_token_at=result.first_token_at,
            ended_at=turn.ended_at,
            # Stored for the next turn, which may run in another process that has resumed the run.
            discarded=asdict(turn.discarded) if turn.discarded is not None and identity.stored else None,
            # Upstreams may send texts of any length, but the columns are limited.
            finish_reason=(result.finish_reason or "")[:40] or None,
            upstream_request_id=(result.upstream_request_id or "")[:200] or None,
            spans=spans.take(identity.created_at, with_content=identity.stored),
            **token_columns(turn.total_usage),
        )
        return [row, *usage_records]

    def _open_call(self, pending: PendingCall, step: ToolsStarted | ToolsReturned) -> CallUpdate:
        """Return the new state of a hosted call that has no final item yet."""
        # Without `store`, the row has content only as long as it may be needed to complete the conversation.
        call_id, known = pending.call.call_id, pending.stored() if self._stores_items else None
        if isinstance(step, ToolsReturned):
            result = pending.result.stored() if self._stores_items and pending.result is not None else None
            return self._update(call_id, status="returned", result=result, if_ended=known)
        if self._append is not None:
            self._append.has_called_tools = True
        return self._update(
            call_id, status="in_progress", started_at=step.started_at, attempt=pending.attempt, if_ended=known
        )

    def _waiting_call(self, pending: PendingCall) -> CallUpdate:
        known = pending.stored() if self._stores_items else None
        return self._update(pending.call.call_id, status="awaiting_decision", if_ended=known)

    def _finished_call(self, step: ToolFinished) -> CallUpdate:
        """Return the new state of a hosted call. Its items must already have their positions."""
        result = step.result
        return self._update(
            step.call.call_id,
            ended_at=step.ended_at,
            **self._outcome(step),
            result={"after": self._progress.next_position, **result.stored()}
            if result.parts and self._identity.stored
            else None,
        )

    def _outcome(self, call: ToolFinished | PendingCall) -> dict[str, Any]:
        """Return the outcome of a hosted call as columns of its row. A pending call ends with its run."""
        result = call.result if isinstance(call, ToolFinished) else call.outcome
        if result is None:
            return {"status": "abandoned"}
        # Without `store`, the row has no content.
        output = result.output if self._identity.stored else None
        return {"status": result.status, "output": output, "error": result.error}

    @property
    def _stores_items(self) -> bool:
        return self._identity.stored or self._append is not None

    def _item_rows(self, items: Sequence[OutputItem]) -> list[Row]:
        stored = self._identity.stored
        if not self._stores_items:
            return []
        rows: list[Row] = []
        progress = self._progress
        for item in items:
            # The preview of an output is its last message or, as long as there is no message, its first item with text.
            if stored and item.body["type"] != "mcp_list_tools":
                text = preview(item.body)
                is_message = item.body["type"] == "message"
                progress.preview = text or progress.preview if is_message else progress.preview or text
            position = progress.next_position
            added = item_rows(item.body, self._identity, Section.OUTPUT, position, in_context=item.in_context)
            progress.next_position += 1
            if self._append is not None:
                self._append.add(added, written=stored)
            rows += added
        return rows if stored else []

    def _appended(self, append: ConversationAppend, step: Step) -> tuple[Sequence[Row], Sequence[ExtraWrite]]:
        """Return the rows and writes of a step that keep the output for the conversation of the run."""
        if not isinstance(step, RunEnded):
            return append.take_unwritten(), ()
        is_failure = step.ending.status not in {Status.COMPLETED, Status.INCOMPLETE}
        return append.at_end(self._identity.response_id, is_failure=is_failure, has_called_tools=step.has_called_tools)

    def _call_rows(self, calls: Sequence[CallRecord]) -> list[Row]:
        self._progress.tool_calls += len(calls)
        stored = self._identity.stored
        # Hosted calls of unstored responses have rows, too, so that no call is lost whose outcome is unknown. Their
        # rows have no content.
        return [
            new_row(
                ToolCall,
                team_id=self._identity.team_id,
                response_id=self._identity.response_id,
                turn=record.turn,
                call_id=record.call.call_id,
                kind=record.kind,
                name=record.call.name[:200],
                arguments=record.call.arguments if stored else "",
                status=record.state,
                output=record.answer if stored else None,
                result={"after": record.after} if stored and record.answer is not None else None,
                started_at=now(),
                ended_at=now() if record.state == "refused" else None,
            )
            for record in calls
            if stored or record.state == "pending"
        ]

    def _update(self, call_id: str, **columns: Any) -> CallUpdate:
        return CallUpdate(response_id=self._identity.response_id, call_id=call_id, **columns)

    def _spans_without_turn(self, step: Step, rows: Sequence[Row]) -> list[dict[str, Any]] | None:
        # The row of a turn contains the spans before the turn. A run may also end without a turn, or fail while it is
        # prepared.
        if isinstance(step, RunEnded | ToolsPrepared) and not any(row.table is Turn for row in rows):
            return spans.take(self._identity.created_at, with_content=self._identity.stored) or None
        return None

    def _ended_columns(self, step: RunEnded) -> dict[str, Any]:
        """Return the columns of a response that are set at its end."""
        ending, identity = step.ending, self._identity
        return {
            "status": ending.status,
            "ended_at": step.ended_at,
            "service_tier": ending.service_tier[:20],
            "duration_ms": identity.duration_ms(until=step.ended_at),
            "error": _stored_error(ending, is_stored=identity.stored),
            "error_code": ending.error["code"] if ending.error else None,
            "incomplete_reason": ending.incomplete_reason,
            "moderation": ending.moderation,
        }

    def _response_update(self, measured: list[dict[str, Any]] | None, ended: Mapping[str, Any]) -> ResponseUpdate:
        progress = self._progress
        return ResponseUpdate(
            response_id=self._identity.response_id,
            lease_token=self._identity.lease_token,
            first_token_ms=progress.first_token_ms,
            turns=progress.turns,
            tool_calls=progress.tool_calls,
            cost=progress.cost,
            spans=measured,
            output_preview=progress.preview,
            **{**token_columns(progress.usage), "status": Status.IN_PROGRESS.value, **ended},
        )


def _stored_error(ending: Ending, *, is_stored: bool) -> Mapping[str, Any] | None:
    """Return the error to store. For an unstored response, the upstream's text is left out: it may repeat content."""
    failure = ending.failure
    if ending.error is None or is_stored or failure is None or not failure.general:
        return ending.error
    return {**ending.error, "message": failure.general}


def _may_be_charged(step: Step) -> bool:
    turn = getattr(step, "turn", None)
    return isinstance(turn, TurnRecord) and turn.result.may_be_charged
