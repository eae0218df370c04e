"""Context and state of a run.

The context is constant. The state is empty for a new run and rebuilt from the rows and the event log for a resumed one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from conversations.items import HISTORY_ONLY, StoredItem, from_wire, readable_items
from core.records import record
from engine.attachments import Attachments
from engine.calls.effects import UNKNOWN_RESULT
from engine.calls.outcomes import ToolResult
from engine.calls.waits import PendingDecision
from engine.compaction.items import CompactionCipher, CompactionPlan
from engine.converter.segments import ReasoningCipher
from engine.events.types import Body
from engine.turn import Call, Sampling, TurnResult, Usage


@record
class ModelTraits:
    """Capabilities of a model that the engine depends on.

    Values of `structured_output`: "native": the upstream enforces the format. "checked": the upstream is asked for the
    format, and the output is held back until it is validated. "prompted": like "checked", but the instructions describe
    the format. `context_window` is in tokens, None if unknown.
    """

    structured_output: str = "checked"
    forced_tool_choice: bool = True
    context_window: int | None = None


class RunCipher(ReasoningCipher, CompactionCipher, Protocol):
    """Cipher for all encrypted content of a run."""


@record
class RunContext:
    """Constant part of a run. `parameters` is the part of the public object that never changes.

    The first `instruction_items` items belong to the instructions (a prompt's messages); the following
    `compacted_items` replace an earlier part of the conversation. `compaction` sets when to compact again. A run that
    does not generate (`generate: false`) calls no model and completes immediately. Without `wants_events`, the
    client reads only the end, as in a JSON request. With `decision_seconds`, the run waits so long for the approval of
    its calls. Without it, the response completes, and the client sends the approvals in its next request. With
    `call_wait_seconds`, the run waits so long for decisions about calls that it has made: what the outcome of an
    interrupted call was, or what to answer to the question of a tool. Without it, the run or the call fails.
    """

    parameters: dict[str, Any]
    model: str
    instructions: str | None
    items: Sequence[StoredItem]
    sampling: Sampling
    traits: ModelTraits = ModelTraits()
    attachments: Attachments | None = None
    cipher: RunCipher | None = None
    include: frozenset[str] = frozenset()
    max_turns: int = 32
    instruction_items: int = 0
    compacted_items: int = 0
    compaction: CompactionPlan | None = None
    generates: bool = True
    wants_events: bool = True
    decision_seconds: int | None = None
    call_wait_seconds: int | None = None


@record
class OutputItem:
    """Output item. Without `in_context`, as for items of a cut turn, only the client sees it and not the model."""

    body: Body
    in_context: bool = True

    @property
    def is_public(self) -> bool:
        """False for an item that only the model and the history of the conversation have."""
        return self.body["type"] not in HISTORY_ONLY


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCall:
    """Hosted tool call that has no final item yet.

    `attempt` is the number of starts; after the first one the call may have taken effect. `result` and `returned_at`
    are set if the call returned before an earlier call of the same turn. `items` are the items of the call if the run
    ends now; they are empty before the first start. `repeatable` is true if the tool declared, when the call was
    started, that repeating it does no harm; None if this was not recorded. `decision` is the decision of a person about
    the last start, for which the call waits.
    """

    call: Call
    turn: int
    attempt: int = 0
    result: ToolResult | None = None
    returned_at: datetime | None = None
    items: tuple[Body, ...] = ()
    repeatable: bool | None = None
    decision: PendingDecision | None = None

    @property
    def is_unanswered(self) -> bool:
        """True if the call was started and has not returned."""
        return self.attempt > 0 and self.result is None

    @property
    def outcome(self) -> ToolResult | None:
        """Outcome of the call if the run ends now; None if the call was never made."""
        if self.result is None and self.attempt:
            return self.decision.unanswered if self.decision is not None else UNKNOWN_RESULT
        return self.result

    def stored(self) -> dict[str, Any]:
        """Return the items and the declaration of the tool as JSON, for a process that resumes or ends the run."""
        return {"items": [*self.items], "repeatable": self.repeatable}

    @property
    def left_items(self) -> tuple[Body, ...]:
        """The items of a call that was started or has returned; empty for a call that was never made."""
        return self.items if self.attempt or self.result is not None else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextInsertion:
    """Items for the model only, inserted after the first `after` items of the output.

    They are not part of the output, so neither clients nor later responses see them.
    """

    after: int
    items: tuple[StoredItem, ...]


def call_with_output(*, after: int, call_id: str, name: str, arguments: str, output: str) -> ContextInsertion:
    """Return the insertion of a call that was not run, together with the reason as its output."""
    called = {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}
    answered = {"type": "function_call_output", "call_id": call_id, "output": output}
    return ContextInsertion(after=after, items=(from_wire(called), from_wire(answered)))


def output_images(*, after: int, call: Call, images: Sequence[Body]) -> ContextInsertion:
    """Return the insertion of images from a tool's output, as a user message that names the call."""
    # Tool messages of chat completions carry text only, so images have to come from the user.
    title = {"type": "input_text", "text": f"Images of the output of '{call.name}' (call {call.call_id}):"}
    message = {"type": "message", "role": "user", "content": [title, *images]}
    return ContextInsertion(after=after, items=(from_wire(message),))


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardedTurn:
    """Turn that was not accepted, with its items. `defect` is None if the upstream rejected the input as too long."""

    defect: str | None
    items: list[Body] = field(default_factory=list)

    def feedback(self) -> tuple[StoredItem, ...]:
        """Return the items that tell the model about the defect in the next turn."""
        if self.defect is None:
            return ()
        # Only messages: repeating a rejected call would require an output for it.
        rejected = [from_wire(item) for item in self.items if item["type"] == "message"]
        complaint = f"[Automatic check] Your last answer cannot be used. {self.defect} Answer again and correct this."
        return (*rejected, from_wire({"type": "message", "role": "user", "content": complaint}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """Item of a turn that was cut: its `output_item.added` is in the log, but its turn was never committed.

    `is_open`: its `output_item.done` is not in the log. `open_part` is the index of the content part that was being
    written, `open_summary` the index of the summary part.
    """

    output_index: int
    body: Body
    is_open: bool
    open_part: int | None = None
    open_summary: int | None = None


@dataclass(slots=True, kw_only=True)
class RunState:
    """State of a run after its last committed step.

    `turn`: number of finished upstream calls, including discarded turns and compaction passes.
    `pending`: hosted calls without a final item, in call order.
    `fragments`: items of a turn that was cut; open items are closed as incomplete before anything else happens.
    `hosted_calls`: number of hosted calls that were accepted, for `max_tool_calls`.
    `has_called_tools`: at least one hosted call was started.
    `awaits_client`: the client has to send outputs or approvals before the model is called again. `awaits_outputs` is
    also true if at least one of them is an output, which only the next request can contain.
    `discarded`: number of discarded turns; `rejected` is the discarded turn directly before the next turn, if any.
    `input_too_long`: the upstream rejected the input as too long, so later turns send half of it.
    `unproductive_turns`: number of turns since the last one with a valid call.
    `queued`: no worker has started the run yet.
    `compactions`: number of compaction passes; `compaction_tokens` is the number of tokens that they wrote.
    `lost_tokens`: number of output tokens of calls that were lost with their process and repeated by another one.
    `has_open_call`: another process will add its open call to the usage.
    `model`: public name of the model that has answered, if it may differ from the requested name.
    """

    turn: int = 0
    output: list[OutputItem] = field(default_factory=list)
    pending: list[PendingCall] = field(default_factory=list)
    fragments: list[Fragment] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    hosted_calls: int = 0
    has_called_tools: bool = False
    awaits_client: bool = False
    awaits_outputs: bool = False
    insertions: list[ContextInsertion] = field(default_factory=list)
    discarded: int = 0
    rejected: DiscardedTurn | None = None
    input_too_long: bool = False
    unproductive_turns: int = 0
    queued: bool = False
    compactions: int = 0
    compaction_tokens: int = 0
    compaction_failed: bool = False
    lost_tokens: int = 0
    has_open_call: bool = False
    model: str = ""

    def note_target(self, result: TurnResult) -> None:
        """Record which model has answered a turn."""
        if (target := result.answered_by) is not None:
            self.model = target.model

    @property
    def final_usage(self) -> Usage | None:
        """Usage of the run after its end. None if the usage is not known yet, or if no model was called."""
        return self.usage if not self.has_open_call and (self.turn or self.usage.has_tokens) else None

    def count_lost(self, usage: Usage) -> None:
        """Add the usage of a call that was lost with its process and is repeated by another process."""
        self.usage += usage
        self.lost_tokens += usage.output_tokens

    @property
    def returned_calls(self) -> list[str]:
        """Ids of the hosted calls that have returned and have no item yet."""
        return [pending.call.call_id for pending in self.pending if pending.result is not None]

    @property
    def next_output_index(self) -> int:
        """Output index of the next item. Fragments keep their index."""
        return sum(item.is_public for item in self.output) + len(self.fragments)

    def context_items(self) -> list[StoredItem]:
        """Return the output so far as the model reads it in the next turn."""
        # Refused calls and tool images are not output items, so they are merged in by position.
        items: list[StoredItem] = []
        for position, item in enumerate(self.output):
            if self.insertions:
                items += self._insertions_after(position)
            if item.in_context:
                items += readable_items([item.body])
        items += self._insertions_after(len(self.output))
        return [*items, *self.rejected.feedback()] if self.rejected else items

    def _insertions_after(self, position: int) -> list[StoredItem]:
        return [item for insertion in self.insertions if insertion.after == position for item in insertion.items]

    @property
    def has_compacted(self) -> bool:
        """True after a successful compaction pass of this run."""
        return any(item.body["type"] == "compaction" and item.in_context for item in self.output)

    def bodies(self) -> list[Body]:
        """Return the output items as in the API, in order."""
        return [item.body for item in self.output if item.is_public]
