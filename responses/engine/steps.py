"""The steps of a run: what the loop yields and the recorder commits. A closed union.

`Emitted` goes out at once and is stored in batches; every other step is committed before its events are sent, and a run
can be taken over after any of them.
"""

from dataclasses import dataclass, field
from datetime import datetime

from responses.engine.body import Ending
from responses.engine.events import Body, Event
from responses.engine.state import OutputItem
from responses.engine.tools import ToolResult
from responses.engine.turns import Call, TurnResult, Usage


@dataclass(frozen=True, slots=True)
class Emitted:
    """Deltas and item boundaries."""

    events: list[Event]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One upstream call, for the ledger and the admin. `usage` is never None here: counted by us if need be."""

    number: int
    started_at: datetime
    ended_at: datetime
    result: TurnResult
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """A tool call that a turn asked for. `kind` "function": the client runs it."""

    call: Call
    turn: int
    kind: str


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
class ToolStarted:
    """A hosted call is about to be made: from here on it may have taken effect."""

    call: Call
    turn: int
    started_at: datetime
    events: list[Event] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFinished:
    """A hosted call has its result, which stands in the output as `item`."""

    call: Call
    turn: int
    result: ToolResult
    ended_at: datetime
    item: OutputItem
    events: list[Event]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The run is over. `turn` is the one that ended with it; `response` the final public object."""

    events: list[Event]
    ending: Ending
    ended_at: datetime
    response: Body
    usage: Usage
    turn: TurnRecord | None = None
    items: list[OutputItem] = field(default_factory=list)
    calls: list[CallRecord] = field(default_factory=list)


Step = Emitted | FragmentsClosed | TurnEnded | ToolStarted | ToolFinished | RunEnded
