"""`python -m benchmarks fairness`: the effect on quiet teams when another team sends a hundred times their load.

All teams use the same web processes and workers, and an upstream with a fixed delay. The quiet teams request JSON,
streams and background runs at random times, alternately alone and beside the loud team. The loud team sends the same
kinds of requests at a hundred times the rate of each quiet team. Clients and upstream have a higher priority, if the
system permits it, because they run on other machines in production.
"""

import asyncio
import contextlib
import multiprocessing
import random
import sys
import time
from argparse import Namespace
from array import array
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import orjson
import psutil
import psycopg
from aiohttp import web

from benchmarks import published
from benchmarks.load import Answers, Pace, drive
from benchmarks.matrix import PROMPT
from benchmarks.mixed import Team, created_teams, quantiles
from benchmarks.report import Floor
from benchmarks.stack import MANAGE, Servers, Stack, running_stack, tell
from launcher.address import any_free_port
from launcher.errors import LaunchError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# 0.3 s to the first of 16 tokens, 0.6 s in total.
MODEL = "mock-t16-d20-f300"
MOST_RISE = 1.2
WARM_UP_SECONDS = 3.0
LOUD_CONNECTIONS = 400
PRIORITY = -10
# Set regardless of this process's environment, which a test run may have set.
ENVIRONMENT = {"EGRESS_ALLOW": "127.0.0.1", "WEBHOOK_CONCURRENCY": "200"}
JSON, FIRST_TEXT, STREAM = "JSON response", "stream, first text", "stream"
STARTED, BACKGROUND, WEBHOOK = "background, in_progress", "background run", "webhook"
JUDGED = (JSON, FIRST_TEXT, STREAM, BACKGROUND, WEBHOOK)
"""Kinds with a limit. Their latency includes the upstream's delay, as for clients. `STARTED` is only reported."""

Times = Mapping[str, "array[float]"]


