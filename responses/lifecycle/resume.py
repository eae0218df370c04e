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
from engine.calls.toolbox import CallBudget, Toolbox
from engine.compaction.items import from_latest_compaction
from engine.events.fold import Fold, read_frames
from engine.events.response_body import Ending, opening
from engine.events.types import Body
from engine.loop import Run
from engine.moderation import OutputCheck
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
from engine.turn import Call, Finish, LanguageModel, TurnRequest, TurnStream, Usage
from limits import Grant
from responses.models import EventBatch, Mode, Response, Status, ToolCall, Turn
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
    RunReservation,
    deletions,
    hold,
    is_for,
    is_of_tool,
    price_key_of,
    settle_after_commit,
    taken,
)
from responses.runs.rows import Row
from responses.runs.store import Change, LeaseGuard
from responses.tools import registry
from tenants import scope
from tenants.models import UsageRecord
from tenants.prices import PriceList


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedRun:
    """A run that was loaded from the database, ready to be executed or ended."""

    run: Run
    recorder: Recorder
    identity: RunIdentity
    lost: TurnRecord | None = None
    """The model call that was lost with the previous process; estimated."""
    lost_calls: list[Row] = field(default_factory=list)
    """Usage records of hosted calls that were lost with it."""
    open_turn: list[Row] = field(default_factory=list)
    """The row of the executing process's open model call, which it records once it notices that it lost the run."""
    taken: list[Grant] = field(default_factory=list)
    """Reservations of the previous process, or the place in the queue."""
    grace_seconds: float | None = None
    """Seconds for which the run continues without a follower; None: until it ends, as a background run does."""
    reservation: RunReservation | None = None
    """Reservation of this process, made before it executes the run; None without limits."""

    def within(self, reservation: RunReservation | None) -> "ResumedRun":
        """Return the run, to be executed within a reservation."""
        if reservation is not None:
            self.recorder.use(reservation)
            reservation.adopt(self._returned)
        return replace(self, reservation=reservation)

    @property
    def _returned(self) -> dict[str, Grant]:
        """Reservations of hosted calls that returned in the previous process, and whose cost is not recorded yet."""
        calls = self.run.returned_calls
        return {call_id: grant for call_id in calls for grant in self.taken if is_for(grant.id, call_id)}

    def end(self, ending: Ending) -> Exception | None:
        """End a run that this process does not execute. Return the error if its end could not be written."""
        step = self.run.end_dead(ending, lost=self.lost, has_open_call=bool(self.open_turn))
        _, change = self.recorder.plan(step)
        # The end of a stored response contains the usage records of its unfinished calls already.
        lost_calls = [] if self.identity.stored else self.lost_calls
        insert = [*change.insert, *lost_calls, *self.open_turn]
        hold(self.taken, insert)
        (error,) = store.apply([replace(change, insert=insert, extra=[*change.extra, *deletions(*self.taken)])])
        if error is None:
            settle_after_commit(self.taken, insert)
            if self.open_turn:
                Response.objects.filter(pk=self.identity.response_id).update(has_open_call=True)
            self.recorder.metrics.count(step)
        return error

    def record_lost(self) -> bool:
        """Write the usage records of the lost calls of a run that continues, which repeats them.

        Return False if this process has lost the run meanwhile; then nothing is written.
        """
        response_id, turns = self.identity.response_id, list[Row]()
        if self.lost is not None:
            # The usage of the response includes lost calls, although its output shows nothing of them.
            self.run.count_lost(self.lost)
            turns = self.recorder.count_lost(self.lost)
        records, kept = [*self.lost_calls, *turns], {grant.id for grant in self._returned.values()}
        left = [grant for grant in self.taken if not grant.queued and grant.id not in kept]
        hold(left, records)
        if records or left:
            extra = [*(added_usage(response_id, record) for record in turns), *deletions(*left)]
            # Guarded by the lease: the next process that resumes the run would not see usage added after it has read
            # the totals.
            lease = LeaseGuard(response_id=response_id, lease_token=self.identity.lease_token)
            change = Change(team_id=self.identity.team_id, insert=records, extra=extra, lease=lease)
            (error,) = store.apply([change])
            if error is not None:
                return False
            settle_after_commit(left, records)
        return True


