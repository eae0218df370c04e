"""The recorder of a run: numbers its events, stores them with the rows they describe, and then releases them.

It turns each step of the engine into bytes for the client and a change for the store. Steps that must not be lost are
committed before their bytes are released. Deltas are released immediately and stored later: with the next step, or
within `EVENT_LOG_SECONDS` or 64 KiB. While a run is followed, that takes milliseconds, as followers receive the log.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, assert_never

from django.conf import settings

from conversations.items import plain_text
from conversations.models import Item, Placement, Section, opens_context
from core.clock import now
from core.db.db_threads import in_db_thread
from core.json.large_work import LARGE_BYTES, in_thread, is_large, pause
from core.work.leases import lock
from core.work.notifications import Notifier, loop_notifications
from engine import spans
from engine.calls.outcomes import ToolResult, request_digest
from engine.events.compression import compress
from engine.events.response_body import Ending
from engine.events.types import DONE_FRAME, Body, Event, frame
from engine.state import OutputItem, PendingCall
from engine.steps import (
    CallRecord,
    ContextCompacted,
    Emitted,
    FragmentsClosed,
    RunEnded,
    RunStarted,
    Step,
    ToolFinished,
    ToolsPrepared,
    ToolsReturned,
    ToolsStarted,
    TurnDiscarded,
    TurnEnded,
    TurnRecord,
)
from engine.turn import Call, Finish, Usage
from responses.models import Approval, EventBatch, Response, Status, ToolCall, Turn
from responses.runs import open_calls, store
from responses.runs.conversation_lock import ConversationAppend
from responses.runs.identity import RunIdentity
from responses.runs.log_messages import LogMessage
from responses.runs.reservations import RunReservation, Settlement
from responses.runs.rows import Row, new_row
from responses.runs.run_metrics import RunMetrics, count_usage
from responses.runs.store import GUARDED, CallUpdate, Change, ExtraWrite, LeaseGuard, ResponseUpdate, writer
from responses.runs.usage_records import usage_columns, waive
from responses.webhooks.outbox import announcement, event_row
from tenants import scope
from tenants.models import Reservation, UsageRecord
from tenants.prices import Quantities, sum_costs

# Followers receive what is committed, so a short delay keeps their stream smooth. What the runs of a process emit in
# this time is one commit.
FOLLOWED_FLUSH_SECONDS = 0.03
# Used without Redis, where a run cannot know whether it is followed, and for pages that list many runs with the ends of
# their logs.
_OBSERVED_FLUSH_SECONDS = 0.25
# How long a message about such a page counts; pages send one every two seconds.
_OBSERVED_SECONDS = 5.0
FLUSH_BYTES = 64 * 1024
# Unfollowed runs of the process flush on common ticks as well, but not all of them on the same one.
_TICKS = 40
PREVIEW_LENGTH = 120
# Usage records of calls that ended longer ago, in a process that died, get a time this long ago: the sums of their hour
# may be complete.
_LATEST = timedelta(hours=1)
PRICE_KEYS = {"web_search": "web_search", "file_search": "file_search"}
"""Keys of the prices of hosted calls that cost money, by function."""
_INSERT_DELIVERIES = announcement(guarded=GUARDED)


@dataclass(slots=True, kw_only=True)
class RecorderState:
    """The next event number and item position, and the run's totals so far. Loaded again when a run is resumed."""

    next_sequence: int = 0
    next_position: int = 0
    turns: int = 0
    tool_calls: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: Decimal | None = None
    first_token_ms: int | None = None
    preview: str = ""


