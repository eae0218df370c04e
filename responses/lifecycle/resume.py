"""Load runs from the database, so that another process can end or resume them."""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import Max

from conversations.models import Placement, Section
from core.clock import now
from core.work.leases import Claim, lease_until
from engine.calls.toolbox import Toolbox
from engine.events.fold import Fold, read_frames
from engine.events.response_body import opening
from engine.events.types import Body
from engine.loop import Run
from engine.state import RunContext, RunState
from engine.steps import TurnRecord
from engine.turn import Call, Finish, Usage
from limits import Grant
from responses.lifecycle.run_factory import RunFactory
from responses.lifecycle.stored_run import Losses, StoredRun
from responses.models import EventBatch, Response, Status, ToolCall, Turn
from responses.requests.prepare import restore_run_context
from responses.runs.conversation_lock import ConversationAppend
from responses.runs.identity import RunIdentity
from responses.runs.open_calls import open_row, turn_id
from responses.runs.recorder import PRICE_KEYS, Recorder, RecorderState
from responses.runs.reservations import is_of_tool, price_key_of, stored_grants
from responses.runs.rows import Row
from responses.runs.stored_state import call_of, restore_state
from tenants import scope
from tenants.models import UsageRecord


def load(*, response_id: str, lease_token: int | None = None, died: bool = False) -> StoredRun:
    """Load a run as of its last committed step. Runs inside a scope that sees the response's team.

    `died`: the previous process has not released the run, so it could not record the usage of an open call. A worker
    that resumes the run passes the `lease_token` of its claim: the one in the row may belong to another process by now.
    """
    return _load(Response.objects.get(pk=response_id), lease_token=lease_token, died=died)


def load_claimed(claim: Claim) -> StoredRun | None:
    """Load the run of a claim. Return None if the claim was lost."""
    with scope.team(claim.team_id):
        response = claim.row(Response.objects.filter(ended_at=None)).first()
        return _load(response, lease_token=claim.token, died=claim.has_expired) if response is not None else None


def _load(response: Response, *, lease_token: int | None, died: bool) -> StoredRun:
    own = Placement.objects.filter(owner=response.pk, section=Section.INPUT).order_by("position")
    context = restore_run_context(response, [*own.values_list("item__body", flat=True)])
    fold, next_sequence = Fold(), 0
    logged_at = response.created_at
    for batch in EventBatch.objects.filter(response=response).order_by("first_sequence"):
        for _, event in read_frames(batch.frames):
            fold.apply(event)
        next_sequence, logged_at = batch.last_sequence + 1, max(logged_at, batch.created_at)
    turns = [*Turn.objects.filter(response=response).order_by("number")] if response.turns else []
    calls = [*ToolCall.objects.filter(response=response).order_by("id")]
    identity = RunIdentity.of(response, lease_token=lease_token or response.lease_token)
    state = restore_state(response, fold, turns, calls)
    recorder = _recorder(response, identity, context, state, next_sequence=next_sequence)
    # A process that is alive releases its own reservations.
    grants = stored_grants(response.pk) if died or response.status == Status.QUEUED else []
    began = _began(response, turns, calls, is_claimed=lease_token is not None)
    run = RunFactory().build(context, state, Toolbox())
    losses, open_turn = Losses(grants=grants), None
    if died:
        ended = max(began, logged_at)
        losses = Losses(
            turn=_lost_turn(response, run, turns, began=began, ended=ended),
            call_records=_lost_calls(response, recorder, calls, grants, at=ended),
            grants=grants,
        )
    elif lease_token is None and response.lease_until is not None:
        open_turn = _open_turn(response, recorder, run.lost_turn(began=began, ended=now()), until=response.lease_until)
    return StoredRun(
        response=response,
        identity=identity,
        context=context,
        state=state,
        recorder=recorder,
        losses=losses,
        open_turn=open_turn,
    )


def _open_turn(response: Response, recorder: Recorder, turn: TurnRecord | None, *, until: datetime) -> Row | None:
    """Return the row of the open call of a process that lives.

    The process records the call when it notices that it has lost the run; if it dies before, the record is in this row.
    """
    if turn is None:
        return None
    (record,) = recorder.usage_records(turn)
    return open_row(
        turn_id(response.pk, turn.number),
        record,
        owner=response.lease_owner,
        until=max(until, lease_until()),
        adds_to=response.pk,
    )


