"""What a run starts from, fresh or handed on: its context (constant) and its state (what the log and the rows say)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from conversations.items import StoredItem, from_wire
from responses.engine.attachments import Content
from responses.engine.events import Body
from responses.engine.reasoning import Seal
from responses.engine.turns import Call, Sampling, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What does not change while a response runs. `parameters` is the constant part of the public object."""

    response_id: str
    parameters: dict[str, Any]
    model: str
    instructions: str | None
    items: Sequence[StoredItem]
    sampling: Sampling
    content: Content | None = None
    seal: Seal | None = None
    max_turns: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputItem:
    """An item of the output. Fragments of a turn that was cut are shown, but not sent to a model again."""

    body: Body
    in_context: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCall:
    """A hosted tool call that a turn asked for, without a stored output. `started`: it may have taken effect."""

    call: Call
    turn: int
    started: bool = False


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

    `turn` counts finished upstream calls. `fragments` are the items of a turn that was cut: those still open are closed
    as incomplete before anything else happens.
    """

    turn: int = 0
    output: list[OutputItem] = field(default_factory=list)
    pending: list[PendingCall] = field(default_factory=list)
    fragments: list[Fragment] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    tool_calls: int = 0

    @property
    def next_output_index(self) -> int:
        """The index that the next item gets; fragments keep theirs."""
        return len(self.output) + len(self.fragments)

    def context_items(self) -> list[StoredItem]:
        """The output so far, as the next turn reads it."""
        return [from_wire(item.body) for item in self.output if item.in_context]

    def bodies(self) -> list[Body]:
        """The output as the wire shows it."""
        return [item.body for item in self.output]