class Recorder:
    """Records the steps of one run, in order."""

    def __init__(
        self,
        identity: RunIdentity,
        state: RecorderState,
        append: ConversationAppend | None = None,
        reservation: RunReservation | None = None,
    ) -> None:
        self._reservation = reservation
        self._settlement: Settlement | None = None
        self._identity = identity
        self.metrics = RunMetrics(identity)
        self._state = state
        self._append = append
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0
        self._buffer_first = state.next_sequence
        self._timer: asyncio.TimerHandle | None = None
        self._observed_until = 0.0
        self._flushes: list[asyncio.Future[None]] = []
        self._is_planning = False
        self._message: LogMessage | None = None
        # Followers of runs in workers find out from the first message that the run has begun. Most foreground runs are
        # never followed, so they wait for a follower's request (`serve_followers`).
        self._notifier = Notifier(identity.channel, on_listener=self._flush) if identity.in_worker else None

    @property
    def next_sequence(self) -> int:
        """The number of the next event."""
        return self._state.next_sequence

    async def record(self, step: Step) -> bytes:
        """Commit what must be stored before a step's bytes are released, and return these bytes.

        Raises `LeaseLost` if another process has ended or resumed the run.
        """
        if isinstance(step, Emitted):
            self._raise_failed_flush()
            data = self._number(step.events)
            self._flush_soon()
            return data
        began = now()
        await self._flushed()
        data = b""
        commit: asyncio.Future[bytes] | asyncio.Future[None]
        if is_large():
            # From now on nothing else may take the events that belong to the step.
            self._stop_timer()
            self._is_planning = True
            commit = asyncio.create_task(self._store_large(step))
        else:
            data, change = self.plan(step)
            commit = self._submit(change)
        # A cancellation must wait for the commit: only then is it known whether the step counts. If the run's last step
        # was committed, the run is over and the cancellation came too late.
        try:
            with spans.span(spans.Activity.STORAGE, "Commit", began=began):
                await asyncio.shield(commit)
        except asyncio.CancelledError:
            await asyncio.wait([commit])
            if commit.exception() is None:
                self._committed(step)
            if not isinstance(step, RunEnded) or commit.exception() is not None:
                raise
        else:
            self._committed(step)
        return commit.result() or data

    def _committed(self, step: Step) -> None:
        self.metrics.count(step, first_token_ms=self._state.first_token_ms)
        # Sent to Redis before the client receives the end of the run, so that its next request finds the place free.
        if self._settlement is not None:
            self._settlement.settle()
            self._settlement = None

    def use(self, reservation: RunReservation) -> None:
        """Record the run within this reservation."""
        self._reservation = reservation

    def release_reservation(self) -> None:
        """Release what the run still has reserved, because this process does not continue it. Does not wait."""
        if self._reservation is not None:
            self._reservation.release()

    async def _store_large(self, step: Step) -> bytes:
        """Commit a step and return its bytes, with the work in between in a thread.

        The terminal event contains the request's instructions and tools: 9 MB take the event loop up to 86 ms. Must not
        be cancelled: the events that `plan` numbers would be missing in the log.
        """
        try:
            data, change = await in_thread(partial(self.plan, step))
        finally:
            self._is_planning = False
        await self._submit(change)
        return data

    def plan(self, step: Step) -> tuple[bytes, Change]:
        """Return a step's bytes, and the change that stores the step with all events that are not stored yet."""
        # Even a large batch of events is not stored before the step: if the run has lost its lease, its terminal
        # event must never reach the log.
        data = self._number(step.events)
        identity = self._identity
        rows: list[Row] = []
        calls: list[CallUpdate] = []
        extra: list[ExtraWrite] = []
        tools: dict[str, Row | None] = {}
        match step:
            case TurnEnded() | RunEnded():
                turn = self._turn_rows(step.turn) if step.turn else []
                # Also written for unstored responses: an approval holds digests, but no content.
                approvals = [
                    new_row(
                        Approval,
                        id=record.ask.item["id"],
                        team_id=identity.team_id,
                        response_id=identity.response_id,
                        call_id=record.call.call_id,
                        request=request_digest(record.ask.item),
                        definition=record.ask.definition,
                    )
                    for record in step.calls
                    if record.ask is not None
                ]
                rows = [*turn, *self._item_rows(step.items), *self._call_rows(step.calls), *approvals]
            case ToolsPrepared():
                rows = [*self._item_rows(step.items), *self._call_rows(step.calls)]
            case TurnDiscarded() | ContextCompacted():
                rows = [*self._turn_rows(step.turn), *self._item_rows(step.items)]
            case FragmentsClosed():
                rows = self._item_rows(step.items)
            case ToolsStarted():
                calls = [
                    self._update(p.call, status="in_progress", started_at=step.started_at, attempt=p.attempt)
                    for p in step.calls
                ]
            case ToolsReturned():
                calls = [
                    self._update(p.call, status="returned", result=p.result.stored())
                    for p in step.calls
                    if p.result is not None
                ]
            case ToolFinished():
                rows, calls = self._finished_call(step)
                tools = {step.call.call_id: next((row for row in rows if row.table is UsageRecord), None)}
            case RunStarted() | Emitted():
                pass
            case never:
                assert_never(never)
        # The row of a turn holds the spans before it. A run may also end without a turn, or fail in its preparation.
        measured = None
        if isinstance(step, RunEnded | ToolsPrepared) and not any(row.table is Turn for row in rows):
            measured = spans.take(identity.created_at) or None
        ended: dict[str, Any] = {}
        if isinstance(step, RunEnded):
            data += DONE_FRAME
            ending = step.ending
            calls = [self._update(p.call, status="abandoned", ended_at=step.ended_at) for p in step.unfinished]
            tools = {p.call.call_id: self._abandoned_call(p, at=step.ended_at) for p in step.unfinished}
            rows += filter(None, tools.values())
            if self._append is not None:
                keeps = ending.status in {Status.COMPLETED, Status.INCOMPLETE}
                unwritten, write = self._append.at_end(identity.response_id, keeps=keeps)
                rows += unwritten
                extra.append(write)
            # Webhook events exist for background responses only: other clients receive the end themselves.
            if identity.background:
                event = event_row(
                    team_id=identity.team_id,
                    event_type=f"response.{ending.status}",
                    object_id=identity.response_id,
                    at=step.ended_at,
                )
                extra.append(ExtraWrite(_INSERT_DELIVERIES, event))
            ended = {
                "status": ending.status,
                "ended_at": step.ended_at,
                "service_tier": ending.service_tier[:20],
                "duration_ms": _milliseconds(step.ended_at - identity.created_at),
                "error": _stored_error(ending, is_stored=identity.stored),
                "error_code": ending.error["code"] if ending.error else None,
                "incomplete_reason": ending.incomplete_reason,
                "moderation": ending.moderation,
            }
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
        insert = [*rows, *self.take_batch(ends_run=isinstance(step, RunEnded))]
        return data, Change(team_id=identity.team_id, insert=insert, update=update, calls=calls, extra=extra)

    def opening(self, events: Sequence[Event]) -> bytes:
        """Return the bytes of the first events. They are stored with the next ones, unless `take_batch` is called."""
        return self._number(events)

    def start(self) -> None:
        """Store the first events in time even if no others follow. The response must be committed."""
        self._flush_soon()

    # -- the log -------------------------------------------------------------------------------------------------------

    def _number(self, events: Sequence[Event]) -> bytes:
        state, obfuscate = self._state, self._identity.obfuscate
        frames = []
        for event in events:
            frames.append(frame(event, state.next_sequence, obfuscate=obfuscate))
            state.next_sequence += 1
            if len(frames[-1]) > LARGE_BYTES:
                pause()
        data = b"".join(frames)
        if data and self._identity.stored:
            self._buffer.append(data)
            self._buffered_bytes += len(data)
        return data

    def _flush_soon(self) -> None:
        if self._buffered_bytes >= FLUSH_BYTES:
            self._flush()
        elif self._buffer and self._timer is None:
            loop = asyncio.get_running_loop()
            if self._notifier is not None and self._notifier.has_listeners:
                at = _flush_at(loop.time(), FOLLOWED_FLUSH_SECONDS, ticks=1)
            elif loop_notifications().is_connected and loop.time() >= self._observed_until:
                # 40 tokens at one per second are 5 rows with 1.2 KB of compressed events. With a row for each delta
                # they were 34 rows and 18.5 KB on disk.
                at = _flush_at(loop.time(), settings.EVENT_LOG_SECONDS, ticks=_TICKS)
            else:
                at = _flush_at(loop.time(), _OBSERVED_FLUSH_SECONDS)
            self._timer = loop.call_at(at, self._flush)

    def _flush(self) -> None:
        # A step that is being planned, in a thread, takes the events in the buffer.
        if self._is_planning:
            return
        # Nothing waits for this write: the store keeps the order of submission, and the next step raises its error.
        if batch := self.take_batch():
            identity = self._identity
            lease = LeaseGuard(response_id=identity.response_id, lease_token=identity.lease_token)
            change = Change(team_id=identity.team_id, insert=batch, lease=lease)
            self._flushes = [flush for flush in self._flushes if not flush.done() or flush.exception()]
            self._flushes.append(self._submit(change))

    def _submit(self, change: Change) -> "asyncio.Future[None]":
        commit = writer.submit(change)
        commit.add_done_callback(partial(self._after_commit, self._message))
        return commit

    def _after_commit(self, message: LogMessage | None, commit: "asyncio.Future[None]") -> None:
        # Reading the exception marks it as retrieved. The run may have stopped by now, so that nothing else awaits the
        # commit.
        if commit.cancelled() or commit.exception() is not None:
            return
        notifier = self._notifier
        if message is not None and notifier is not None and (self._identity.in_worker or notifier.has_listeners):
            notifier.notify(message.encode())

    def serve_followers(self) -> None:
        """Store events within milliseconds from now on and send them to the followers, until there are none."""
        if self._notifier is None:
            self._notifier = Notifier(self._identity.channel, on_listener=self._flush)
        self._notifier.has_listeners = True
        self._flush()
        self.announce()

    def announce(self) -> None:
        """Tell followers that this process has the run and how long its log is, and find out whether there are any.

        Until a run in a worker knows of followers, its deltas wait for `EVENT_LOG_SECONDS`.
        """
        if self._notifier is not None:
            self._notifier.notify(LogMessage.of_length(self._buffer_first).encode())

    def serve_observers(self) -> None:
        """Store events within a quarter of a second for the next seconds."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._observed_until:
            self._flush()
        self._observed_until = loop.time() + _OBSERVED_SECONDS

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take_batch(self, *, ends_run: bool = False) -> list[Row]:
        """Return the log row of the events that are not stored yet, which the caller inserts; [] if there are none."""
        self._stop_timer()
        frames, self._buffer, self._buffered_bytes = b"".join(self._buffer), [], 0
        if len(frames) > LARGE_BYTES:
            pause()
        first, self._buffer_first = self._buffer_first, self._state.next_sequence
        self._message = None
        if not frames:
            return []
        compressed = compress(frames)
        self._message = LogMessage(first_sequence=first, ends_run=ends_run, compressed=compressed)
        return [
            new_row(
                EventBatch,
                team_id=self._identity.team_id,
                response_id=self._identity.response_id,
                first_sequence=first,
                last_sequence=self._state.next_sequence - 1,
                created_at=now(),
                compressed=compressed,
            )
        ]

    def _raise_failed_flush(self) -> None:
        for flush in self._flushes:
            if flush.done() and (error := flush.exception()) is not None:
                # Raised only once: recording the end of the run, which follows, must not fail on it again.
                self._flushes.remove(flush)
                raise error

    async def _flushed(self) -> None:
        # A step must not be committed while events before it may still fail to be stored: the log would have a gap.
        if self._flushes:
            await asyncio.wait(self._flushes)
            self._raise_failed_flush()
            self._flushes.clear()

    async def flush(self) -> None:
        """Store all events that were released, so that a worker that resumes the run continues after them."""
        self._flush()
        await self._flushed()

    async def record_usage(self, turn: TurnRecord) -> None:
        """Write the usage record of a turn that no step will record, unless another process accounts for it."""
        identity, settlement = self._identity, None
        records = self.usage_records(turn)
        if self._reservation is not None:
            settlement = self._reservation.settlement(
                records, has_call=True, has_ended=True, may_be_charged=turn.result.may_be_charged
            )
        writes = settlement.writes if settlement is not None else ()
        # In a thread, because the writes depend on the row of the response, which must not change in between.
        count_usage(await in_db_thread(partial(_write_usage, identity, turn, records, writes)))
        if settlement is not None:
            settlement.settle()

    async def record_no_usage(self, number: int) -> None:
        """Record that a run that another process has ended had no model call open."""
        response_id = self._identity.response_id
        extra = [open_calls.close(open_calls.turn_id(response_id, number)), open_calls.no_usage(response_id)]
        await writer.submit(Change(team_id=self._identity.team_id, extra=extra))

    def count_lost(self, turn: TurnRecord) -> list[Row]:
        """Add a call that was lost with another process to the totals of the run. Return its usage records."""
        records, state = self.usage_records(turn), self._state
        state.usage += turn.total_usage
        for record in records:
            state.cost = sum_costs(state.cost, record.values["cost"])
        return records

    # -- the rows ------------------------------------------------------------------------------------------------------

    def _turn_rows(self, turn: TurnRecord) -> list[Row]:
        identity, result, state = self._identity, turn.result, self._state
        usage_records = self.usage_records(turn)
        state.turns += 1
        state.usage += turn.total_usage
        for record in usage_records:
            state.cost = sum_costs(state.cost, record.values["cost"])
        self.metrics.add_costs(usage_records)
        if state.first_token_ms is None and result.first_token_at is not None:
            state.first_token_ms = _milliseconds(result.first_token_at - identity.created_at)
        row = new_row(
            Turn,
            team_id=identity.team_id,
            response_id=identity.response_id,
            number=turn.number,
            state=usage_records[-1].values["outcome"],
            started_at=turn.started_at,
            first_token_at=result.first_token_at,
            ended_at=turn.ended_at,
            # The next turn reads it, possibly in another process that has resumed the run.
            discarded=asdict(turn.discarded) if turn.discarded is not None and identity.stored else None,
            # Upstreams may send texts of any length, but the columns are limited.
            finish_reason=(result.finish_reason or "")[:40] or None,
            upstream_request_id=(result.upstream_request_id or "")[:200] or None,
            spans=spans.take(identity.created_at),
            **_counts(turn.total_usage),
        )
        return [row, *usage_records]

    def usage_records(self, turn: TurnRecord) -> list[Row]:
        """Return the usage records of a turn: one for each HTTP request, the last of which was answered or cut."""
        lost, outcome = turn.result.lost_attempts, turn.outcome
        repeated = [
            self._usage_record(
                turn,
                usage,
                outcome="failed",
                began=attempt.began,
                ended=attempt.ended or turn.ended_at,
                upstream_request_id=attempt.request_id,
            )
            for attempt, usage in zip(lost, turn.repeated, strict=True)
        ]
        record = self._usage_record(
            turn,
            turn.usage,
            outcome=outcome,
            began=turn.started_at,
            ended=turn.ended_at,
            upstream_request_id=turn.result.upstream_request_id or "",
        )
        return [*repeated, record]

    def _usage_record(
        self,
        turn: TurnRecord,
        usage: Usage,
        *,
        outcome: str,
        began: datetime,
        ended: datetime,
        upstream_request_id: str,
    ) -> Row:
        identity = self._identity
        record = new_row(
            UsageRecord,
            team_id=identity.team_id,
            api_key_id=identity.key_id,
            occurred_at=max(ended, now() - _LATEST),
            endpoint=identity.endpoint,
            end_user=identity.end_user,
            batch=identity.batch,
            object_id=identity.response_id,
            turn=turn.number,
            model=identity.model,
            upstream_id=identity.upstream_id,
            upstream_model=identity.upstream_model,
            outcome=outcome,
            duration_ms=_milliseconds(ended - began),
            request_id=identity.request_id,
            upstream_request_id=upstream_request_id[:200],
            **usage_columns(usage, identity.prices, at=began, tier=turn.result.service_tier or ""),
        )
        if not identity.bills_estimates:
            waive(record)
        return record

    def _finished_call(self, step: ToolFinished) -> tuple[list[Row], list[CallUpdate]]:
        result = step.result
        rows = self._item_rows(step.items)
        if result.cost is not None:
            rows.append(
                self.call_record(
                    step.call, result.cost, turn=step.turn, at=step.ended_at, outcome=_outcome_of_call(result)
                )
            )
        update = self._update(
            step.call,
            status="failed" if result.error else "completed",
            ended_at=step.ended_at,
            output=result.output,
            error=result.error,
            result={"after": self._state.next_position, **result.stored()} if result.parts else None,
        )
        return rows, [update]

    def _abandoned_call(self, pending: PendingCall, *, at: datetime) -> Row | None:
        """Return the usage record of a hosted call that has no item because the run has ended; None if it is free."""
        outcome, key = str(Finish.INTERRUPTED), PRICE_KEYS.get(pending.call.name)
        if (result := pending.result) is not None:
            outcome, key = _outcome_of_call(result), result.cost
        elif not pending.attempt:
            key = None
        return None if key is None else self.call_record(pending.call, key, turn=pending.turn, at=at, outcome=outcome)

    def call_record(self, call: Call, endpoint: str, *, turn: int, at: datetime, outcome: str) -> Row:
        """Return the usage record of a hosted tool call."""
        identity = self._identity
        calls = Quantities(tool_calls={endpoint: 1})
        cost = identity.prices.cost(calls, at=at) or identity.tool_prices.cost(calls, at=at)
        record = new_row(
            UsageRecord,
            cost=None if cost is None else cost.total,
            prices=None if cost is None else cost.stored(),
            team_id=identity.team_id,
            api_key_id=identity.key_id,
            occurred_at=max(at, now() - _LATEST),
            endpoint=endpoint,
            end_user=identity.end_user,
            batch=identity.batch,
            object_id=identity.response_id,
            turn=turn,
            model=identity.model,
            upstream_id="",
            upstream_model=call.name[:200],
            outcome=outcome,
            estimated=outcome == str(Finish.INTERRUPTED),
            request_id=identity.request_id,
        )
        if not identity.bills_estimates:
            waive(record)
        return record

    def _item_rows(self, items: Sequence[OutputItem]) -> list[Row]:
        stored = self._identity.stored
        if not stored and self._append is None:
            return []
        rows: list[Row] = []
        state = self._state
        for item in items:
            # The preview of an output is its last message, or its first item with text while there is no message.
            if stored and item.body["type"] != "mcp_list_tools":
                text = preview(item.body)
                is_message = item.body["type"] == "message"
                state.preview = text or state.preview if is_message else state.preview or text
            position = state.next_position
            rows += item_rows(item.body, self._identity, Section.OUTPUT, position, in_context=item.in_context)
            state.next_position += 1
        if self._append is not None:
            self._append.add(rows, written=stored)
        return rows if stored else []

    def _call_rows(self, calls: Sequence[CallRecord]) -> list[Row]:
        self._state.tool_calls += len(calls)
        if not self._identity.stored:
            return []
        return [
            new_row(
                ToolCall,
                team_id=self._identity.team_id,
                response_id=self._identity.response_id,
                turn=record.turn,
                call_id=record.call.call_id,
                kind=record.kind,
                name=record.call.name[:200],
                arguments=record.call.arguments,
                status=record.state,
                output=record.answer,
                result={"after": record.after} if record.answer is not None else None,
                started_at=now(),
                ended_at=now() if record.state == "refused" else None,
            )
            for record in calls
        ]

    def _update(self, call: Call, **columns: Any) -> CallUpdate:
        return CallUpdate(response_id=self._identity.response_id, call_id=call.call_id, **columns)

    def _response_update(self, measured: list[dict[str, Any]] | None, ended: Mapping[str, Any]) -> ResponseUpdate:
        state, usage = self._state, self._state.usage
        return ResponseUpdate(
            response_id=self._identity.response_id,
            lease_token=self._identity.lease_token,
            first_token_ms=state.first_token_ms,
            turns=state.turns,
            tool_calls=state.tool_calls,
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            cost=state.cost,
            spans=measured,
            output_preview=state.preview,
            **{"status": Status.IN_PROGRESS.value, **ended},
        )


def _stored_error(ending: Ending, *, is_stored: bool) -> Mapping[str, Any] | None:
    """Return the error to store. For an unstored response it omits the upstream's text, which may repeat content."""
    failure = ending.failure
    if ending.error is None or is_stored or failure is None or not failure.general:
        return ending.error
    return {**ending.error, "message": failure.general}


