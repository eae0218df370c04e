"""The fourth stage of creation: build the rows of a new response, and the change that stores them."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from conversations.models import Placement, Section, opens_context
from core.json.large_work import off_loop
from core.process_name import process_name
from core.records import record
from core.work.leases import lease_until
from engine import spans
from engine.compaction import token_estimate
from engine.events.response_body import opening, queued
from engine.events.types import Event
from responses.lifecycle.admit import AdmittedRequest
from responses.lifecycle.resolve import ResolvedRequest
from responses.models import Response, Status
from responses.models.stored_request import stored_options, stored_parameters
from responses.requests import pairing
from responses.requests.context import RequestContext
from responses.runs.conversation_lock import ConversationAppend
from responses.runs.event_log import FLUSH_BYTES, EventLog
from responses.runs.identity import HAS_KEY, RunIdentity
from responses.runs.recorder import Recorder
from responses.runs.rows import Row, item_rows, new_row, preview
from responses.runs.store import Change, LockGuard, PredecessorGuard, started, submit_new


@record
class NewResponse:
    """A response that is ready to be stored, with its change, recorder and first events. `opening` is their bytes."""

    admitted: AdmittedRequest
    recorder: Recorder
    first_events: Sequence[Event]
    opening: bytes
    change: Change

    def store(self) -> "asyncio.Future[None]":
        """Submit the change that stores the response, and return its commit."""
        reservation = self.admitted.reservation
        if reservation is None:
            return submit_new(self.change)
        return started(reservation.store(self.change))


async def build_response(admitted: AdmittedRequest) -> NewResponse:
    """Build the rows of a new response. If this fails, release the reservation of the response."""
    try:
        return await _build(admitted)
    except BaseException:
        admitted.release()
        raise


async def _build(admitted: AdmittedRequest) -> NewResponse:
    resolved, tools = admitted.resolved, admitted.tools
    identity, context = resolved.identity, resolved.prepared.context
    secrets = tools.encrypted_secrets() if identity.background else ""
    row = await off_loop(partial(_response_row, resolved, _options(admitted), secrets=secrets))
    # An unstored response needs the rows only to add its items to a conversation.
    stores_items = identity.stored or identity.conversation_id
    items = await off_loop(partial(_input_rows, identity, context)) if stores_items else []
    append = lock = predecessor = None
    if identity.conversation_id is not None:
        append = ConversationAppend(conversation_id=identity.conversation_id, read_to=context.history_end)
        append.add(items, written=identity.stored)
        lock = LockGuard(response_id=identity.response_id, conversation_id=identity.conversation_id)
    # An unstored response has its context in memory, so it does not matter whether the predecessor is deleted.
    if context.predecessor_id is not None and identity.stored:
        predecessor = PredecessorGuard(response_id=identity.response_id, previous_id=context.predecessor_id)
    recorder = Recorder(identity, append=append, reservation=admitted.reservation)
    first_events = (queued if identity.background else opening)(resolved.prepared.run_context.parameters)
    frames, batch = await off_loop(partial(_open_log, recorder.log, identity, first_events))
    # Calls of client tools end with their outputs, which are in the next request.
    calling_id = resolved.body.previous_response_id or context.answered_response_id
    answered = await off_loop(partial(pairing.answered_calls, context.input_bodies, response_id=calling_id))
    return NewResponse(
        admitted=admitted,
        recorder=recorder,
        first_events=first_events,
        opening=frames,
        change=Change(
            team_id=identity.team_id,
            insert=[row, *(items if identity.stored else ()), *batch],
            lock=lock,
            predecessor=predecessor,
            calls=[*answered, *tools.calls],
        ),
    )


def _options(admitted: AdmittedRequest) -> dict[str, Any]:
    """Return the options of a response: the data that a worker needs to resume the run and cannot read elsewhere."""
    resolved, checks, seconds = admitted.resolved, admitted.checks, admitted.tools.decision_seconds
    background = resolved.prepared.body.background_options
    # A response that waits for no approvals still waits for decisions about calls that it has made.
    call_seconds = background.approval_wait_seconds if background is not None and seconds is None else None
    return {
        **resolved.prepared.options,
        **resolved.identity.stored_options(),
        **({HAS_KEY: True} if resolved.request.info.has_key else {}),
        **(checks.stored_options() if checks is not None else {}),
        **({"decision_seconds": seconds} if seconds is not None else {}),
        **({"call_wait_seconds": call_seconds} if call_seconds is not None else {}),
    }


def _open_log(log: EventLog, identity: RunIdentity, events: Sequence[Event]) -> tuple[bytes, list[Row]]:
    """Return the bytes of the first events, and the log rows that are inserted with the response."""
    frames = log.append(events)
    # The first events of a foreground run are stored with its next batch, which saves a row and 0.3 KB of WAL. If the
    # process dies before, `resume` builds them again from the response. Two kinds of runs store their first events at
    # once: background runs, for the worker that executes the run, and runs with large first events (which contain large
    # instructions or tools), because they are compressed outside of the event loop here.
    waits = not identity.background and len(frames) < FLUSH_BYTES
    return frames, [] if waits else log.take_batch()


def _response_row(resolved: ResolvedRequest, options: dict[str, Any], *, secrets: str) -> Row:
    request, identity, prepared = resolved.request, resolved.identity, resolved.prepared
    body, context, run = prepared.body, prepared.context, prepared.run_context
    columns: dict[str, Any]
    if identity.stored:
        columns = {
            "parameters": stored_parameters(run.parameters),
            "options": stored_options(options),
            "metadata": run.parameters["metadata"],
            "input_preview": preview(context.input_bodies[-1]) if context.input_bodies else "",
        }
    else:
        # With `store: false` the row exists for usage and administration only. It has no content, but the number of
        # tokens from which the usage of a call is estimated if its process dies.
        tokens = token_estimate.input_tokens(instructions=run.instructions, items=run.items, sampling=run.sampling)
        columns = {"options": {"input_tokens": tokens, **identity.stored_options()}}
    # A background response gets no lease, so that it waits in the queue for a worker.
    columns |= (
        {"status": Status.QUEUED, "background": True, "not_before": prepared.starts_at}
        if identity.background
        else {"lease_owner": process_name(), "lease_until": lease_until()}
    )
    return new_row(
        Response,
        id=identity.response_id,
        team_id=identity.team_id,
        api_key_id=identity.key_id,
        created_at=identity.created_at,
        mode=request.mode,
        endpoint=identity.endpoint,
        stored=identity.stored,
        # Unstored responses have no items, so a stored response is linked to the last stored response before it.
        previous_response_id=context.predecessor_id if identity.stored else body.previous_response_id,
        conversation_id=identity.conversation_id,
        history_id=identity.conversation_id,
        history_end=context.history_end,
        model=identity.model,
        upstream_id=identity.upstream_id,
        upstream_model=identity.upstream_model,
        end_user=identity.end_user or None,
        request_id=identity.request_id,
        client_request_id=request.info.client_request_id or body.request_id or "",
        secrets=secrets,
        spans=spans.take(identity.created_at),
        **columns,
    )


def _input_rows(identity: RunIdentity, context: RequestContext) -> list[Row]:
    rows: list[Row] = []
    for position, item in enumerate(context.input_bodies):
        # An item without any placement is removed. An unstored response writes no placements, so it must copy items
        # instead of sharing them.
        key = context.shared_keys.get(position) if identity.stored else None
        if key is None:
            rows += item_rows(item, identity, Section.INPUT, position)
        else:
            rows.append(
                new_row(
                    Placement,
                    team_id=identity.team_id,
                    owner=identity.response_id,
                    section=Section.INPUT,
                    position=position,
                    item_id=key,
                    opens_context=opens_context(item["type"]),
                )
            )
    return rows
