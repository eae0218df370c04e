"""The default command: the platform against its bare upstream and a pass-through proxy.

Targets alternate in each round, so that a drift of the machine affects all of them equally. At the end, the stored rows
are compared with the number of requests.
"""

import json
import os
import platform as machine
import signal
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psycopg
from pydantic import BaseModel, ConfigDict

from benchmarks import profiling, report, storage
from benchmarks.load import Api, Measurement, Pace, Target, measure
from benchmarks.report import Count
from benchmarks.stack import Stack, ask, running, statements, tell
from benchmarks.storage import Storage

RESULTS = Path(__file__).parent / "results"
PROMPT = "Say something plain about servers, please, in one short paragraph."
MOCK_ANSWER_OF_FOUR_TOKENS = " the model answers with"
PROFILE_SECONDS = 5.0

BURST = "mock"  # 64 tokens in one write
PACED = "mock-d20-f200-ts"  # 64 tokens: 200 ms to the first, then 20 ms each, with timestamps
SHORT = "mock-t4"


class Group(StrEnum):
    """Groups of cells that can be selected."""

    MATRIX = "matrix"
    PACED = "paced"
    CONNECTIONS = "connections"
    CHAIN = "chain"
    STORAGE = "storage"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Size of a benchmark run, and whether it is long enough to evaluate speed."""

    concurrency: tuple[int, ...] = (1, 16, 64, 256)
    rounds: int = 3
    seconds: float = 2.0
    warm_up: float = 0.5
    paced_connections: int = 64
    paced_seconds: float = 4.0
    simultaneous: int = 1000
    turns: int = 200
    stored: int = 1500
    judges_speed: bool = True


FULL = Scale()
SMOKE = Scale(
    concurrency=(1, 16),
    rounds=1,
    seconds=0.5,
    warm_up=0.2,
    paced_connections=8,
    paced_seconds=2.0,
    simultaneous=50,
    turns=5,
    stored=50,
    judges_speed=False,
)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A load. ``history`` is the number of previous turns, chained by id or sent in the request (``inline``).

    Mock and proxy receive the messages that the platform sends upstream for the chain. The platform does not store a
    response with inline history.
    """

    name: str
    stream: bool
    model: str
    pace: Pace
    targets: tuple[str, ...] = ("mock", "proxy", "platform")
    history: int = 0
    inline: bool = False

    def body(self, *, api: Api, previous: str | None) -> dict[str, Any]:
        """Return the request body. ``previous`` is the id of the last response of a chain."""
        body: dict[str, Any] = {"model": self.model, "stream": self.stream}
        question = {"role": "user", "content": PROMPT}
        turn = [question, {"role": "assistant", "content": MOCK_ANSWER_OF_FOUR_TOKENS}]
        messages = [*turn * self.history, question]
        if api == "chat":
            return {
                **body,
                "messages": messages,
                **({"stream_options": {"include_usage": True}} if self.stream else {}),
            }
        if self.inline:
            return {**body, "input": messages, "store": False}
        return {**body, "input": PROMPT, **({"previous_response_id": previous} if self.history else {})}


def cells(groups: Sequence[Group], scale: Scale) -> Iterator[Cell]:
    """Yield the cells of the groups in the order of measurement."""
    pace = Pace(connections=1, seconds=scale.seconds, warm_up=scale.warm_up)
    if Group.MATRIX in groups:
        for name, stream in (("stream", True), ("json", False)):
            for connections in scale.concurrency:
                many = replace(pace, connections=connections)
                yield Cell(name=f"{name} c={connections}", stream=stream, model=BURST, pace=many)
    if Group.PACED in groups:
        paced = replace(pace, connections=scale.paced_connections, seconds=scale.paced_seconds, stamped=True)
        yield Cell(name=f"paced stream c={scale.paced_connections}", stream=True, model=PACED, pace=paced)
    if Group.CONNECTIONS in groups:
        together = Pace(connections=scale.simultaneous, requests=scale.simultaneous)
        yield Cell(name=f"{scale.simultaneous} at once", stream=True, model=PACED, pace=together)
    if Group.CHAIN in groups:
        # At concurrency 1, because the cost of one request matters here, not the throughput.
        first = Cell(name="turn 1", stream=False, model=SHORT, pace=pace)
        last = replace(first, name=f"turn {scale.turns}", history=scale.turns - 1)
        yield from (first, last, replace(last, name=f"{last.name} inline", inline=True, targets=("platform",)))


class Result(BaseModel):
    """Results of a cell for a target: medians and individual rounds."""

    model_config = ConfigDict(frozen=True)

    cell: str
    target: str
    median: Measurement
    rounds: list[Measurement]


