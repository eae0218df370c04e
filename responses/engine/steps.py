"""The steps of a run: what the loop yields and the recorder commits. A closed union.

`Emitted` goes out at once and is stored in batches; every other step is committed before its events are sent, and a run
can be taken over after any of them.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from kernel.errors import Failure
from responses.engine.calls.outcomes import RequireApproval, ToolResult
from responses.engine.events.response_body import Ending
from responses.engine.events.types import Body, Event
from responses.engine.state import DiscardedTurn, OutputItem, PendingCall
from responses.engine.turn import Call, TurnResult, Usage


@dataclass(frozen=True, slots=True)
class Emitted:
    """Deltas and item boundaries."""

    events: list[Event]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """A run that was queued has begun."""

    events: list[Event]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One upstream call, for the ledger and the admin. `usage` is never None here: counted by us if need be.

    `discarded`: what it brought was not accepted. `compacts`: it was a compaction pass, which may have `failed`.
    """

    number: int
    started_at: datetime
    ended_at: datetime
    result: TurnResult
    usage: Usage
    discarded: DiscardedTurn | None = None
    compacts: bool = False
    failed: bool = False


CallState = Literal["pending", "waiting", "asked", "refused"]
"""We make the call; the client makes it; it waits for approval; nobody makes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """A tool call that a turn asked for. `kind` "function": the client runs it.

    `answer` is what the model reads of a call that is refused, behind the first `after` items of the output; `ask` how
    one asks for approval.
    """

    call: Call
    turn: int
    kind: str
    state: CallState
    answer: str | None = None
    after: int = 0
    ask: RequireApproval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentsClosed:
    """A successor has closed what its predecessor left open."""

    events: list[Event]
    items: list[OutputItem]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    """A turn is over and hosted tools are to be called."""

    events: list[Event]
    turn: TurnRecord
    items: list[OutputItem]
    calls: list[CallRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDiscarded:
    """A turn was not accepted, and another one is to do better. `items` are those of it that had been told already."""

    turn: TurnRecord
    items: list[OutputItem]
    events: list[Event] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextCompacted:
    """A compaction pass is over. Without items it has made nothing, and the run goes on without."""

    events: list[Event]
    turn: TurnRecord
    items: list[OutputItem]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsPrepared:
    """Hosted tools have put something in front of the first turn: items, or calls that were approved of.

    With a `failure` the run ends here.
    """

    events: list[Event]
    items: list[OutputItem] = field(default_factory=list)
    calls: list[CallRecord] = field(default_factory=list)
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsStarted:
    """Hosted calls are about to be made: from here on they may have taken effect."""

    calls: list[PendingCall]
    started_at: datetime
    events: list[Event] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsReturned:
    """Hosted calls gave their results while one in front of them is still under way. Their items come in their turn;
    the results are kept now, so that nobody makes these calls again."""

    calls: list[PendingCall]
    events: list[Event] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFinished:
    """A hosted call has its result, which stands in the output as `items`."""

    call: Call
    turn: int
    result: ToolResult
    ended_at: datetime
    items: list[OutputItem]
    events: list[Event]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The run is over. `turn` is the one that ended with it; `response` the final public object; `abandoned` are the
    hosted calls that nobody makes any more."""

    events: list[Event]
    ending: Ending
    ended_at: datetime
    response: Body
    usage: Usage
    turn: TurnRecord | None = None
    items: list[OutputItem] = field(default_factory=list)
    calls: list[CallRecord] = field(default_factory=list)
    unfinished: list[PendingCall] = field(default_factory=list)


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
    | ToolFinished
    | RunEnded
)
