"""`python -m benchmarks sizing`: unit costs of the sizing model, and the model checked against two loads.

The model adds up: a request costs its creation, an event of a paced stream its wake-up. Its predictions for two loads
of different size are compared with measurements. The sizing page is made from these figures.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import psycopg
from pydantic import BaseModel, ConfigDict

from benchmarks import published, slow_streams, storage
from benchmarks.load import Pace, cpu_seconds, measure, proportional_mb
from benchmarks.matrix import BURST, PROMPT, SHORT
from benchmarks.report import Floor
from benchmarks.stack import Client, Stack, ask, running, tell

TOKENS = 64
PACED = "mock-d50-f200"  # 64 tokens in 3.35 seconds
PACED_STREAMS = 80
CHECKED_STREAMS = (40, 160)
CHAIN_TURNS = 20
# Not exact, as events get cheaper when more of them share a wake-up: four times the load takes less than four times the
# CPU.
MOST_ERROR = 0.4
# Above this, waiting for a free core makes latency grow faster than the load.
UTILISATION = 0.6


class Costs(BaseModel):
    """Costs of the parts of a load. CPU of the platform's process and of PostgreSQL in milliseconds."""

    model_config = ConfigDict(frozen=True)

    json_ms: float
    stream_ms: float
    event_ms: float
    slow_event_ms: float
    turn_ms: float
    background_web_ms: float
    background_worker_ms: float
    database_json_ms: float
    database_stream_ms: float
    database_background_ms: float
    web_mb: float
    worker_mb: float
    stream_kb: float
    disk_bytes: float
    wal_bytes: float
    connections_web: int
    connections_worker: int

    def web_ms(self, *, json: float = 0, streams: float = 0, events: float = 0, background: float = 0) -> float:
        """Return the milliseconds of CPU per second that the web process needs for these rates per second."""
        requests = self.json_ms * json + self.stream_ms * streams + self.background_web_ms * background
        return requests + self.event_ms * events

    def database_ms(self, *, json: float = 0, streams: float = 0, background: float = 0) -> float:
        """Return the milliseconds of CPU per second that PostgreSQL needs for these rates per second."""
        stored = self.database_json_ms * json + self.database_stream_ms * streams
        return stored + self.database_background_ms * background


class Check(BaseModel):
    """The number of cores that the model predicts for a load, and the number that was measured."""

    model_config = ConfigDict(frozen=True)

    streams: int
    per_second: float
    predicted: float
    measured: float

    @property
    def error(self) -> float | None:
        """The relative error of the prediction, or None if no CPU was measured."""
        return self.predicted / self.measured - 1 if self.measured else None

    def floor(self) -> Floor:
        """Return the limit of the error."""
        error = None if self.error is None else abs(self.error)
        return Floor(name=f"{self.streams} paced streams: error of the prediction", figure=error, limit=MOST_ERROR)


def costs(stack: Stack, *, seconds: float, background: int) -> Costs:
    """Measure all costs on one web process and one worker."""
    platform = stack.platform
    if stack.worker_pid is None:
        raise RuntimeError("the stack has no worker")
    web_mb, worker_mb = proportional_mb(platform.pid), proportional_mb(stack.worker_pid)
    pace = Pace(connections=16, seconds=seconds, warm_up=1.0)
    single = measure(platform, body={"model": BURST, "input": PROMPT}, pace=pace)
    stream = measure(platform, body={"model": BURST, "input": PROMPT, "stream": True}, pace=pace)
    last = _chain(stack)
    plain = measure(platform, body={"model": SHORT, "input": PROMPT}, pace=pace)
    turn = measure(platform, body={"model": SHORT, "input": PROMPT, "previous_response_id": last}, pace=pace)
    paced_pace = Pace(connections=PACED_STREAMS, seconds=8.0, warm_up=4.0, ramp=3.0)
    paced = measure(platform, body={"model": PACED, "input": PROMPT, "stream": True}, pace=paced_pace)
    tell("slow streams")
    slow = slow_streams.measured(platform, streams=200, processes=1)
    tell("storage")
    every = Pace(connections=64, requests=1000)
    body = {"model": BURST, "input": PROMPT, "stream": True}
    stored = storage.measure(stack.admin, lambda: measure(platform, body=body, pace=every).completed)
    tell("background responses")
    web, worker, database = _background(stack, runs=background)
    return Costs(
        json_ms=single.cpu_ms_per_request,
        stream_ms=stream.cpu_ms_per_request,
        event_ms=max(0.0, paced.cpu_ms_per_request - stream.cpu_ms_per_request) / TOKENS,
        slow_event_ms=slow.cpu_us_per_event / 1000,
        turn_ms=max(0.0, turn.cpu_ms_per_request - plain.cpu_ms_per_request),
        background_web_ms=web,
        background_worker_ms=worker,
        database_json_ms=single.database_ms_per_request or 0.0,
        database_stream_ms=stream.database_ms_per_request or 0.0,
        database_background_ms=database,
        web_mb=web_mb,
        worker_mb=worker_mb,
        stream_kb=slow.kb_per_stream,
        disk_bytes=stored.disk,
        wal_bytes=stored.wal,
        connections_web=_connections(stack, platform.pid),
        connections_worker=_connections(stack, stack.worker_pid),
    )


