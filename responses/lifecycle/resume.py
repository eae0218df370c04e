"""Load runs from the database, so that another process can end or resume them."""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from django.db.models import Max

from conversations.models import Placement, Section
from core.clock import now
from core.work.leases import Claim
from engine.calls.toolbox import Toolbox
from engine.events.fold import Fold, read_frames
from engine.events.response_body import opening
from engine.events.types import Body
from engine.state import RunContext, RunState
from responses.lifecycle.losses import Losses, last_activity, lost_calls, lost_turn, open_turn_row, stored_grants
from responses.lifecycle.run_factory import RunFactory
from responses.lifecycle.stored_run import StoredRun
from responses.models import EventBatch, Response, Status, ToolCall, Turn
from responses.requests.prepare import restore_run_context
from responses.runs.conversation_lock import ConversationAppend
from responses.runs.identity import RunIdentity
from responses.runs.recorder import Recorder
from responses.runs.run_usage import RunProgress
from responses.runs.stored_state import restore_state
from tenants import scope


def load(*, response_id: str, lease_token: int | None = None, died: bool = False) -> StoredRun:
    """Load a run in the state after its last committed step. Call it inside a scope that sees the response's team.

    `died`: the previous process died without releasing the run, so it could not record the usage of an open call. A
    worker that resumes the run passes the `lease_token` of its claim, because the token in the row may already belong
    to another process.
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
    began = last_activity(response, turns, calls, is_claimed=lease_token is not None)
    run = RunFactory().build(context, state, Toolbox())
    losses, open_turn = Losses(grants=grants), None
    if died:
        ended = max(began, logged_at)
        losses = Losses(
            turn=lost_turn(response, run, turns, began=began, ended=ended),
            call_records=lost_calls(response, identity, calls, grants, at=ended),
            grants=grants,
        )
    elif lease_token is None and response.lease_until is not None:
        turn = run.lost_turn(began=began, ended=now())
        open_turn = open_turn_row(response, identity, turn, until=response.lease_until)
    return StoredRun(
        response=response,
        identity=identity,
        context=context,
        state=state,
        recorder=recorder,
        losses=losses,
        open_turn=open_turn,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedRun:
    """A stored run that no process has begun, so that it has no turns, calls or output yet."""

    response: Response
    input_bodies: Sequence[Body]
    next_sequence: int

    def load(self) -> StoredRun:
        """Return the run, without its place in the queue; call it in a database thread."""
        response, state = self.response, RunState(queued=True, model=self.response.model)
        identity = RunIdentity.of(response, lease_token=response.lease_token)
        # The requests of most runs contain the whole context, so that nothing else must be read.
        reads = response.previous_response_id or response.history_id or response.conversation_id
        rows: AbstractContextManager[None] = scope.team(response.team_id) if reads else nullcontext()
        with rows:
            context = restore_run_context(response, self.input_bodies)
            recorder = _recorder(response, identity, context, state, next_sequence=self.next_sequence)
        return StoredRun(response=response, identity=identity, context=context, state=state, recorder=recorder)


def read_queued(claims: Collection[Claim]) -> dict[str, QueuedRun]:
    """Return the claimed runs that no process has begun, by id. Runs that were lost since the claim are left out.

    Executes three queries, whatever the number of runs.
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
    progress = RunProgress(
        next_position=len(state.output),
        turns=response.turns,
        tool_calls=response.tool_calls,
        usage=state.usage,
        cost=response.cost,
        first_token_ms=response.first_token_ms,
        preview=response.output_preview,
    )
    recorder = Recorder(identity, progress, next_sequence=next_sequence, append=ConversationAppend.of(response))
    if next_sequence == 0 and response.stored and not response.background:
        # The process died before it stored the first events, which the client may have received. They depend only on
        # the response, so the same bytes are built again.
        recorder.log.append(opening(context.parameters))
    return recorder