@dataclass(kw_only=True)
class Session:
    """Measurements on one stack. ``stored`` and ``unstored`` count the completed requests to the platform."""

    stack: Stack
    stored: int = 0
    unstored: int = 0
    _chains: dict[int, str] = field(default_factory=dict)

    def measure_all(self, wanted: Sequence[Cell], *, rounds: int) -> list[Result]:
        """Measure the cells in rounds; return the results in the order of the cells."""
        measured: defaultdict[tuple[str, str], list[Measurement]] = defaultdict(list)
        for number in range(1, rounds + 1):
            for cell in wanted:
                tell(f"round {number} of {rounds}: {cell.name}")
                for target in self.stack.targets:
                    if target.name in cell.targets:
                        measured[cell.name, target.name].append(self.measure(cell, target))
        return [
            Result(cell=cell, target=target, median=Measurement.of_rounds(each), rounds=each)
            for (cell, target), each in measured.items()
        ]

    def measure(self, cell: Cell, target: Target) -> Measurement:
        """Measure a cell once."""
        bystanders = [other.pid for other in self.stack.targets if other is not target]
        if target is not self.stack.platform:
            body = cell.body(api=target.api, previous=None)
            return measure(target, body=body, pace=cell.pace, bystanders=bystanders)
        body = cell.body(api=target.api, previous=self._last_of_chain(0 if cell.inline else cell.history))
        before = statements(self.stack.admin)
        measurement = measure(target, body=body, pace=cell.pace, bystanders=bystanders)
        self.count(cell, measurement)
        costs = (after - begun for after, begun in zip(statements(self.stack.admin), before, strict=True))
        names = ("statements_per_request", "rows_per_request")
        requests = max(1, measurement.started)
        return measurement.model_copy(update={name: cost / requests for name, cost in zip(names, costs, strict=True)})

    def measure_storage(self, responses: int) -> Storage:
        """Measure the bytes of streams that are sent in three equal parts."""
        pace = Pace(connections=report.JUDGED_CONCURRENCY, requests=responses)
        cell = Cell(name="storage", stream=True, model=BURST, pace=pace)
        return storage.measure(self.stack.admin, lambda: self.measure(cell, self.stack.platform).completed)

    def count(self, cell: Cell, measurement: Measurement) -> None:
        """Add the completed requests of a measurement."""
        if cell.inline:
            self.unstored += measurement.completed
        else:
            self.stored += measurement.completed

    def _last_of_chain(self, turns: int) -> str | None:
        """Return the id of the last response of a chain with a number of turns, created at its first use."""
        if turns and turns not in self._chains:
            tell(f"making a chain of {turns} turns")
            last: dict[str, str] = {}
            for _ in range(turns):
                body = {"model": SHORT, "input": PROMPT, **last}
                last = {"previous_response_id": ask(self.stack.platform, "POST", "/responses", body)["id"]}
            self._chains[turns] = last["previous_response_id"]
            self.stored += turns
        return self._chains.get(turns)

    def expected_rows(self) -> Counter[str]:
        """Return the expected rows: an input item, an output item, a turn and a gapless log per stored response."""
        completed = self.stored + self.unstored
        return Counter(
            {
                "responses": completed,
                "responses completed": completed,
                "items": 2 * self.stored,
                "placements": 2 * self.stored,
                "turns": completed,
                "usage rows": completed,
                "responses with a whole log": self.stored,
            }
        )

    def counts(self) -> list[Count]:
        """Compare the expected with the stored rows."""
        # Executed as superuser, because row-level security hides all rows from other roles that have not set a team.
        # Without waiting: everything that a client was notified of must be committed.
        with psycopg.connect(self.stack.admin) as connection:
            found = {kind: connection.execute(query).fetchone() for kind, query in _STORED.items()}
        return [
            Count(kind=kind, expected=expected, found=row[0] if (row := found[kind]) else 0)
            for kind, expected in self.expected_rows().items()
        ]


