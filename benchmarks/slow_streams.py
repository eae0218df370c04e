"""`python -m benchmarks slow-streams`: many streams at one event per second, and the cost of each stream.

Every token carries the time at which the mock sent it, so that the lateness of each delta at the client is measured.
The number of streams follows the speed of the machine. With two web processes it is the number of streams of 64 tokens
that the pass-through serves per second; with one web process it is 12 % of that number.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import BaseModel, ConfigDict

from benchmarks import published
from benchmarks.load import Measurement, Pace, Spread, Target, cpu_seconds, measure, proportional_mb
from benchmarks.matrix import BURST, PROMPT
from benchmarks.report import Floor
from benchmarks.stack import Stack, running, tell

# A pass-through of 5,000 streams/s stands for 5,000 slow streams on two processes, and 600 on one.
SHARES = {2: 1.0, 1: 0.12}
MOST_P99_MS = {2: 100.0, 1: 20.0}
MOST_KB = 50.0
WINDOW_SECONDS = 10.0
SETTLE_SECONDS = 3.0
# Opening streams costs more than keeping them: at most this many per second and process.
OPENED_PER_SECOND = 60
FEW = 20
# Share of the window at its start, and again at its end, during which no CPU is measured.
MARGIN = 0.1


class SlowStreams(BaseModel):
    """Streams at one event per second, served by several web processes. CPU and memory are sums over the processes."""

    model_config = ConfigDict(frozen=True)

    streams: int
    processes: int
    lateness_ms: Spread | None
    cpu_us_per_event: float
    kb_per_stream: float
    cores: float
    failed: int
    first_error: str

    def floors(self) -> Iterator[Floor]:
        """Yield the limits."""
        name = f"{self.streams:,} streams on {self.processes} {'process' if self.processes == 1 else 'processes'}"
        late = self.lateness_ms.p99 if self.lateness_ms else None
        yield Floor(name=f"{name}: lateness of a delta, p99 ms", figure=late, limit=MOST_P99_MS[min(self.processes, 2)])
        yield Floor(name=f"{name}: KB per stream", figure=self.kb_per_stream, limit=MOST_KB)
        yield Floor(name=f"{name}: failed", figure=self.failed, limit=0)

    def line(self) -> str:
        """Return the report in one line."""
        late = self.lateness_ms
        times = f"p50 {late.p50:.1f}, p99 {late.p99:.1f}, max {late.max:.0f} ms late" if late else "no delta"
        return (
            f"{self.streams:,} streams, {self.processes} web: {times}; {self.cpu_us_per_event:.0f} us of CPU per "
            f"event, {self.kb_per_stream:.0f} KB per stream, {self.cores:.2f} cores; {self.failed} failed "
            f"{self.first_error}"
        )


def measured(platform: Target, *, streams: int, processes: int, seconds: float = WINDOW_SECONDS) -> SlowStreams:
    """Keep a number of streams open and measure a window in which none begins or ends."""
    _stream(platform, streams=FEW, ramp=0.2, window=1.0)  # imports and connections are not part of a stream's memory
    ramp = max(2.0, streams / (OPENED_PER_SECOND * processes))
    before = proportional_mb(platform.pid)
    # Measured in this thread while the load runs in the other: an error of the load ends the waits, and both end
    # together.
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(_stream, platform, streams=streams, ramp=ramp, window=seconds)
        wait([load], timeout=ramp + SETTLE_SECONDS + seconds * MARGIN)
        cpu, began = cpu_seconds(platform.pid), time.monotonic()
        wait([load], timeout=seconds * (1 - 2 * MARGIN))
        cores = (cpu_seconds(platform.pid) - cpu) / (time.monotonic() - began)
        memory = proportional_mb(platform.pid)
        result = load.result()
    return SlowStreams(
        streams=streams,
        processes=processes,
        lateness_ms=result.delta_age_ms,
        cpu_us_per_event=1e6 * cores / streams,
        kb_per_stream=1024 * (memory - before) / streams,
        cores=cores,
        failed=result.failed,
        first_error=result.first_error[:200],
    )


def _stream(platform: Target, *, streams: int, ramp: float, window: float) -> Measurement:
    settle = SETTLE_SECONDS if window > 1 else 0
    # Every stream outlasts the window by a few seconds, so that none ends and begins again in it.
    model = f"mock-t{int(ramp + settle + window) + 4}-d1000-f1000-ts"
    pace = Pace(connections=streams, ramp=ramp, warm_up=ramp + settle, seconds=window, stamped=True)
    return measure(platform, body={"model": model, "stream": True, "input": PROMPT}, pace=pace)


def capacity(stack: Stack) -> float:
    """Return how many streams of 64 tokens per second the pass-through serves."""
    options: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    body = {"model": BURST, "messages": [{"role": "user", "content": PROMPT}], **options}
    pace = Pace(connections=64, seconds=2.0, warm_up=0.5)
    return median(measure(stack.proxy, body=body, pace=pace).per_second for _ in range(3))


def table(content: Mapping[str, Any]) -> str:
    """Return the table of the documentation."""
    number = published.number
    rows = []
    for run in content["runs"]:
        late = run["lateness_ms"] or {}
        figures = (late.get("p50"), late.get("p99"), run["cpu_us_per_event"], run["kb_per_stream"], run["cores"])
        rows.append([f"{run['streams']:,}", str(run["processes"]), *map(number, figures)])
    head = ["streams", "web processes", "p50 ms late", "p99", "CPU µs per event", "KB per stream", "cores"]
    at = content["conditions"]
    rate = number(content["pass_through"])
    return (
        f"{published.table(head, rows)}\n\n{at['cores']} cores, {at['date']}; the pass-through served {rate} streams/s."
    )


VIEWS = {"table": table}


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Measure and print the figures. With `--check`, return 1 if a limit is exceeded."""
    parser = published.parser("slow-streams", description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], help="web processes (default 1 2)")
    parser.add_argument("--streams", type=int, help="number of streams (default according to the pass-through)")
    parser.add_argument("--seconds", type=float, default=WINDOW_SECONDS, help="that are measured (default 10)")
    options = parser.parse_args(arguments)
    runs, rates = [], []
    for processes in options.processes:
        with running(directory=directory, processes=processes) as stack:
            rates.append(capacity(stack))
            share = SHARES[min(processes, 2)]
            streams = options.streams or max(FEW, round(rates[-1] * share))
            tell(
                f"{streams:,} streams on {processes} web processes; the pass-through serves {rates[-1]:,.0f} streams/s"
            )
            size = {"streams": streams, "processes": processes}
            runs.append(measured(stack.platform, **size, seconds=options.seconds))
    floors = [floor for run in runs for floor in run.floors()]
    for line in (*(run.line() for run in runs), *(floor.text() for floor in floors)):
        print(line)
    content = {
        "conditions": published.conditions(),
        "pass_through": median(rates),
        "runs": [run.model_dump() for run in runs],
    }
    return published.conclude("slow-streams", options, content=content, floors=floors)
