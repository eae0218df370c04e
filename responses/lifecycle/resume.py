"""Load a run from the database, so that another process can end or resume it."""

from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime

from django.db.models import Max

from conversations.items import readable_items
from conversations.models import Placement, Section
from core.clock import now
from core.work.leases import Claim, lease_until
from engine.calls.outcomes import ToolResult
from engine.calls.toolbox import Toolbox
from engine.compaction.items import from_latest_compaction
from engine.events.fold import Fold, read_frames
from engine.events.response_body import Ending, opening
from engine.events.types import Body
from engine.loop import Run
from engine.state import (
    ContextInsertion,
    DiscardedTurn,
    OutputItem,
    PendingCall,
    RunContext,
    RunState,
    call_with_output,
    output_images,
)
from engine.steps import TurnRecord
from engine.turn import Call, Finish, Usage
from limits import Grant
from responses.lifecycle.run_factory import RunFactory
from responses.models import EventBatch, Response, Status, ToolCall, Turn
from responses.requests import parameters
from responses.requests.attachments import TeamAttachments
from responses.requests.context import RequestContext, load_history
from responses.requests.encrypted_content import TeamCipher
from responses.requests.prepare import build_run_context
from responses.runs import store
from responses.runs.conversation_lock import ConversationAppend
from responses.runs.identity import RunIdentity
from responses.runs.open_calls import added_usage, open_row, turn_id
from responses.runs.recorder import PRICE_KEYS, Recorder, RecorderState
from responses.runs.reservations import (
    charge_reserved,
    deletions,
    is_for,
    is_of_tool,
    price_key_of,
    settle_on_commit,
    stored_grants,
)
from responses.runs.rows import Row
from responses.runs.runner import AssembledRun
from responses.runs.store import Change, LeaseGuard
from responses.tools import registry
from tenants import scope
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run as of its last committed step. This process can end it, or settle its losses and build it to continue.

    `open_turn` is the row of the executing process's open model call, which that process records once it notices that
    it has lost the run.
    """

    response: Response
    identity: RunIdentity
    context: RunContext
    state: RunState
    recorder: Recorder
    losses: Losses = field(default_factory=Losses)
    open_turn: Row | None = None

    def end(self, ending: Ending) -> Exception | None:
        """End a run that this process does not execute. Return the error if its end could not be written."""
        losses, grants = self.losses, self.losses.grants
        run = RunFactory().build(self.context, self.state, Toolbox())
        step = run.end_dead(ending, lost=losses.turn, has_open_call=self.open_turn is not None)
        _, change = self.recorder.plan(step)
        # The end of a stored response contains the usage records of its unfinished calls already.
        lost_calls = [] if self.identity.stored else losses.call_records
        insert = [*change.insert, *lost_calls, *([self.open_turn] if self.open_turn else ())]
        charge_reserved(grants, insert)
        (error,) = store.apply([replace(change, insert=insert, extra=[*change.extra, *deletions(*grants)])])
        if error is None:
            settle_on_commit(grants, insert)
            if self.open_turn is not None:
                Response.objects.filter(pk=self.identity.response_id).update(has_open_call=True)
            self.recorder.metrics.count(step)
        return error

    def with_stored_grants(self) -> "StoredRun":
        """Return the run with the reservations that it has now, to be ended. Runs inside a scope of its team."""
        return replace(self, losses=replace(self.losses, grants=stored_grants(self.identity.response_id)))

    def settle_losses(self) -> "StoredRun | None":
        """Write the usage records of what was lost, and return the run, which repeats the lost calls.

        Return None if this process has lost the run meanwhile; then nothing is written.
        """
        losses, response_id, turns = self.losses, self.identity.response_id, list[Row]()
        if losses.turn is not None:
            # The usage of the response includes lost calls, although its output shows nothing of them.
            self.state.count_lost(losses.turn.total_usage)
            turns = self.recorder.count_lost(losses.turn)
        records, kept = [*losses.call_records, *turns], self._returned_calls().values()
        lost = [grant for grant in losses.grants if not grant.queued and grant not in kept]
        charge_reserved(lost, records)
        if records or lost:
            extra = [*(added_usage(response_id, record) for record in turns), *deletions(*lost)]
            # Guarded by the lease: the next process that resumes the run would not see usage added after it has read
            # the totals.
            lease = LeaseGuard(response_id=response_id, lease_token=self.identity.lease_token)
            change = Change(team_id=self.identity.team_id, insert=records, extra=extra, lease=lease)
            (error,) = store.apply([change])
            if error is not None:
                return None
            settle_on_commit(lost, records)
        return replace(self, losses=Losses(grants=[grant for grant in losses.grants if grant not in lost]))

    def build(self, factory: RunFactory, tools: Toolbox | None = None) -> AssembledRun:
        """Return the run for the process that executes it, by default with the tools of its request."""
        if tools is None:
            tools = self._restored_tools()
        if factory.reservation is not None:
            self.recorder.use(factory.reservation)
            factory.reservation.extend(self._returned_calls())
        run = factory.build(self.context, self.state, tools)
        return AssembledRun(run=run, recorder=self.recorder, identity=self.identity)

    def _restored_tools(self) -> Toolbox:
        # Most runs that no process has begun have no tools; for them nothing is read.
        if self.state.queued and not self.response.parameters["tools"]:
            return Toolbox()
        with scope.team(self.identity.team_id):
            return registry.restore_tools(self.response, self.context.items)

    def _returned_calls(self) -> dict[str, Grant]:
        """Return the reservations of hosted calls that have returned, and whose cost is not recorded yet."""
        return {
            call_id: grant
            for call_id in self.state.returned_calls
            for grant in self.losses.grants
            if is_for(grant.id, call_id)
        }


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
    context = _context(response, [*own.values_list("item__body", flat=True)])
    fold, next_sequence = Fold(), 0
    logged_at = response.created_at
    for batch in EventBatch.objects.filter(response=response).order_by("first_sequence"):
        for _, event in read_frames(batch.frames):
            fold.apply(event)
        next_sequence, logged_at = batch.last_sequence + 1, max(logged_at, batch.created_at)
    turns = [*Turn.objects.filter(response=response).order_by("number")] if response.turns else []
    calls = [*ToolCall.objects.filter(response=response).order_by("id")]
    identity = RunIdentity.of(response, lease_token=lease_token or response.lease_token)
    state = _state(response, fold, turns, calls)
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
        (_call(row), PRICE_KEYS[row.name], row.turn)
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
        # Most runs bring their whole context. For them nothing is left to read.
        reads = response.previous_response_id or response.history_id or response.conversation_id
        rows: AbstractContextManager[None] = scope.team(response.team_id) if reads else nullcontext()
        with rows:
            context = _context(response, self.input_bodies)
        identity = RunIdentity.of(response, lease_token=response.lease_token)
        return StoredRun(
            response=response,
            identity=identity,
            context=context,
            state=state,
            recorder=_recorder(response, identity, context, state, next_sequence=self.next_sequence),
        )


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


def _state(response: Response, fold: Fold, turns: Sequence[Turn], calls: Sequence[ToolCall]) -> RunState:
    places = Placement.objects.filter(owner=response.pk, section=Section.OUTPUT).select_related("item")
    output = [OutputItem(body=p.item.body, in_context=p.in_context) for p in places.order_by("position")]
    committed = {item.body["id"] for item in output}
    discarded = {turn.number: DiscardedTurn(**turn.discarded) for turn in turns if turn.discarded}
    # A failed turn ends its run, except if it was a compaction pass. So in a resumed run every failed turn was one.
    passes = [turn for turn in turns if turn.state in {"compacted", "failed"}]
    last = discarded.get(response.turns - 1)
    # Items that are in the log but that no step has committed belong to the interrupted turn. They stay in the output,
    # because followers have received them, but no model reads them again.
    uncommitted = [fragment for fragment in fold.fragments if fragment.body["id"] not in committed]
    return RunState(
        turn=response.turns,
        output=output,
        # The calls of hosted tools that have no item yet.
        pending=[
            PendingCall(
                call=_call(row),
                turn=row.turn,
                attempt=0 if row.status == "pending" else row.attempt,
                result=ToolResult.restored(row.result) if row.result else None,
            )
            for row in calls
            if row.status in {"pending", "in_progress", "returned"}
        ],
        fragments=uncommitted,
        insertions=_insertions(calls),
        discarded=len(discarded),
        rejected=last if last and last.defect is not None else None,
        input_too_long=any(turn.defect is None for turn in discarded.values()),
        awaits_client=any(call.status in {"waiting", "asked"} for call in calls),
        queued=response.status == Status.QUEUED,
        compactions=len(passes),
        compaction_tokens=sum(turn.output_tokens for turn in passes),
        compaction_failed=any(turn.state == "failed" for turn in passes),
        lost_tokens=_lost_tokens(response, turns),
        hosted_calls=sum(call.kind != "function" and call.status not in {"asked", "refused"} for call in calls),
        usage=Usage(
            input_tokens=response.input_tokens,
            cached_tokens=response.cached_tokens,
            cache_write_tokens=response.cache_write_tokens,
            output_tokens=response.output_tokens,
            reasoning_tokens=response.reasoning_tokens,
        ),
    )


def _lost_tokens(response: Response, turns: Sequence[Turn]) -> int:
    """Return the output tokens of calls that were lost with a process: they have no turn."""
    return max(0, response.output_tokens - sum(turn.output_tokens for turn in turns)) if turns else 0


def _insertions(rows: Iterable[ToolCall]) -> list[ContextInsertion]:
    """Return the context insertions of earlier turns: errors of refused calls, and images from tools."""
    insertions = []
    for row in rows:
        match row.status, row.result:
            case "refused", {"after": after}:
                call = _call(row)
                fields = {"call_id": call.call_id, "name": call.name, "arguments": call.arguments}
                insertions.append(call_with_output(after=after, output=row.output or "", **fields))
            case "completed" | "failed", {"after": after, "parts": parts}:
                insertions.append(output_images(after=after, call=_call(row), images=parts))
    return insertions


def _call(row: ToolCall) -> Call:
    return Call(item_id="", call_id=row.call_id, name=row.name, arguments=row.arguments)


def _context(response: Response, input_bodies: Sequence[Body]) -> RunContext:
    history = load_history(response)
    instructions, preface = parameters.split_instructions(response.parameters)
    input_items = readable_items(input_bodies)
    decrypt = TeamCipher(response.team_id).decrypt_compaction
    return build_run_context(
        team_id=response.team_id,
        parameters=response.parameters,
        options=response.options,
        model=response.upstream_model,
        instructions=instructions,
        context=RequestContext(
            preface=preface,
            history=history,
            input_items=input_items,
            compacted_context=from_latest_compaction([*history, *input_items], decrypt),
        ),
        attachments=TeamAttachments(response.team_id),
    )