_STORED = {
    "responses": b"SELECT count(*) FROM responses_response",
    "responses completed": b"SELECT count(*) FROM responses_response WHERE status = 'completed'",
    "items": b"SELECT count(*) FROM conversations_item",
    "placements": b"SELECT count(*) FROM conversations_placement",
    "turns": b"SELECT count(*) FROM responses_turn",
    "usage rows": b"SELECT count(*) FROM tenants_usagerecord",
    "responses with a whole log": b"""
        SELECT count(*) FROM (
            SELECT response_id FROM responses_eventbatch GROUP BY response_id
            HAVING min(first_sequence) = 0 AND sum(last_sequence - first_sequence + 1) = max(last_sequence) + 1
        ) AS gapless""",
}


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Measure, print the table and write the results. With `--check`, return 1 if a limit is exceeded."""
    options = _options(arguments)
    signal.signal(signal.SIGTERM, _end)
    given = {name: getattr(options, name) for name in ("rounds", "concurrency", "seconds")}
    scale = replace(SMOKE if options.smoke else FULL, **{name: value for name, value in given.items() if value})
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / time.strftime("%Y%m%d-%H%M%S.json")
    with running(directory=directory, server=options.server, proxy_python=options.proxy_python) as stack:
        session = Session(stack=stack)
        results = session.measure_all(list(cells(options.groups, scale)), rounds=scale.rounds)
        stored = None
        if Group.STORAGE in options.groups:
            tell("storage")
            stored = session.measure_storage(scale.stored)
        if options.profile:
            _profile(session, file.with_name(f"{file.stem}-profile.txt"))
        counts = session.counts()
    measured = {(result.cell, result.target): result.median for result in results}
    floors = report.floors(results=measured, counts=counts, turns=scale.turns, speed=scale.judges_speed)
    if stored and scale.judges_speed:
        floors += stored.floors()
    content = {
        "conditions": {
            "options": vars(options),
            "proxy": stack.proxy_parts,
            "cores": os.cpu_count(),
            "system": machine.platform(),
            "python": machine.python_version(),
        },
        "results": [result.model_dump() for result in results],
        "storage": stored.model_dump() if stored else None,
        "rows": [asdict(count) for count in counts],
        "floors": [{**asdict(floor), "holds": floor.holds} for floor in floors],
    }
    file.write_text(json.dumps(content, indent=1))
    tell(f"written to {file}")
    for line in stored.lines() if stored else ():
        print(line)
    print(report.text(results=measured, counts=counts, floors=floors, proxy_parts=stack.proxy_parts))
    return 1 if options.check and not all(floor.holds for floor in floors) else 0


def _options(arguments: Sequence[str]) -> Namespace:
    parser = ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="check in seconds that everything works")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is exceeded")
    parser.add_argument("--rounds", type=int, help=f"number of measurements of each cell (default {FULL.rounds})")
    parser.add_argument(
        "--concurrency", type=lambda text: tuple(map(int, text.split(","))), help="of the matrix, such as 1,64"
    )
    parser.add_argument("--seconds", type=float, help=f"duration of each measurement (default {FULL.seconds})")
    parser.add_argument("--server", choices=("daphne", "uvicorn"), default="uvicorn", help="the platform's ASGI server")
    parser.add_argument(
        "--groups", nargs="+", type=Group, choices=list(Group), default=list(Group), help="groups (default all)"
    )
    parser.add_argument("--profile", action="store_true", help="profile the web process with py-spy at the end")
    parser.add_argument(
        "--proxy-python", default=sys.executable, help="interpreter of the proxy, such as one with uvloop and httptools"
    )
    return parser.parse_args(arguments)


def _profile(session: Session, file: Path) -> None:
    """Profile streams with py-spy, and list the SQL of a stream and of the last turn of a chain."""
    # py-spy slows the process down, so these figures are not in the table. SQL is counted at concurrency 1, where no
    # two requests share a batch.
    stack, raw = session.stack, file.with_suffix(".raw")
    together = Pace(connections=report.JUDGED_CONCURRENCY, seconds=PROFILE_SECONDS, warm_up=1.0)
    with profiling.recording(pid=stack.platform.pid, seconds=PROFILE_SECONDS, file=raw):
        session.measure(Cell(name="profile", stream=True, model=BURST, pace=together), stack.platform)
    lines = [profiling.summarised(raw.read_text()).text()]
    stream = Cell(name="a stream", stream=True, model=BURST, pace=Pace(connections=1, seconds=1.0))
    for cell in (stream, replace(stream, name="turn 10 of a chain", stream=False, model=SHORT, history=9)):
        session.measure(cell, stack.platform)
        with psycopg.connect(stack.admin, autocommit=True) as connection:
            connection.execute("SELECT pg_stat_statements_reset()")
        measured = session.measure(cell, stack.platform)
        lines += [f"-- SQL of {cell.name}", *profiling.statements(stack.admin, requests=measured.started)]
    file.write_text("\n".join([*lines, ""]))
    print(file.read_text())


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    # An exception unwinds the context managers, which stop all processes.
    raise SystemExit(128 + number)
