"""What a run starts from, fresh or handed on: its context (constant) and its state (what the log and the rows say)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from conversations.items import StoredItem, from_wire
from responses.engine.attachments import Attachments
from responses.engine.calls.outcomes import ToolResult
from responses.engine.chat.reasoning import ReasoningCipher
from responses.engine.compaction.items import CompactionCipher, CompactionPlan
from responses.engine.events.types import Body
from responses.engine.turn import Call, Sampling, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTraits:
    """How far a model can be trusted, and how much it can read.

    `structured_output`: "checked", what it says is held back until it was checked; "native", its server enforces the
    format; "prompted", it is asked for in words, and checked. `context_window` in tokens; None: not known.
    """

    structured_output: str = "checked"
    forced_tool_choice: bool = True
    context_window: int | None = None


class RunCipher(ReasoningCipher, CompactionCipher, Protocol):
    """Seals all that a run has to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What does not change while a response runs. `parameters` is the constant part of the public object.

    The first `prefaced` of the items belong to the instructions; the next `compacted` stand for what was made short
    before. `compaction` says when more of it is to be.
    """

    response_id: str
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputItem:
    """An item of the output. Fragments of a turn that was cut are shown, but not sent to a model again."""

    body: Body
    in_context: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCall:
    """A hosted tool call that is to be made, or was made and has no item yet.

    `attempt` counts how often it was begun: from the first time on it may have taken effect. `result` came at
    `returned_at`, before that of a call in front of it.
    """

    call: Call
    turn: int
    attempt: int = 0
    result: ToolResult | None = None
    returned_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextInsertion:
    """What the model reads beside the output, in this run only and never shown: behind the first `after` items."""

    after: int
    items: tuple[StoredItem, ...]


def call_with_output(*, after: int, call_id: str, name: str, arguments: str, output: str) -> ContextInsertion:
    """A call that nobody makes, and why."""
    called = {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}
    answered = {"type": "function_call_output", "call_id": call_id, "output": output}
    return ContextInsertion(after=after, items=(from_wire(called), from_wire(answered)))


def user_parts(*, after: int, parts: Sequence[Body]) -> ContextInsertion:
    """What a tool gave beside its words: images. Models read them as a message of the user."""
    return ContextInsertion(after=after, items=(from_wire({"type": "message", "role": "user", "content": [*parts]}),))


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardedTurn:
    """Why a turn does not count, and what it had brought. `defect` None: the upstream could not read so much."""

    defect: str | None
    items: list[Body] = field(default_factory=list)

    def feedback(self) -> tuple[StoredItem, ...]:
        """How the next turn hears of it."""
        if self.defect is None:
            return ()
        said = [from_wire(item) for item in self.items if item["type"] == "message"]
        complaint = (
            f"[Automatic check] Your last answer cannot be used. {self.defect} Answer again, without this fault."
        )
        return (*said, from_wire({"type": "message", "role": "user", "content": complaint}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """An item of a cut turn: its `output_item.added` is in the log, its turn was never committed.

    `is_open`: its `output_item.done` is not in the log either; `open_part` is the content part that was being written,
    `open_summary` the paragraph of a summary.
    """

    output_index: int
    body: Body
    is_open: bool
    open_part: int | None = None
    open_summary: int | None = None


@dataclass(slots=True, kw_only=True)
class RunState:
    """Where a run stands after its last committed step.

    `turn` counts finished upstream calls, `hosted_calls` the calls of hosted tools that were let through. `fragments`
    are the items of a turn that was cut: those still open are closed as incomplete before anything else happens.
    `waiting`: the client has calls to answer, or to approve of, before a model is asked again. `discarded` counts the
    turns that do not count, `repairs` is the one right before the next turn; `shortened`: one of them was too long to
    be read. `futile_turns` counts those since the last that got anywhere. `queued`: nobody has begun with the run yet.
    `compactions` counts the turns that were compaction passes, `compaction_tokens` what they wrote.
    """

    turn: int = 0
    output: list[OutputItem] = field(default_factory=list)
    pending: list[PendingCall] = field(default_factory=list)
    fragments: list[Fragment] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    hosted_calls: int = 0
    awaits_client: bool = False
    insertions: list[ContextInsertion] = field(default_factory=list)
    discarded: int = 0
    rejected: DiscardedTurn | None = None
    input_too_long: bool = False
    unproductive_turns: int = 0
    queued: bool = False
    compactions: int = 0
    compaction_tokens: int = 0
    compaction_failed: bool = False

    @property
    def next_output_index(self) -> int:
        """The index that the next item gets; fragments keep theirs."""
        return len(self.output) + len(self.fragments)

    def context_items(self) -> list[StoredItem]:
        """The output so far, as the next turn reads it."""
        items: list[StoredItem] = []
        for position, item in enumerate(self.output):
            if self.insertions:
                items += self._insertions_after(position)
            if item.in_context:
                items.append(from_wire(item.body))
        items += self._insertions_after(len(self.output))
        return [*items, *self.rejected.feedback()] if self.rejected else items

    def _insertions_after(self, position: int) -> list[StoredItem]:
        return [item for insertion in self.insertions if insertion.after == position for item in insertion.items]

    @property
    def has_compacted(self) -> bool:
        """Whether the run has made short what came before."""
        return any(item.body["type"] == "compaction" and item.in_context for item in self.output)

    def bodies(self) -> list[Body]:
        """The output as the wire shows it."""
        return [item.body for item in self.output]
