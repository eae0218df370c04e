"""The loads, and the measurements of all servers in rounds."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.compare.large_prompt import large_prompt
from benchmarks.load import Measurement, Pace, Target, measure
from benchmarks.matrix import PROMPT
from benchmarks.stack import tell

CONCURRENCY = (1, 64, 256)
KINDS = ("stream", "json")
PLATFORM, PER_CORE = "platform", "platform, a process per core"
# Prompts of 50,000 tokens, as of coding agents, answered as a stream.
LARGE, LARGE_CONCURRENCY = "large prompt", (1, 16)
# Connections of the closed loops that show the rate below a limit of latency.
LADDER = (1, 2, 4, 8, 16, 32, 64, 128)
# The largest limit of the table: a server above it is not measured with more connections.
LADDER_P99_MS = 100.0
# A cell that takes longer than this at a slow server is measured in the first round only: at most 12 minutes in all.
PATIENCE_SECONDS = 12.0


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A server to measure and the model that it routes to the mock."""

    target: Target
    model: str

    def body(self, kind: str) -> dict[str, Any]:
        """Return the request of a cell."""
        prompt, stream = large_prompt() if kind == LARGE else PROMPT, kind != "json"
        body = {"model": self.model, "stream": stream}
        if self.target.api == "responses":
            return {**body, "input": prompt}
        options = {"stream_options": {"include_usage": True}} if stream else {}
        return {**body, "messages": [{"role": "user", "content": prompt}], **options}


@dataclass(frozen=True, kw_only=True)
class Durations:
    """Seconds of a measurement of a cell and of a step of the ladder, and of the load before each."""

    window: float = 2.0
    step: float = 1.0
    warm_up: float = 0.5


SMOKE = Durations(window=0.3, step=0.3, warm_up=0.1)


@dataclass(kw_only=True)
class Comparison:
    """Measurements of all contenders by kind, concurrency and server."""

    contenders: Sequence[Contender]
    durations: Durations
    rounds: dict[tuple[str, int, str], list[Measurement]] = field(default_factory=lambda: defaultdict(list))
    ladder: list[dict[str, Any]] = field(default_factory=list)
    completed: int = 0

    def warm_up(self) -> None:
        """Send some requests of each kind: the first ones import modules and open connections."""
        for contender in self.contenders:
            for kind in KINDS:
                self._measure(contender, kind, Pace(connections=4, requests=16))

    def measure(self, *, rounds: int, concurrency: Sequence[int]) -> None:
        """Measure all cells in rounds."""
        for number in range(1, rounds + 1):
            for kind in KINDS:
                self._measure_round(f"round {number} of {rounds}", kind, concurrency)

    def measure_large_prompts(self, *, rounds: int) -> None:
        """Measure the cells of large prompts in rounds."""
        for number in range(1, rounds + 1):
            self._measure_round(f"round {number} of {rounds}", LARGE, LARGE_CONCURRENCY)

    def _measure_round(self, title: str, kind: str, concurrency: Sequence[int]) -> None:
        for connections in concurrency:
            tell(f"{title}: {kind} at {connections}")
            for contender in self.contenders:
                self._measure_cell(contender, kind, connections)

    def climb(self, steps: Sequence[int]) -> None:
        """Measure all servers with more and more connections, each until its p99 exceeds the largest limit."""
        for kind in KINDS:
            climbing = list(self.contenders)
            for connections in steps:
                tell(f"ladder: {kind} at {connections}")
                pace = Pace(connections=connections, seconds=self.durations.step, warm_up=self.durations.warm_up)
                for contender in list(climbing):
                    measured = self._measure(contender, kind, pace)
                    p99 = measured.total_ms.p99 if measured.total_ms else None
                    step = {"kind": kind, "connections": connections, "server": contender.target.name}
                    figures = {"per_second": measured.per_second, "p99_ms": p99, "failed": measured.failed}
                    self.ladder.append({**step, **figures})
                    if p99 is None or p99 > LADDER_P99_MS:
                        climbing.remove(contender)

    def _measure_cell(self, contender: Contender, kind: str, connections: int) -> None:
        cell = self.rounds[kind, connections, contender.target.name]
        if cell and max(measured.seconds for measured in cell) > PATIENCE_SECONDS:
            return
        # A window of a few seconds would end before a slow server has answered all connections once: those get as
        # many requests as connections. A process is about as fast with many connections as with one.
        alone = self.rounds[kind, 1, contender.target.name]
        slow = connections > 1 and alone[0].per_second * self.durations.window < 2 * connections
        window = Pace(connections=connections, seconds=self.durations.window, warm_up=self.durations.warm_up)
        once = Pace(connections=connections, requests=connections)
        cell.append(self._measure(contender, kind, once if slow else window))

    def _measure(self, contender: Contender, kind: str, pace: Pace) -> Measurement:
        others = {server.target.pid for server in self.contenders} - {contender.target.pid}
        measured = measure(contender.target, body=contender.body(kind), pace=pace, bystanders=sorted(others))
        if contender.target.name in {PLATFORM, PER_CORE}:
            self.completed += measured.completed
        return measured

    def results(self) -> list[dict[str, Any]]:
        """Return the medians of all cells."""
        return [
            {"kind": kind, "connections": connections, "server": server, "rounds": len(cell)}
            | Measurement.of_rounds(cell).model_dump(exclude={"first_error"})
            for (kind, connections, server), cell in self.rounds.items()
        ]


def figure(content: Mapping[str, Any], kind: str, connections: int, server: str, *path: str) -> float | None:
    """Return a figure of a cell, such as `total_ms` and `p50`; None if it was not measured."""
    for result in content["results"]:
        if (result["kind"], result["connections"], result["server"]) == (kind, connections, server):
            value = result
            for name in path:
                value = value[name] if value else None
            return None if value is None else float(value)
    return None


def rate_under(content: Mapping[str, Any], kind: str, server: str, *, p99_ms: float) -> float | None:
    """Return the highest rate of the ladder's steps without failures whose p99 is below a limit, or None."""
    rates = [
        float(step["per_second"])
        for step in content["ladder"]
        if (step["kind"], step["server"], step["failed"]) == (kind, server, 0)
        and step["p99_ms"] is not None
        and step["p99_ms"] < p99_ms
    ]
    return max(rates, default=None)