class Receiver:
    """A receiver of webhooks in a separate process, which records the arrival times of events of quiet teams."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self.url = f"http://127.0.0.1:{any_free_port()}"
        self._process = context.Process(target=_receive, args=(other, self.url), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        self._pipe.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid or 0

    def arrivals(self) -> Mapping[str, float]:
        """Return when the event of each response arrived."""
        self._pipe.send(None)
        found: Mapping[str, float] = self._pipe.recv()
        return found


def _receive(pipe: "Connection[Any, Any]", url: str) -> None:
    arrived: dict[str, float] = {}

    async def quiet(request: web.Request) -> web.Response:
        at = time.monotonic()
        arrived.setdefault(orjson.loads(await request.read())["data"]["id"], at)
        return web.Response()

    async def loud(_: web.Request) -> web.Response:
        return web.Response()

    def report() -> None:
        pipe.recv()
        pipe.send(arrived)

    async def serve() -> None:
        app = web.Application()
        app.add_routes([web.post("/quiet", quiet), web.post("/loud", loud)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", int(url.rpartition(":")[2])).start()
        asyncio.get_running_loop().add_reader(pipe.fileno(), report)
        pipe.send(None)
        await asyncio.Event().wait()

    asyncio.run(serve())


class Clients:
    """The clients of the quiet teams; `times` are milliseconds since the time at which a request was due."""

    def __init__(self, session: aiohttp.ClientSession, teams: Sequence[Team], *, seed: int) -> None:
        self._session, self._teams, self._random = session, teams, random.Random(seed)
        self.times: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
        self.created: dict[str, float] = {}
        self.errors: Counter[str] = Counter()

    async def send(self, *, rate: float, seconds: float) -> None:
        """Send each kind of request at this rate per second and team, at random times, and wait for the answers."""
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for team in self._teams:
                for act in (self._json, self._stream, self._background):
                    group.create_task(self._arrivals(group, partial(act, team), rate=rate, end=end))

    async def _arrivals(
        self, group: asyncio.TaskGroup, act: Callable[[float], Awaitable[None]], *, rate: float, end: float
    ) -> None:
        due = time.monotonic()
        while (due := due + self._random.expovariate(rate)) < end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            group.create_task(self._counted(act, due))

    async def _counted(self, act: Callable[[float], Awaitable[None]], due: float) -> None:
        try:
            await act(due)
        except (aiohttp.ClientError, TimeoutError) as failed:
            self.errors[f"{type(failed).__name__} {failed}"[:200]] += 1

    def _note(self, kind: str, due: float) -> None:
        self.times[kind].append(1000 * (time.monotonic() - due))

    async def _json(self, team: Team, due: float) -> None:
        async with self._answer(team, {}) as answer:
            answer.raise_for_status()
            await answer.read()
        self._note(JSON, due)

    async def _stream(self, team: Team, due: float) -> None:
        await self._follow(team, due, {"stream": True}, {b"response.output_text.delta": FIRST_TEXT}, end=STREAM)

    async def _background(self, team: Team, due: float) -> None:
        body = {"stream": True, "background": True}
        await self._follow(team, due, body, {b"response.in_progress": STARTED}, end=BACKGROUND)

    async def _follow(
        self, team: Team, due: float, body: Mapping[str, Any], first: Mapping[bytes, str], *, end: str
    ) -> None:
        noted: set[bytes] = set()
        async with self._answer(team, body) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                event = line[len(b"event: ") :].strip() if line.startswith(b"event: ") else b""
                if event in first and event not in noted:
                    noted.add(event)
                    self._note(first[event], due)
                elif event == b"response.completed":
                    self._note(end, due)
                    noted.add(event)
                elif line.startswith(b"data: ") and end == BACKGROUND and b'"response.created"' in line:
                    self.created[orjson.loads(line[len(b"data: ") :])["response"]["id"]] = due
        if b"response.completed" not in noted:
            self.errors[f"a {end} ended without its last event"] += 1

    def _answer(self, team: Team, body: Mapping[str, Any]) -> Any:
        content = orjson.dumps({"model": MODEL, "input": PROMPT, **body})
        return self._session.post("/v1/responses", data=content, headers=team.headers)


@dataclass(frozen=True, kw_only=True)
class Rise:
    """The latency of one kind of request in milliseconds, of the quiet teams alone and beside the loud one."""

    kind: str
    alone: tuple[float, float]
    beside: tuple[float, float]
    samples: tuple[int, int]

    @property
    def factor(self) -> float | None:
        """The rise of p99, or None if no request was answered on one side."""
        return self.beside[1] / self.alone[1] if all(self.samples) and self.alone[1] else None

    def line(self) -> str:
        """Return the rise in one line."""
        (p50, p99), (loud_p50, loud_p99) = self.alone, self.beside
        return (
            f"{self.kind:24}{self.samples[0]:8,}{p50:10.1f}{p99:10.1f}"
            f"{self.samples[1]:8,}{loud_p50:10.1f}{loud_p99:10.1f}{published.number(self.factor):>8}"
        )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of all rounds. `loud` counts the requests of the loud team by kind: sent, and refused or failed."""

    rises: Sequence[Rise]
    loud: Mapping[str, tuple[int, int]]
    errors: Mapping[str, int]

    def floors(self) -> Iterator[Floor]:
        """Yield the limits."""
        yield Floor(name="errors and refusals of quiet teams", figure=sum(self.errors.values()), limit=0)
        for rise in self.rises:
            if rise.kind in JUDGED:
                yield Floor(name=f"{rise.kind}: p99 beside the loud team ÷ alone", figure=rise.factor, limit=MOST_RISE)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report."""
        yield f"{'ms':24}{'alone':>8}{'p50':>10}{'p99':>10}{'beside':>8}{'p50':>10}{'p99':>10}{'p99 ×':>8}"
        yield from (rise.line() for rise in self.rises)
        for kind, (sent, failed) in self.loud.items():
            yield f"loud team, {kind}: {sent:,} sent, {failed:,} refused or failed"
        yield from (f"{count:,} × {error}" for error, count in self.errors.items())


class Benchmark:
    """The rounds against a running platform. `loud` is the target with the key of the loud team."""

    def __init__(self, stack: Stack, teams: Sequence[Team], receiver: Receiver, options: Namespace) -> None:
        self._stack, self._quiet, self._receiver, self._options = stack, teams[1:], receiver, options
        self._loud = replace(stack.platform, headers={"Authorization": teams[0].headers["Authorization"]})
        self._times: dict[bool, defaultdict[str, array[float]]] = {
            loud: defaultdict(lambda: array("d")) for loud in (False, True)
        }
        self._sent: defaultdict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        self._errors: Counter[str] = Counter()

    async def run(self) -> Outcome:
        """Run all rounds."""
        await self._subscribe()
        await self._part(loud=False, seconds=2.0, keep=False)
        for number in range(self._options.rounds):
            for loud in (False, True) if number % 2 == 0 else (True, False):
                await self._part(loud=loud, seconds=self._options.seconds)
        kinds = (JSON, FIRST_TEXT, STREAM, STARTED, BACKGROUND, WEBHOOK)
        rises = [
            Rise(
                kind=kind,
                alone=quantiles(self._times[False][kind]),
                beside=quantiles(self._times[True][kind]),
                samples=(len(self._times[False][kind]), len(self._times[True][kind])),
            )
            for kind in kinds
        ]
        return Outcome(rises=rises, loud=dict(self._sent), errors=dict(self._errors))

    async def _subscribe(self) -> None:
        async with aiohttp.ClientSession(self._stack.platform.url) as session:
            for path, headers in [("loud", self._loud.headers), *(("quiet", one.headers) for one in self._quiet)]:
                body = {
                    "name": "fairness",
                    "url": f"{self._receiver.url}/{path}",
                    "event_types": ["response.completed"],
                }
                async with session.post("/v1/webhook_endpoints", json=body, headers=headers) as answer:
                    answer.raise_for_status()

    async def _part(self, *, loud: bool, seconds: float, keep: bool = True) -> None:
        """Measure the quiet teams for some seconds, alone or beside the loud one."""
        rate = self._options.rate
        driving = self._begin_loud(rate=rate * self._options.times, seconds=seconds) if loud else {}
        await asyncio.sleep(WARM_UP_SECONDS if loud else 0)
        connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=60)
        async with aiohttp.ClientSession(self._stack.platform.url, connector=connector, timeout=timeout) as session:
            clients = Clients(session, self._quiet, seed=self._options.seed + len(self._times[loud][JSON]))
            await clients.send(rate=rate, seconds=seconds)
        for kind, answers in driving.items():
            found, (sent, failed) = await answers, self._sent[kind]
            self._sent[kind] = (sent + found.started, failed + found.failed)
            if found.first_error:
                tell(f"loud team, {kind}: {found.first_error[:200]}")
        await asyncio.to_thread(drain, self._stack.admin)
        arrived = await asyncio.to_thread(self._receiver.arrivals)
        if not keep:
            return
        for kind, times in clients.times.items():
            self._times[loud][kind].extend(times)
        for response_id, due in clients.created.items():
            if response_id in arrived:
                self._times[loud][WEBHOOK].append(1000 * (arrived[response_id] - due))
            else:
                self._errors["a webhook did not arrive"] += 1
        self._errors.update(clients.errors)

    def _begin_loud(self, *, rate: float, seconds: float) -> Mapping[str, "asyncio.Task[Answers]"]:
        pace = Pace(connections=LOUD_CONNECTIONS, rate=rate, warm_up=0.5, seconds=seconds + WARM_UP_SECONDS + 0.5)
        bodies: Mapping[str, Mapping[str, Any]] = {
            JSON: {},
            STREAM: {"stream": True},
            BACKGROUND: {"background": True},
        }
        return {
            kind: asyncio.create_task(
                asyncio.to_thread(partial(drive, self._loud, body={"model": MODEL, "input": PROMPT, **body}, pace=pace))
            )
            for kind, body in bodies.items()
        }


def drain(admin: str) -> None:
    """Cancel queued runs, and wait until the workers have nothing left to do."""
    running = "SELECT 1 FROM responses_response WHERE ended_at IS NULL LIMIT 1"
    cancel = "UPDATE responses_response SET status = 'cancelled', ended_at = now() WHERE status = 'queued'"
    with psycopg.connect(admin, autocommit=True) as database:
        deadline = time.monotonic() + 60
        while database.execute(cancel).rowcount or database.execute(running).fetchone():
            if time.monotonic() > deadline:
                raise LaunchError("The runs of the loud team did not end in a minute.")
            time.sleep(0.2)
        while time.monotonic() < deadline and _pending_deliveries(database):
            time.sleep(0.2)


def _pending_deliveries(database: "psycopg.Connection[Any]") -> bool:
    query = "SELECT 1 FROM responses_webhookdelivery WHERE state = 'pending' LIMIT 1"
    return database.execute(query).fetchone() is not None


def prioritise(*pids: int) -> None:
    """Give processes a higher priority, if the system permits it."""
    with contextlib.suppress(psutil.AccessDenied):
        for pid in pids:
            psutil.Process(pid).nice(PRIORITY)


def table(content: Mapping[str, Any]) -> str:
    """Return the table of the documentation."""
    number = published.number
    rows = [
        [rise["kind"], *map(number, (*rise["alone"], *rise["beside"])), number(Rise(**rise).factor)]
        for rise in content["rises"]
    ]
    head = ["", "alone, p50 ms", "p99", "beside the loud team, p50 ms", "p99", "rise of p99"]
    at = content["conditions"]
    return f"{published.table(head, rows)}\n\n{at['cores']} cores shared with all clients, {at['date']}."


VIEWS = {"table": table}


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Measure and print the figures. With `--check`, return 1 if a limit is exceeded."""
    parser = published.parser("fairness", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each part of a round (default 30)")
    parser.add_argument("--rounds", type=int, default=4, help="of both parts (default 4)")
    parser.add_argument("--teams", type=int, default=5, help="number of quiet teams (default 5)")
    parser.add_argument("--rate", type=float, default=1.0, help="of each kind per quiet team and second (default 1)")
    parser.add_argument("--times", type=float, default=100.0, help="load of the loud team (default 100 times)")
    parser.add_argument("--processes", type=int, default=1, help="web processes (default 1)")
    parser.add_argument("--workers", type=int, default=1, help="worker processes (default 1)")
    parser.add_argument("--seed", type=int, default=1, help="of everything random")
    options = parser.parse_args(arguments)
    with (
        running_stack(directory=directory, processes=options.processes, **ENVIRONMENT) as (servers, stack),
        Receiver() as receiver,
    ):
        for number in range(1, options.workers + 1):
            _start_worker(servers, f"worker-{number}")
        teams = created_teams(servers.environment, options.teams + 1)
        prioritise(psutil.Process().pid, stack.mock.pid, receiver.pid)
        found = asyncio.run(Benchmark(stack, teams, receiver, options).run())
    floors = list(found.floors())
    for line in (*found.lines(), *(floor.text() for floor in floors)):
        print(line)
    content = {
        "conditions": published.conditions(),
        **asdict(found),
        "times": options.times,
        "rate": options.rate,
        "teams": options.teams,
    }
    return published.conclude("fairness", options, content=content, floors=floors)


def _start_worker(servers: Servers, name: str) -> None:
    log = servers.log(name)
    servers.start(
        name, sys.executable, MANAGE, "worker", is_ready=lambda: log.exists() and "celery@" in log.read_text()
    )
