"""The faults of the primary target, and what the failover policy promises for each of them.

The policy is described in docs/howto/connect-a-model.md. A replica answers behind the primary in every case.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

APIS = ("responses", "chat", "messages")
EMBEDDINGS = "embeddings"
"""The API whose requests are forwarded unchanged. Some cases have it besides the others."""
FIRST_TOKEN_SECONDS = 4
"""Limit of the first token of a target while another one is left."""


class Fault(StrEnum):
    """A way in which the primary fails. It fails each request, unless the description says otherwise."""

    REFUSED = "refuses connections"
    RESET = "resets the connection before the headers"
    LIMITED_ONCE = "answers 429 with Retry-After: 1 to the first attempt"
    LIMITED = "answers 429 with Retry-After: 30"
    ERROR_ONCE = "answers 500 to one attempt"
    UNAVAILABLE = "answers 503"
    SILENT = "accepts the request and sends nothing"
    LATE = "sends the first token after 20 seconds"
    CUT = "closes the connection in the middle of the text"
    STALLED = "stops sending in the middle of the text"
    INVALID_EVENT = "sends an invalid event beside the text, or an invalid document"
    LOST_EVENT = "sends an invalid event in place of a part of the text, or an invalid document"
    NO_DONE = "ends the stream after the usage, without [DONE]"
    CUT_AT_END = "closes the connection after the usage, without [DONE]"
    TOO_LONG = "answers that the context is too long"
    POLICY = "answers that the content violates its policy"
    DEAD = "resets all connections for a minute"


class Replica(StrEnum):
    """The behaviour of the second target."""

    REPRODUCES = "writes the same text as the primary, and ignores an assistant prefix"
    CONTINUES = "continues an assistant prefix, and writes another text without one"
    REFUSES_PREFIX = "refuses an assistant prefix with 400, and writes another text without one"


class Outcome(StrEnum):
    """The result of a request as its client observes it."""

    WHOLE = "whole"
    ERROR = "error"  # before any text
    FAILED = "failed"  # reported after a part of the text
    TRUNCATED = "truncated"  # reported as complete
    WRONG = "wrong"  # lost, doubled or foreign text
    BROKEN = "broken"  # neither an end nor an error was reported
    LATE = "late"


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The promised result of a request.

    `code` is that of an expected error in OpenAI's APIs; every such error is the client's own, with the status 400.
    `primary` and `replica` are the most attempts per request, `wait` the most seconds from the first attempt at the
    primary to that at the replica.
    """

    outcome: Outcome = Outcome.WHOLE
    code: str = ""
    primary: int = 1
    replica: int = 0
    wait: float | None = None


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault, the targets' capabilities, and the expected results of requests with and without a stream."""

    name: str
    fault: Fault
    streamed: Expected
    unstreamed: Expected
    replica: Replica = Replica.REPRODUCES
    capabilities: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def modes(self) -> Sequence[tuple[str, bool]]:
        """The APIs, with and without a stream."""
        modes = [(api, streamed) for api in APIS for streamed in (True, False)]
        return [*modes, (EMBEDDINGS, False)] if self.name in _FORWARDED else modes


def _case(name: str, fault: Fault, expected: Expected, *, unstreamed: Expected | None = None, **options: Any) -> Case:
    return Case(name=name, fault=fault, streamed=expected, unstreamed=unstreamed or expected, **options)


_HEALED = Expected(primary=2)
_NEXT = Expected(replica=1)
_NEXT_AFTER_REPETITION = Expected(primary=2, replica=1)
_FIRST = Expected()
# More than the limit of the first token, and less than that of an idle connection.
_NEXT_AFTER_LIMIT = Expected(replica=1, wait=FIRST_TOKEN_SECONDS + 2.0)
_SMALL, _LARGE = {"context_window": 4_096}, {"context_window": 131_072}
_TAKES_PREFIX = {"replica": {"assistant_prefix": "last_message"}}

# The cases that embeddings have as well.
_FORWARDED = frozenset({"refused", "reset", "429-once", "429", "503", "silent", "cut", "too-long", "policy"})

CASES: Sequence[Case] = (
    _case("refused", Fault.REFUSED, _NEXT_AFTER_REPETITION),
    _case("reset", Fault.RESET, _NEXT_AFTER_REPETITION),
    _case("429-once", Fault.LIMITED_ONCE, _HEALED),
    _case("429", Fault.LIMITED, _NEXT),
    _case("500-once", Fault.ERROR_ONCE, _HEALED),
    _case("503", Fault.UNAVAILABLE, _NEXT_AFTER_REPETITION),
    _case("silent", Fault.SILENT, _NEXT_AFTER_LIMIT),
    _case("late", Fault.LATE, _NEXT_AFTER_LIMIT),
    _case("cut", Fault.CUT, _NEXT),
    _case("cut-continued", Fault.CUT, _NEXT, replica=Replica.CONTINUES, capabilities=_TAKES_PREFIX),
    _case("stalled", Fault.STALLED, _NEXT),
    # Nothing was sent to a client without a stream, so the next target may answer it from the beginning.
    _case("invalid-event", Fault.INVALID_EVENT, _FIRST, unstreamed=_NEXT),
    _case("lost-event", Fault.LOST_EVENT, _NEXT),
    _case("no-done", Fault.NO_DONE, _FIRST),
    _case("cut-at-end", Fault.CUT_AT_END, _FIRST),
    _case("too-long", Fault.TOO_LONG, _NEXT, capabilities={"primary": _SMALL, "replica": _LARGE}),
    _case(
        "too-long-for-all",
        Fault.TOO_LONG,
        Expected(outcome=Outcome.ERROR, code="context_length_exceeded"),
        capabilities={"primary": _SMALL, "replica": _SMALL},
    ),
    _case("policy", Fault.POLICY, Expected(outcome=Outcome.ERROR, code="content_policy_violation")),
    _case(
        "prefix-refused",
        Fault.CUT,
        # The second attempt is one without a prefix, whose text differs.
        Expected(outcome=Outcome.FAILED, replica=2),
        unstreamed=_NEXT,
        replica=Replica.REFUSES_PREFIX,
        capabilities=_TAKES_PREFIX,
    ),
    _case("dead", Fault.DEAD, _NEXT_AFTER_REPETITION),
)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A case with an API, with or without a stream. Each cell has a model and two targets of its own."""

    case: Case
    api: str
    streamed: bool

    @property
    def name(self) -> str:
        """Return the name of the model."""
        return f"{self.case.name}.{self.api}.{'stream' if self.streamed else 'json'}"

    @property
    def expected(self) -> Expected:
        """Return the promised result."""
        return self.case.streamed if self.streamed else self.case.unstreamed


def cells(cases: Sequence[Case]) -> Iterator[Cell]:
    """Yield the cells of these cases."""
    for case in cases:
        for api, streamed in case.modes:
            yield Cell(case=case, api=api, streamed=streamed)