def load(
    *,
    response_id: str,
    lease_token: int | None = None,
    tools: Toolbox | None = None,
    model: LanguageModel | None = None,
    checks: OutputCheck | None = None,
    budget: CallBudget | None = None,
    died: bool = False,
) -> ResumedRun:
    """Rebuild a run as of its last committed step. Runs inside a scope that sees the response's team.

    `died`: the previous process has not released the run, so it could not record the usage of an open call.

    Without a model the run can only be ended, which works even if its upstream was deleted. A worker that resumes the
    run passes the `lease_token` of its claim: the one in the row may belong to another process by now.
    """
    response = Response.objects.get(pk=response_id)
    own = Placement.objects.filter(owner=response.pk, section=Section.INPUT).order_by("position")
    context = _context(response, [*own.values_list("item__body", flat=True)])
    fold, next_sequence = Fold(), 0
    ended = response.created_at
    for batch in EventBatch.objects.filter(response=response).order_by("first_sequence"):
        for _, event in read_frames(batch.frames):
            fold.apply(event)
        next_sequence, ended = batch.last_sequence + 1, max(ended, batch.created_at)
    turns = [*Turn.objects.filter(response=response).order_by("number")] if response.turns else []
    calls = [*ToolCall.objects.filter(response=response).order_by("id")]
    resumed = _resumed(
        response,
        context,
        _state(response, fold, turns, calls),
        next_sequence=next_sequence,
        lease_token=lease_token or response.lease_token,
        tools=tools,
        model=model,
        checks=checks,
        budget=budget,
    )
    # A process that is alive releases its own reservations.
    if died or response.status == Status.QUEUED:
        resumed = replace(resumed, taken=taken(response.pk))
    began = _began(response, turns, calls, is_claimed=lease_token is not None)
    ended = max(began, ended)
    if not died:
        # The process lives, and records its open call when it notices that it has lost the run. If it dies before, the
        # record is in this row.
        open_turn = resumed.run.lost_turn(began=began, ended=now()) if lease_token is None else None
        if open_turn is None or response.lease_until is None:
            return resumed
        (record,) = resumed.recorder.usage_records(open_turn)
        row = open_row(
            turn_id(response.pk, open_turn.number),
            record,
            owner=response.lease_owner,
            until=max(response.lease_until, lease_until()),
            adds_to=response.pk,
        )
        return replace(resumed, open_turn=[row])
    lost_calls = [
        resumed.recorder.call_record(
            _call(row), PRICE_KEYS[row.name], turn=row.turn, at=ended, outcome=str(Finish.INTERRUPTED)
        )
        for row in calls
        if row.status == "in_progress" and row.name in PRICE_KEYS
    ]
    if not response.stored:
        # An unstored response has no rows of its calls; only its reservations name them.
        lost_calls = [
            resumed.recorder.call_record(
                Call(item_id="", call_id="", name=key, arguments=""),
                key,
                turn=max(0, response.turns - 1),
                at=ended,
                outcome=str(Finish.INTERRUPTED),
            )
            for grant in resumed.taken
            if is_of_tool(grant.id)
            for key in [price_key_of(grant.id)]
        ]
    lost = resumed.run.lost_turn(began=began, ended=ended)
    if lost is not None and not response.stored:
        lost = replace(lost, usage=_usage_without_log(response, turns))
    # The process may have died after it had recorded the call.
    records = UsageRecord.objects.filter(object_id=response.pk, turn=response.turns, occurred_at__gte=began)
    if lost is not None and records.filter(endpoint=response.endpoint).exists():
        lost = None
    return replace(resumed, lost=lost, lost_calls=lost_calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedRun:
    """A run that no process has begun, as it is stored: it has no turns, calls or output yet."""

    response: Response
    input_bodies: Sequence[Body]
    next_sequence: int


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


def start(
    queued: QueuedRun, *, model: LanguageModel, checks: OutputCheck | None, budget: CallBudget | None = None
) -> ResumedRun:
    """Build a run that no process has begun; call it in a database thread."""
    response = queued.response
    # Most runs bring their whole context and no tools. For them nothing is left to read.
    reads = response.previous_response_id or response.history_id or response.conversation_id
    reads = reads or response.parameters["tools"]
    rows: AbstractContextManager[None] = scope.team(response.team_id) if reads else nullcontext()
    with rows:
        return _resumed(
            response,
            _context(response, queued.input_bodies),
            RunState(queued=True),
            next_sequence=queued.next_sequence,
            lease_token=response.lease_token,
            tools=None if reads else Toolbox(),
            model=model,
            checks=checks,
            budget=budget,
        )


def _resumed(
    response: Response,
    context: RunContext,
    state: RunState,
    *,
    next_sequence: int,
    lease_token: int,
    tools: Toolbox | None,
    model: LanguageModel | None,
    checks: OutputCheck | None,
    budget: CallBudget | None,
) -> ResumedRun:
    identity = RunIdentity(
        response_id=response.pk,
        team_id=response.team_id,
        key_id=response.api_key_id,
        model=response.model,
        upstream_id=response.upstream_id,
        upstream_model=response.upstream_model,
        request_id=response.request_id,
        stored=response.stored,
        obfuscate=bool(response.options.get("obfuscate")),
        created_at=response.created_at,
        lease_token=lease_token,
        background=response.background,
        streamed=response.mode == Mode.STREAM,
        in_worker=response.background or response.handed_over_at is not None,
        conversation_id=response.conversation_id,
        prices=PriceList.restored(response.options.get("prices")),
        endpoint=response.endpoint,
        end_user=response.end_user or "",
        bills_estimates=not response.options.get("waives_estimates"),
        tool_prices=PriceList.restored(response.options.get("tool_prices")),
        trace=response.options.get("trace") or {},
    )
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
    if tools is None:
        tools = Toolbox() if model is None else registry.restore_tools(response, context.items)
    run = Run(context, state, model=model or _NoModel(), tools=replace(tools, budget=budget), now=now, checks=checks)
    recorder = Recorder(identity, progress, ConversationAppend.of(response))
    if next_sequence == 0 and response.stored and not response.background:
        # The process died before it stored the first events, which the client may have received. They depend on nothing
        # but the response, so these are the same bytes.
        recorder.opening(opening(context.parameters))
    return ResumedRun(run=run, recorder=recorder, identity=identity)


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


class _NoModel:
    """The model of a run that was loaded to be ended."""

    def open(self, request: TurnRequest) -> TurnStream:
        raise RuntimeError("this run was loaded to be ended")


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
