"""Steps of a run: yielded by the loop, committed by the recorder. A closed union.

`Emitted` is sent immediately and stored in batches. Every other step is committed before its events are sent, and a run
can be resumed by another process after any of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from core.errors import Failure
from core.records import record
from engine.calls.outcomes import RequireApproval, ToolResult
from engine.events.response_body import Ending
from engine.events.types import Body, Event
from engine.state import DiscardedTurn, OutputItem, PendingCall
from engine.turn import Attempt, Call, Finish, TurnResult, Usage


@dataclass(frozen=True, slots=True)
class Emitted:
    """Deltas and item boundaries of a turn or call in progress."""

    events: list[Event]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """A worker started a queued run."""

    events: list[Event]


@record
class TurnRecord:
    """One upstream call, for the usage records and the admin.

    `usage` is an estimate if the upstream reported none. `discarded`: the output was not accepted. `compacts`: the call
    was a compaction pass, which may have `failed`. `repeated` are the usages of `result.lost_attempts`.
    """

    number: int
    started_at: datetime
    ended_at: datetime
    result: TurnResult
    usage: Usage
    discarded: DiscardedTurn | None = None
    compacts: bool = False
    failed: bool = False
    repeated: Sequence[Usage] = ()

    @property
    def total_usage(self) -> Usage:
        """Usage of the call and of the HTTP requests that it repeated."""
        return sum(self.repeated, self.usage)

    @property
    def outcome(self) -> str:
        """Outcome of the call for its usage record."""
        if self.result.finish is Finish.ERROR or self.failed:
            return "failed"
        if self.compacts and self.result.finish is not Finish.INTERRUPTED:
            return "compacted"
        return "discarded" if self.discarded is not None else str(self.result.finish)


def lost_usage(result: TurnResult, *, input_tokens: Callable[[], int]) -> list[Usage]:
    """Return the usage of each request of a turn that failed and was repeated."""
    return [attempt.usage or estimated_usage(attempt, input_tokens=input_tokens) for attempt in result.lost_attempts]


def estimated_usage(attempt: Attempt, *, input_tokens: Callable[[], int]) -> Usage:
    """Return an estimate of the usage of a request whose answer is incomplete; no usage if it is not charged."""
    if not attempt.may_be_charged:
        return Usage()
    # If no answer has begun, it is unknown whether the upstream has generated any, but it may have read the input.
    return Usage(input_tokens=input_tokens(), output_tokens=attempt.output_tokens, estimated=True)


CallState = Literal["pending", "waiting", "asked", "refused"]
"""`pending`: run by the server; `waiting`: run by the client; `asked`: awaits approval; `refused`: not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """Tool call that the model made in a turn. `kind` is the kind of hosted tool, or "function" for the client's tools.

    `answer` is the output that the model reads for a refused call; it is inserted after the first `after` items of the
    output. `ask` is the approval request of a call that needs one. The run waits for it until `expires_at`, if set.
    """

    call: Call
    turn: int
    kind: str
    state: CallState
    answer: str | None = None
    after: int = 0
    ask: RequireApproval | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentsClosed:
    """A resumed run closed the items that its previous process left open."""

    events: list[Event]
    items: list[OutputItem]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    """A turn ended; the run continues with its tool calls."""

    events: list[Event]
    turn: TurnRecord
    items: list[OutputItem]
    calls: list[CallRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDiscarded:
    """A turn was not accepted and is retried. `items` are the items that were already streamed."""

    turn: TurnRecord
    items: list[OutputItem]
    # Always empty: the events of the items were emitted during the turn. Every step has this field.
    events: list[Event] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextCompacted:
    """A compaction pass ended. If there are no items, the pass failed and the run continues without compaction."""

    events: list[Event]
    turn: TurnRecord
    items: list[OutputItem]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsPrepared:
    """Hosted tools prepared the first turn: items such as `mcp_list_tools`, or calls that were approved.

    The run ends here if there is a `failure`.
    """

    events: list[Event]
    items: list[OutputItem] = field(default_factory=list)
    calls: list[CallRecord] = field(default_factory=list)
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsStarted:
    """Hosted calls are about to start. From this step on they may have taken effect."""

    calls: list[PendingCall]
    started_at: datetime
    events: list[Event] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsReturned:
    """Hosted calls returned while an earlier call is still running.

    Items are emitted in call order, so the items of these calls follow later. The results are stored now,
    so that a resumed run does not repeat these calls.
    """

    calls: list[PendingCall]
    events: list[Event] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsWaiting:
    """Hosted calls wait for decisions of people. The run is suspended when its other calls have returned."""

    calls: list[PendingCall]
    events: list[Event] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFinished:
    """A hosted call ended; `items` are its output items, `kind` is the kind of its tool."""

    call: Call
    kind: str
    turn: int
    result: ToolResult
    ended_at: datetime
    items: list[OutputItem]
    events: list[Event]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSuspended:
    """The run waits for decisions of people. This process is finished with it; a worker continues it afterwards."""

    events: list[Event] = field(default_factory=list)


@record
class RunEnded:
    """The run ended.

    `response` is the final public object, `turn` the last turn if it ended with the run, `unfinished` the hosted calls
    that have no final item. `has_called_tools`: at least one hosted call was started, so the run may have had effects.
    """

    events: list[Event]
    ending: Ending
    ended_at: datetime
    response: Body
    usage: Usage
    turn: TurnRecord | None = None
    items: list[OutputItem] = field(default_factory=list)
    calls: list[CallRecord] = field(default_factory=list)
    unfinished: list[PendingCall] = field(default_factory=list)
    has_called_tools: bool = False


Step = (
    Emitted
    | RunStarted
    | FragmentsClosed
    | ToolsPrepared
    | ContextCompacted
    | TurnEnded
    | TurnDiscarded
    | ToolsStarted
    | ToolsReturned
    | CallsWaiting
    | ToolFinished
    | RunSuspended
    | RunEnded
)
