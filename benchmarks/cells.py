"""The cells to measure: the matrix and special cells."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from benchmarks.load import Api, Pace

PROMPT = "Say something plain about servers, please, in one short paragraph."
MOCK_ANSWER_OF_FOUR_TOKENS = " the model answers with"

BURST = "mock"  # 64 tokens in one write
PACED = "mock-d20-f200-ts"  # 64 tokens: 200 ms to the first, then 20 ms each, with timestamps
SHORT = "mock-t4"

EVERYONE = ("mock", "proxy", "platform")


class Group(StrEnum):
    """Groups of cells that can be selected."""

    MATRIX = "matrix"
    PACED = "paced"
    CONNECTIONS = "connections"
    CHAIN = "chain"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A load. ``history`` is the number of previous turns, chained by id or sent in the request (``inline``).

    Mock and proxy receive the messages that the platform sends upstream for the chain.
    """

    name: str
    stream: bool
    model: str
    pace: Pace
    targets: tuple[str, ...] = EVERYONE
    history: int = 0
    inline: bool = False

    @property
    def stored(self) -> bool:
        """True if the platform stores the response, which is not the case for inline history."""
        return not self.inline

    def body(self, *, api: Api, previous: str | None) -> dict[str, Any]:
        """Return the request body. ``previous`` is the id of the last response of a chain."""
        asked: dict[str, Any] = {"model": self.model, "stream": self.stream}
        if api == "chat":
            return {**asked, "messages": conversation(self.history), **_usage(stream=self.stream)}
        if self.inline:
            return {**asked, "input": conversation(self.history), "store": False}
        chained = {"previous_response_id": previous} if self.history else {}
        return {**asked, "input": PROMPT, **chained}


def _usage(*, stream: bool) -> dict[str, Any]:
    return {"stream_options": {"include_usage": True}} if stream else {}


def conversation(turns: int) -> list[dict[str, str]]:
    """Return a number of turns with prompt and short answer, followed by the prompt."""
    question = {"role": "user", "content": PROMPT}
    answer = {"role": "assistant", "content": MOCK_ANSWER_OF_FOUR_TOKENS}
    return [message for _ in range(turns) for message in (question, answer)] + [question]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Size of a benchmark run, and whether it is long enough to evaluate speed."""

    concurrency: tuple[int, ...]
    rounds: int
    seconds: float
    warm_up: float
    paced_connections: int
    paced_seconds: float
    simultaneous: int
    turns: int
    judges_speed: bool


FULL = Scale(
    concurrency=(1, 16, 64, 256),
    rounds=3,
    seconds=2.0,
    warm_up=0.5,
    paced_connections=64,
    paced_seconds=4.0,
    simultaneous=1000,
    turns=200,
    judges_speed=True,
)
SMOKE = Scale(
    concurrency=(1, 16),
    rounds=1,
    seconds=0.5,
    warm_up=0.2,
    paced_connections=8,
    paced_seconds=2.0,
    simultaneous=50,
    turns=5,
    judges_speed=False,
)


def chosen(groups: Sequence[Group], scale: Scale) -> Iterator[Cell]:
    """Yield the cells of the groups in the order of measurement."""
    if Group.MATRIX in groups:
        yield from _matrix(scale)
    if Group.PACED in groups:
        pace = Pace(
            connections=scale.paced_connections, seconds=scale.paced_seconds, warm_up=scale.warm_up, stamped=True
        )
        yield Cell(name=paced_name(scale), stream=True, model=PACED, pace=pace)
    if Group.CONNECTIONS in groups:
        pace = Pace(connections=scale.simultaneous, requests=scale.simultaneous)
        yield Cell(name=connections_name(scale), stream=True, model=PACED, pace=pace)
    if Group.CHAIN in groups:
        yield from _chain(scale)


def _matrix(scale: Scale) -> Iterator[Cell]:
    for stream in (True, False):
        for connections in scale.concurrency:
            name = matrix_name(stream=stream, connections=connections)
            pace = Pace(connections=connections, seconds=scale.seconds, warm_up=scale.warm_up)
            yield Cell(name=name, stream=stream, model=BURST, pace=pace)


def matrix_name(*, stream: bool, connections: int) -> str:
    return f"{'stream' if stream else 'json'} c={connections}"


def paced_name(scale: Scale) -> str:
    return f"paced stream c={scale.paced_connections}"


def connections_name(scale: Scale) -> str:
    return f"{scale.simultaneous} at once"


def turn_name(turn: int) -> str:
    return f"turn {turn}"


def _chain(scale: Scale) -> Iterator[Cell]:
    # At concurrency 1, because the cost of one request matters here, not the throughput.
    pace = Pace(connections=1, seconds=scale.seconds, warm_up=scale.warm_up)
    before = scale.turns - 1
    yield Cell(name=turn_name(1), stream=False, model=SHORT, pace=pace)
    yield Cell(name=turn_name(scale.turns), stream=False, model=SHORT, pace=pace, history=before)
    yield Cell(
        name=f"{turn_name(scale.turns)} inline",
        stream=False,
        model=SHORT,
        pace=pace,
        history=before,
        inline=True,
        targets=("platform",),
    )
