"""The state of a run, restored from its rows and its log."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from conversations.models import Placement, Section
from engine.calls.outcomes import ToolResult
from engine.calls.waits import PendingDecision, WaitKind
from engine.events.fold import Fold
from engine.state import (
    ContextInsertion,
    DiscardedTurn,
    OutputItem,
    PendingCall,
    RunState,
    call_with_output,
    output_images,
)
from engine.turn import Call, Usage
from responses.models import Decision, DecisionKind, DecisionState, Response, Status, ToolCall, Turn

# An approved call has a second row, under the id of its approval request.
_NOT_MADE = frozenset({"asked", "approved", "denied", "refused"})
# Statuses of hosted calls that have no final item.
_PENDING = frozenset({"pending", "in_progress", "awaiting_decision", "returned"})
# Statuses of hosted calls that were started.
_STARTED = frozenset({"in_progress", "awaiting_decision", "returned", "completed", "failed"})


def restore_state(response: Response, fold: Fold, turns: Sequence[Turn], calls: Sequence[ToolCall]) -> RunState:
    """Return the state of a run after its last committed step. `fold` holds the events of its log.

    Call it inside a scope that sees the response's team.
    """
    places = Placement.objects.filter(owner=response.pk, section=Section.OUTPUT).select_related("item")
    output = [OutputItem(body=p.item.body, in_context=p.in_context) for p in places.order_by("position")]
    committed = {item.body["id"] for item in output}
    discarded = {turn.number: DiscardedTurn(**turn.discarded) for turn in turns if turn.discarded}
    # A failed turn ends its run unless the turn was a compaction pass. So every failed turn of a resumed run was a
    # compaction pass.
    passes = [turn for turn in turns if turn.state in {"compacted", "failed"}]
    last = discarded.get(response.turns - 1)
    # Items that are in the log but were not committed by a step belong to the interrupted turn. They stay in the
    # output, because followers have received them, but models do not read them.
    uncommitted = [fragment for fragment in fold.fragments if fragment.body["id"] not in committed]
    return RunState(
        turn=response.turns,
        output=output,
        pending=_pending_calls(response, calls),
        fragments=uncommitted,
        insertions=_insertions(calls),
        discarded=len(discarded),
        rejected=last if last and last.defect is not None else None,
        input_too_long=any(turn.defect is None for turn in discarded.values()),
        has_called_tools=any(call.kind != "function" and call.status in _STARTED for call in calls),
        awaits_client=any(call.status in {"waiting", "asked"} for call in calls),
        awaits_outputs=any(call.status == "waiting" for call in calls),
        queued=response.status == Status.QUEUED,
        compactions=len(passes),
        compaction_tokens=sum(turn.output_tokens for turn in passes),
        compaction_failed=any(turn.state == "failed" for turn in passes),
        lost_tokens=_lost_tokens(response, turns),
        model=response.model,
        hosted_calls=sum(call.kind != "function" and call.status not in _NOT_MADE for call in calls),
        usage=Usage(
            input_tokens=response.input_tokens,
            cached_tokens=response.cached_tokens,
            cache_write_tokens=response.cache_write_tokens,
            output_tokens=response.output_tokens,
            reasoning_tokens=response.reasoning_tokens,
        ),
    )


def _lost_tokens(response: Response, turns: Sequence[Turn]) -> int:
    """Return the output tokens of calls without a turn, which were lost because a process died."""
    return max(0, response.output_tokens - sum(turn.output_tokens for turn in turns)) if turns else 0


def _insertions(rows: Iterable[ToolCall]) -> list[ContextInsertion]:
    """Return the context insertions of earlier turns: errors of refused calls, and images from tools."""
    insertions = []
    for row in rows:
        match row.status, row.result:
            case "refused", {"after": after}:
                call = call_of(row)
                fields = {"call_id": call.call_id, "name": call.name, "arguments": call.arguments}
                insertions.append(call_with_output(after=after, output=row.output or "", **fields))
            case "completed" | "failed", {"after": after, "parts": parts}:
                insertions.append(output_images(after=after, call=call_of(row), images=parts))
    return insertions


def _pending_calls(response: Response, calls: Sequence[ToolCall]) -> list[PendingCall]:
    """Return the calls of hosted tools that have no final item, with the decisions about them."""
    pending = [row for row in calls if row.status in _PENDING]
    decisions: dict[tuple[int | None, str], list[Decision]] = {}
    if any(row.status != "pending" for row in pending):
        asked = Decision.objects.filter(response=response).exclude(kind=DecisionKind.APPROVAL)
        for decision in asked.order_by("attempt"):
            decisions.setdefault((decision.turn, decision.call_id), []).append(decision)
    return [_pending_call(row, decisions.get((row.turn, row.call_id), ())) for row in pending]


def _pending_call(row: ToolCall, asked: Sequence[Decision]) -> PendingCall:
    """Return the call of a row. `asked` are the decisions about it, in order."""
    known, call, decision = row.if_ended or {}, call_of(row), None
    for entry in asked:
        decision = PendingDecision(
            id=entry.pk,
            kind=WaitKind(entry.kind),
            expires_at=entry.expires_at,
            question=entry.question,
            answer=entry.answer if entry.state == DecisionState.ANSWERED else None,
        )
        if entry.attempt < row.attempt:
            # The call was sent again with the answer. It keeps it if it is repeated after an unknown outcome.
            call, decision = replace(call, input=decision.input or call.input), None
    return PendingCall(
        call=call,
        turn=row.turn,
        attempt=0 if row.status == "pending" else row.attempt,
        result=ToolResult.restored(row.result) if row.result else None,
        items=tuple(known.get("items", ())),
        repeatable=known.get("repeatable"),
        decision=decision if row.status == "awaiting_decision" else None,
    )


def call_of(row: ToolCall) -> Call:
    """Return the call that a row describes."""
    return Call(item_id="", call_id=row.call_id, name=row.name, arguments=row.arguments)