def _chain(stack: Stack) -> str:
    previous: dict[str, str] = {}
    for _ in range(CHAIN_TURNS):
        made = ask(stack.platform, "POST", "/responses", {"model": SHORT, "input": PROMPT, **previous})
        previous = {"previous_response_id": made["id"]}
    return previous["previous_response_id"]


def _background(stack: Stack, *, runs: int) -> tuple[float, float, float]:
    """Return the CPU milliseconds of web, worker and PostgreSQL for each background response."""
    pids = [stack.platform.pid, stack.worker_pid, stack.platform.database_pid]
    client, body = Client(stack.platform), {"model": BURST, "input": PROMPT, "background": True}
    before = [cpu_seconds(pid) for pid in pids if pid]
    for _ in range(runs):
        client.ask("POST", "/responses", body)
    with psycopg.connect(stack.admin, autocommit=True) as database:
        waiting = "SELECT 1 FROM responses_response WHERE background AND ended_at IS NULL LIMIT 1"
        while database.execute(waiting).fetchone():
            time.sleep(0.2)
    web, worker, stored = (
        1000 * (cpu_seconds(pid) - spent) / runs for pid, spent in zip(filter(None, pids), before, strict=True)
    )
    return web, worker, stored


def _connections(stack: Stack, pid: int) -> int:
    """Return how many connections to PostgreSQL a process and its descendants have."""
    with psycopg.connect(stack.admin) as database:
        port = database.info.port
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(
        connection.raddr.port == port
        for process in family
        for connection in process.net_connections("tcp")
        if connection.raddr and connection.status == psutil.CONN_ESTABLISHED
    )


def checks(stack: Stack, found: Costs, *, sizes: Sequence[int]) -> Iterator[Check]:
    """Compare the prediction with the CPU of paced streams."""
    for streams in sizes:
        tell(f"checking the model with {streams} streams")
        pace = Pace(connections=streams, seconds=8.0, warm_up=4.0, ramp=3.0)
        body = {"model": PACED, "input": PROMPT, "stream": True}
        cpu, began = cpu_seconds(stack.platform.pid), time.monotonic()
        result = measure(stack.platform, body=body, pace=pace)
        cores = (cpu_seconds(stack.platform.pid) - cpu) / (time.monotonic() - began)
        rate = result.started / (time.monotonic() - began)
        predicted = found.web_ms(streams=rate, events=rate * TOKENS) / 1000
        yield Check(streams=streams, per_second=rate, predicted=predicted, measured=cores)


# -- the page ----------------------------------------------------------------------------------------------------------


def unit_costs(content: Mapping[str, Any]) -> str:
    """Return the table of costs."""
    cost, number = Costs.model_validate(content["costs"]), published.number
    spent = [
        ("JSON response", cost.json_ms, cost.database_json_ms),
        ("stream, whose tokens come at once", cost.stream_ms, cost.database_stream_ms),
        ("each event of a stream at 20 per second, in addition", cost.event_ms, None),
        ("each event of a stream at 1 per second, in addition", cost.slow_event_ms, None),
        (f"history of {CHAIN_TURNS} turns, in addition", cost.turn_ms, None),
        ("background response: on web", cost.background_web_ms, None),
        ("background response: on a worker", cost.background_worker_ms, cost.database_background_ms),
    ]
    others = [
        ("memory of a web process, MiB", cost.web_mb),
        ("memory of a worker, MiB", cost.worker_mb),
        ("memory of an open stream, KiB", cost.stream_kb),
        ("disk of a stored response, KiB", cost.disk_bytes / 1024),
        ("WAL of a stored response, KiB", cost.wal_bytes / 1024),
        ("connections to PostgreSQL of a web process", cost.connections_web),
        ("connections to PostgreSQL of a worker", cost.connections_worker),
    ]
    at = content["conditions"]
    return "\n\n".join(
        [
            published.table(
                ["CPU milliseconds", "platform", "PostgreSQL"],
                [[name, number(platform), number(database)] for name, platform, database in spent],
            ),
            published.table(["other costs", ""], [[name, number(value)] for name, value in others]),
            f"Responses of {TOKENS} tokens, Python {at['python']}, {at['date']}.",
        ]
    )