def _may_be_charged(step: Step) -> bool:
    turn = getattr(step, "turn", None)
    return isinstance(turn, TurnRecord) and turn.result.may_be_charged


def _outcome_of_call(result: ToolResult) -> str:
    if result.error == "timeout":
        # Whether the call is charged is unknown.
        return str(Finish.INTERRUPTED)
    return "failed" if result.error else "completed"


def _flush_at(at: float, longest: float, *, ticks: int = 2) -> float:
    # The runs of the process flush on the same ticks, so that their batches share one commit.
    tick = longest / ticks
    return (at // tick + ticks) * tick


def _counts(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.input_tokens,
        "cached_tokens": usage.cached_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "output_tokens": usage.output_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }


def _write_usage(
    identity: RunIdentity, turn: TurnRecord, records: Sequence[Row], writes: Sequence[ExtraWrite]
) -> Sequence[Row]:
    """Write the usage records of a turn and add them to its response. Return the records that were written.

    Writes none that are stored already, or that another process records.
    """
    with scope.team(identity.team_id):
        # Locked until the commit. A process that resumes or ends the run either reads the usage that is added here, or
        # has changed the token before; then nothing is added that it has not counted.
        rows = Response.objects.select_for_update(no_key=True).filter(pk=identity.response_id)
        row = rows.values("lease_token", "turns").first()
        call_id = open_calls.turn_id(identity.response_id, turn.number)
        # A locked row is being turned into a record by another process. Waiting for it could deadlock.
        if lock(Reservation.objects.filter(pk=call_id)).exists():
            # Another process has ended the run, and has left its open turn to this one.
            is_ours = True
        elif row is None:
            # The response was deleted.
            same = UsageRecord.objects.filter(object_id=identity.response_id, turn=turn.number)
            is_ours = not same.filter(endpoint=identity.endpoint, occurred_at__gte=turn.started_at).exists()
        else:
            # A process that has resumed or ended the run has taken this one for dead, and records an estimate. A run
            # that was stopped while its step was committed does not know whether the step counts.
            is_ours = row["lease_token"] == identity.lease_token and row["turns"] == turn.number
        kept = records if is_ours else ()
        added = [open_calls.added_usage(identity.response_id, record) for record in kept]
        extra = [*writes, open_calls.close(call_id), *added]
        store.apply([Change(team_id=identity.team_id, insert=kept, extra=extra)])
        return kept


def item_rows(
    body: Body, identity: RunIdentity, section: Section, position: int, *, in_context: bool = True
) -> list[Row]:
    """Return the rows of an item and of its placement in the response."""
    item = new_row(
        Item,
        team_id=identity.team_id,
        id=body["id"],
        type=body["type"],
        body=body,
        created_at=now(),
    )
    place = new_row(
        Placement,
        team_id=identity.team_id,
        owner=identity.response_id,
        section=section,
        position=position,
        item_id=item.values["key"],
        in_context=in_context,
        opens_context=opens_context(body["type"]),
    )
    return [item, place]


def preview(body: dict[str, Any]) -> str:
    """Return the first words of an item on one line, for lists."""
    return " ".join(plain_text(body)[: 4 * PREVIEW_LENGTH].replace("\x00", "").split())[:PREVIEW_LENGTH]


def _milliseconds(span: timedelta) -> int:
    return max(0, round(span.total_seconds() * 1000))