def _lost_calls(
    response: Response, recorder: Recorder, calls: Sequence[ToolCall], grants: Sequence[Grant], *, at: datetime
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
    return [recorder.call_record(call, key, turn=turn, at=at, outcome=outcome) for call, key, turn in lost]


def _lost_turn(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedRun:
    """A run that no process has begun, as it is stored: it has no turns, calls or output yet."""

    response: Response
    input_bodies: Sequence[Body]
    next_sequence: int

    def load(self) -> StoredRun:
        """Return the run, without its place in the queue; call it in a database thread."""
        response, state = self.response, RunState(queued=True)
        identity = RunIdentity.of(response, lease_token=response.lease_token)
        # Most runs bring their whole context. For them nothing is left to read.
        reads = response.previous_response_id or response.history_id or response.conversation_id
        rows: AbstractContextManager[None] = scope.team(response.team_id) if reads else nullcontext()
        with rows:
            context = restore_run_context(response, self.input_bodies)
            recorder = _recorder(response, identity, context, state, next_sequence=self.next_sequence)
        return StoredRun(response=response, identity=identity, context=context, state=state, recorder=recorder)


def read_queued(claims: Collection[Claim]) -> dict[str, QueuedRun]:
    """Read the claimed runs that no process has begun, by id. The others have begun, or were lost since the claim.

    Takes three queries for all of them.
    """
    tokens = {claim.id: claim.token for claim in claims if not claim.has_expired}
    with scope.team(*{claim.team_id for claim in claims}):
        waiting = Response.objects.filter(pk__in=[*tokens], status=Status.QUEUED)
        found = {row.pk: row for row in waiting if row.lease_token == tokens[row.pk]}
        items = Placement.objects.filter(owner__in=[*found], section=Section.INPUT).order_by("owner", "position")
        bodies: dict[str, list[Body]] = {response_id: [] for response_id in found}
        for owner, body in items.values_list("owner", "item__body"):
            bodies[owner].append(body)
        batches = EventBatch.objects.filter(response_id__in=[*found]).values("response_id")
        last = dict(batches.annotate(last=Max("last_sequence")).values_list("response_id", "last"))
    return {
        key: QueuedRun(response=row, input_bodies=bodies[key], next_sequence=last.get(key, -1) + 1)
        for key, row in found.items()
    }


def _recorder(
    response: Response, identity: RunIdentity, context: RunContext, state: RunState, *, next_sequence: int
) -> Recorder:
    progress = RecorderState(
        next_sequence=next_sequence,
        next_position=len(state.output),
        turns=response.turns,
        tool_calls=response.tool_calls,
        usage=state.usage,
        cost=response.cost,
        first_token_ms=response.first_token_ms,
        preview=response.output_preview,
    )
    recorder = Recorder(identity, progress, ConversationAppend.of(response))
    if next_sequence == 0 and response.stored and not response.background:
        # The process died before it stored the first events, which the client may have received. They depend on nothing
        # but the response, so these are the same bytes.
        recorder.opening(opening(context.parameters))
    return recorder


def _began(response: Response, turns: Sequence[Turn], calls: Sequence[ToolCall], *, is_claimed: bool) -> datetime:
    """Return when the last attempt to run a response began, or its last finished turn or call ended."""
    claims = [datetime.fromisoformat(claim["at"]) for claim in response.claims]
    # Leave out the claim for which the run is loaded.
    earlier = claims[:-1] if is_claimed else claims
    ends = [turn.ended_at for turn in turns] + [call.ended_at for call in calls]
    return max([response.created_at, *earlier, *filter(None, ends)])


def _usage_without_log(response: Response, turns: Sequence[Turn]) -> Usage:
    # Without the log, the output is unknown. The input is known from the request, or from the turn before.
    known = response.options.get("input_tokens", 0)
    if turns:
        known = turns[-1].input_tokens + turns[-1].output_tokens
    return Usage(input_tokens=known, estimated=True)