def example(content: Mapping[str, Any]) -> str:
    """Return a worked example with the formulas."""
    cost, n = Costs.model_validate(content["costs"]), published.number
    json, streams, background, length, days = 50, 50, 10, 10, 30
    events, open_streams, responses = streams * TOKENS, streams * length, json + streams + background
    web = cost.web_ms(json=json, streams=streams, events=events, background=background) / 1000
    worker = cost.background_worker_ms * background / 1000
    database = cost.database_ms(json=json, streams=streams, background=background) / 1000
    processes, workers = (max(1, math.ceil(cores / UTILISATION)) for cores in (web, worker))
    workers += 1
    memory = processes * cost.web_mb + workers * cost.worker_mb + open_streams * cost.stream_kb / 1024
    wal, disk = responses * cost.wal_bytes / 2**20, responses * 86400 * days * cost.disk_bytes / 2**30
    connections = processes * cost.connections_web + workers * cost.connections_worker
    parts = {
        "JSON": f"{json} × {n(cost.json_ms)}",
        "streams": f"{streams} × {n(cost.stream_ms)}",
        "events": f"{events:,} × {n(cost.event_ms)}",
        "background": f"{background} × {n(cost.background_web_ms)}",
    }
    rows = [
        ["cores of web", f"({' + '.join(parts.values())}) ÷ 1000", n(web)],
        [f"web processes, at {UTILISATION:.0%}", f"{n(web)} ÷ {UTILISATION}", str(processes)],
        ["cores of workers", f"{background} × {n(cost.background_worker_ms)} ÷ 1000", n(worker)],
        ["workers, and one that may fail", f"{n(worker)} ÷ {UTILISATION} + 1", str(workers)],
        ["cores of PostgreSQL", "likewise", n(database)],
        ["WAL per second, MiB", f"{responses} × {n(cost.wal_bytes / 1024)} ÷ 1024", n(wal)],
        [
            f"disk after {days} days, GiB",
            f"{responses} × 86,400 × {days} × {n(cost.disk_bytes / 1024)} ÷ 1024²",
            n(disk),
        ],
        ["memory of all processes, MiB", f"with {open_streams} open streams", n(memory)],
        ["connections to PostgreSQL", "of all processes", str(connections)],
    ]
    load = (
        f"For {json} JSON responses, {streams} streams of {TOKENS} tokens over {length} seconds and {background} "
        f"background responses per second, kept for {days} days:"
    )
    return f"{load}\n\n{published.table(['', 'from', 'needed'], rows)}"


def accuracy(content: Mapping[str, Any]) -> str:
    """Return a table of predicted and measured cores for two loads."""
    rows = []
    for each in map(Check.model_validate, content["checks"]):
        figures = map(published.number, (each.per_second, each.predicted, each.measured))
        rows.append([str(each.streams), *figures, "–" if each.error is None else f"{each.error:+.0%}"])
    return published.table(["open streams", "streams/s", "cores of web, predicted", "measured", "error"], rows)


VIEWS = {"costs": unit_costs, "example": example, "accuracy": accuracy}


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Measure and print the costs and the checks. With `--check`, return 1 if a prediction is wrong."""
    parser = published.parser("sizing", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="duration of a measurement (default 4)")
    parser.add_argument("--background", type=int, default=200, help="number of background responses (default 200)")
    options = parser.parse_args(arguments)
    with running(directory=directory, with_worker=True) as stack:
        found = costs(stack, seconds=options.seconds, background=options.background)
        checked = list(checks(stack, found, sizes=CHECKED_STREAMS))
    content = {
        "conditions": published.conditions(),
        "costs": found.model_dump(),
        "checks": [check.model_dump() for check in checked],
    }
    floors = [check.floor() for check in checked]
    for text in (*(view(content) for view in VIEWS.values()), *(floor.text() for floor in floors)):
        print(text)
    return published.conclude("sizing", options, content=content, floors=floors)
