"""`python -m benchmarks mixed`: an hour of a thousand teams, on two web processes and two workers.

First the capacity is measured with as many requests at a time as the platform can take, then the same mix of requests
arrives at random times at a share of that rate, whatever the platform does: an open loop. Teams are of very different
size; each continues its own chain and its own long conversation. Everything follows from the seed, except for time.
"""

import asyncio
import contextlib
import multiprocessing
import random
import sys
import threading
import time
from argparse import Namespace
from array import array
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import mean, median, variance
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import aiohttp
import orjson
import psutil
from typing_extensions import override

from benchmarks import published
from benchmarks.matrix import BURST, PROMPT, SHORT
from benchmarks.report import Floor
from benchmarks.stack import MANAGE, Servers, manage, running_stack, tell
from launcher.errors import LaunchError
from launcher.processes import wait_until

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

PACED = "mock-d20-f200"
CALLING = "mock-call-t16"
TOOLS = [
    {
        "type": "function",
        "name": "lookup",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]
# A few teams send most of the requests.
ZIPF_EXPONENT = 1.1
LONGEST_CHAIN = 50
# In turns. The contexts of models have a limit as well; without one, the cost of a request would rise for the whole
# hour.
LONGEST_CONVERSATION = 200
CAPACITY_USERS = 200
# A slow machine may finish no action in a short time, which would be no rate at all.
LEAST_ACTIONS = 50
MOST_CAPACITY_SECONDS = 120.0
MOST_AT_ONCE = 10_000
MOST_RETRY_SECONDS = 5.0
IMPATIENCE_SECONDS = 0.05
# The last event contains the whole response of 64 tokens.
ENOUGH_OF_A_STREAM = 16384
SAMPLE_SECONDS = 5.0
PROBE_SECONDS = 0.2
WARM_UP = 0.2
BATCH_INTERVALS = 4
TERMINAL = ("completed", "failed", "cancelled", "incomplete")


@dataclass(kw_only=True)
class Team:
    """A team of the simulation, with the ends of its chain and its conversation."""

    headers: Mapping[str, str]
    chain: str | None = None
    turns: int = 0
    recent: list[str] = field(default_factory=list)
    conversation: str | None = None
    exchanges: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class RefusedError(Exception):
    """A request got another status than 200. It has already been counted."""


class Load:
    """Sends requests and counts the answers, in intervals of ``interval`` seconds."""

    def __init__(self, session: aiohttp.ClientSession, teams: Sequence[Team], *, seed: int, interval: float) -> None:
        self._session, self._teams, self._random = session, teams, random.Random(seed)
        self._weights = [1 / rank**ZIPF_EXPONENT for rank in range(1, len(teams) + 1)]
        self._began, self._interval = time.monotonic(), interval
        self.times: defaultdict[int, array[float]] = defaultdict(lambda: array("d"))
        self.refused: Counter[int] = Counter()
        self.errors: Counter[str] = Counter()
        self.done: Counter[str] = Counter()

    @property
    def interval(self) -> int:
        """The number of the current interval."""
        return int((time.monotonic() - self._began) / self._interval)

    async def act(self) -> None:
        """Do something as a random team."""
        [team] = self._random.choices(self._teams, self._weights)
        [action] = self._random.choices(list(ACTIONS), list(ACTIONS.values()))
        try:
            await action(self, team)
        except RefusedError:
            return
        except (aiohttp.ClientError, OSError, TimeoutError) as failed:
            self.errors[f"{action.__name__}: {type(failed).__name__} {failed}"[:200]] += 1
            return
        self.done[action.__name__] += 1

    def chance(self, share: float) -> bool:
        """Return True with the given probability."""
        return self._random.random() < share

    async def send(self, team: Team, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return the body of its answer."""
        async with self._answered(team, method, path, body) as answer:
            found: dict[str, Any] = orjson.loads(await answer.read())
            return found

    async def stream(self, team: Team, body: Mapping[str, Any], *, leave: bool = False) -> None:
        """Read a stream to its end, or ``leave`` it after the first block."""
        async with self._answered(team, "POST", "/v1/responses", {**body, "stream": True}) as answer:
            end = b""
            async for block in answer.content.iter_any():
                if leave:
                    answer.close()
                    return
                end = (end + block)[-ENOUGH_OF_A_STREAM:]
            if b"event: response.completed" not in end:
                self.errors[f"a stream ended with {end[-150:]!r}"] += 1
                raise RefusedError

    @asynccontextmanager
    async def _answered(
        self, team: Team, method: str, path: str, body: Mapping[str, Any] | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the answer with status 200, and measure the time until it began.

        After a 503 the request is repeated once, as clients do.
        """
        content = None if body is None else orjson.dumps(body)
        for last in (False, True):
            began = time.perf_counter()
            async with self._session.request(method, path, data=content, headers=team.headers) as answer:
                if answer.status == 200:
                    self.times[self.interval].append(1000 * (time.perf_counter() - began))
                    yield answer
                    return
                if answer.status != 503:
                    name = f"{method} /{path.split('/')[2]}: {answer.status} {(await answer.read())[:150]!r}"
                    self.errors[name] += 1
                    raise RefusedError
                self.refused[self.interval] += 1
                wait = min(float(answer.headers.get("retry-after", "1")), MOST_RETRY_SECONDS)
            if last:
                raise RefusedError
            await asyncio.sleep(wait)


# -- what teams do -----------------------------------------------------------------------------------------------------


async def ask(load: Load, team: Team) -> None:
    """Ask for JSON; a few clients lose patience, disconnect and try again."""
    body = {"model": BURST, "input": PROMPT}
    if load.chance(0.05):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(load.send(team, "POST", "/v1/responses", body), IMPATIENCE_SECONDS)
    made = await load.send(team, "POST", "/v1/responses", body)
    team.recent = [*team.recent[-9:], made["id"]]


async def stream(load: Load, team: Team) -> None:
    """Read a stream of 64 tokens."""
    await load.stream(team, {"model": BURST, "input": PROMPT})


async def paced_stream(load: Load, team: Team) -> None:
    """Read a stream of a second and a half; a few clients go away."""
    await load.stream(team, {"model": PACED, "input": PROMPT}, leave=load.chance(0.05))


async def chained(load: Load, team: Team) -> None:
    """Continue the team's chain."""
    previous = {"previous_response_id": team.chain} if team.chain and team.turns < LONGEST_CHAIN else {}
    team.turns = team.turns + 1 if previous else 1
    made = await load.send(team, "POST", "/v1/responses", {"model": SHORT, "input": PROMPT, **previous})
    team.chain = made["id"]


async def conversation(load: Load, team: Team) -> None:
    """Continue the team's conversation, which becomes long, one request at a time."""
    async with team.lock:
        if team.conversation is None or team.exchanges >= LONGEST_CONVERSATION:
            team.conversation, team.exchanges = (await load.send(team, "POST", "/v1/conversations", {}))["id"], 0
        body = {"model": SHORT, "input": PROMPT, "conversation": team.conversation}
        await load.send(team, "POST", "/v1/responses", body)
        team.exchanges += 1


async def tool_call(load: Load, team: Team) -> None:
    """Answer a call of a function."""
    body = {"model": CALLING, "tools": TOOLS}
    made = await load.send(team, "POST", "/v1/responses", {**body, "input": PROMPT})
    [call] = [item for item in made["output"] if item["type"] == "function_call"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "9 degrees"}
    await load.send(team, "POST", "/v1/responses", {**body, "input": [output], "previous_response_id": made["id"]})


async def background(load: Load, team: Team) -> None:
    """Start a background response and ask for it until it has ended."""
    made = await load.send(team, "POST", "/v1/responses", {"model": BURST, "input": PROMPT, "background": True})
    while made["status"] not in TERMINAL:
        await asyncio.sleep(1)
        made = await load.send(team, "GET", f"/v1/responses/{made['id']}")
    if made["status"] != "completed":
        load.errors[f"a background response ended {made['status']} {made.get('error')}"] += 1


async def followed(load: Load, team: Team) -> None:
    """Follow a background response as a stream."""
    await load.stream(team, {"model": PACED, "input": PROMPT, "background": True})


async def cancelled(load: Load, team: Team) -> None:
    """Cancel a background response."""
    made = await load.send(team, "POST", "/v1/responses", {"model": PACED, "input": PROMPT, "background": True})
    await asyncio.sleep(0.2)
    ended = await load.send(team, "POST", f"/v1/responses/{made['id']}/cancel")
    if ended["status"] not in TERMINAL:
        load.errors[f"a cancelled response is {ended['status']}"] += 1


async def retrieve(load: Load, team: Team) -> None:
    """Retrieve a recent response."""
    if team.recent:
        await load.send(team, "GET", f"/v1/responses/{team.recent[-1]}")


async def list_items(load: Load, team: Team) -> None:
    """List the input of the chain's last response, or the items of the conversation."""
    if team.chain and load.chance(0.5):
        await load.send(team, "GET", f"/v1/responses/{team.chain}/input_items?limit=20")
    elif team.conversation:
        await load.send(team, "GET", f"/v1/conversations/{team.conversation}/items?limit=20")


ACTIONS: Mapping[Callable[[Load, Team], Awaitable[None]], float] = {
    ask: 28,
    stream: 28,
    paced_stream: 6,
    chained: 10,
    conversation: 6,
    tool_call: 4,
    background: 3,
    followed: 1,
    cancelled: 1,
    retrieve: 9,
    list_items: 4,
}
"""The actions with their shares in percent."""


# -- running it --------------------------------------------------------------------------------------------------------


async def capacity(load: Load, *, seconds: float) -> float:
    """Return the number of actions per second that a fixed number of clients complete, each one after the other.

    Only the second half of the time counts, because the chains and conversations of the large teams are long by then.
    It is extended until `LEAST_ACTIONS` are done on a slow machine. Raises LaunchError if none is done in two minutes.
    """
    is_over = False

    async def user() -> None:
        while not is_over:
            await load.act()

    users = [asyncio.create_task(user()) for _ in range(CAPACITY_USERS)]
    await asyncio.sleep(seconds / 2)
    before, began = load.done.total(), time.monotonic()
    await asyncio.sleep(seconds / 2)
    most = max(seconds / 2, MOST_CAPACITY_SECONDS)
    are_enough = lambda: load.done.total() - before >= LEAST_ACTIONS  # noqa: E731
    await asyncio.to_thread(wait_until, are_enough, seconds=began + most - time.monotonic())
    done = load.done.total() - before
    rate = done / (time.monotonic() - began)
    is_over = True
    await asyncio.gather(*users)
    if not done:
        errors = "; ".join(error for error, _ in load.errors.most_common(3)) or "every answer was 503"
        raise LaunchError(f"The capacity cannot be measured: no action was completed within {most:.0f} s ({errors}).")
    return rate


async def arrivals(load: Load, *, rate: float, seconds: float, seed: int, least: int = 0) -> int:
    """Start actions at random times for some seconds, on average `rate` per second, but at least `least` actions.

    Return the number of started actions.
    """
    chance, running, count = random.Random(seed), set[asyncio.Task[None]](), 0
    due, end = time.monotonic(), time.monotonic() + seconds
    while (due := due + chance.expovariate(rate)) < end or count < least:
        if (wait := due - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        if len(running) >= MOST_AT_ONCE:
            load.errors[f"more than {MOST_AT_ONCE:,} unfinished actions"] += 1
            continue
        task = asyncio.create_task(load.act())
        running.add(task)
        task.add_done_callback(running.discard)
        count += 1
    await asyncio.wait(running, timeout=120) if running else None
    if running:
        load.errors["actions unfinished after two minutes"] += len(running)
    return count


class Memory(threading.Thread):
    """Samples the memory of processes, in MiB. A process that is replaced counts as another one.

    Only anonymous memory is counted (the heap, and the part of it that a fork inherited). Private memory would also
    grow without any allocation: when a write copies an inherited page, and when a process is the first to touch a
    shared buffer.
    """

    def __init__(self, roots: Mapping[str, int], *, interval: float = SAMPLE_SECONDS) -> None:
        super().__init__(daemon=True)
        self._roots, self._interval, self._ended = roots, interval, threading.Event()
        self.samples: defaultdict[str, list[float]] = defaultdict(list)

    @override
    def run(self) -> None:
        """Sample until the end of the block."""
        while not self._ended.wait(self._interval):
            for name, value in self._sample():
                self.samples[name].append(value)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Also after an error, because the processes are ended next and must not be sampled any more.
        self._ended.set()
        self.join()

    def _sample(self) -> Iterator[tuple[str, float]]:
        for name, pid in self._roots.items():
            # One that has died is reported by `Servers.deaths`.
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in (root := psutil.Process(pid), *root.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        yield f"{name} {process.pid}", anonymous_memory(process.pid)


def anonymous_memory(pid: int) -> float:
    """Return the anonymous memory of a process in MiB, from Linux."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError as error:
        raise psutil.NoSuchProcess(pid) from error
    return int(rollup.split("Anonymous:", 1)[1].split(maxsplit=1)[0]) / 1024


class Probe:
    """A client in a process of its own, which sends one request at a time, each on a new connection.

    The clients of the load share an event loop that is busy itself, so they notice answers late.
    """

    def __init__(self, url: str, team: Team) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_probe, args=(other, url, team.headers), daemon=True)
        self.answers: Sequence[tuple[int, float]] = ()
        """Status of each answer, and the milliseconds from connecting until the status was received."""

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.send(None)
        self.answers = self._pipe.recv()
        self._process.join()


def _probe(pipe: "Connection[Any, Any]", url: str, headers: Mapping[str, str]) -> None:
    content, answers = orjson.dumps({"model": BURST, "input": PROMPT}), []
    while not pipe.poll(PROBE_SECONDS):
        began = time.perf_counter()
        # An error counts as an answer without a status: the result must not be lost with this process.
        status = 0
        with (
            contextlib.suppress(OSError, HTTPException),
            contextlib.closing(HTTPConnection(urlsplit(url).netloc, timeout=120)) as connection,
        ):
            connection.request("POST", "/v1/responses", content, headers)
            status = connection.getresponse().status
        answers.append((status, 1000 * (time.perf_counter() - began)))
    pipe.send(answers)


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Latencies of requests until the answer began, in milliseconds, and the number of answers with 503."""

    requests: int
    p50: float
    p99: float
    refused: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a simulation. ``memory`` has the MiB of each process after the warm-up and at the end.

    ``refusals`` are the milliseconds until the probe got a 503.
    """

    capacity: float
    load: float
    actions: int
    intervals: Sequence[Interval]
    memory: Mapping[str, tuple[float, float]]
    errors: Mapping[str, int]
    refusals: Sequence[float] = ()

    def floors(self) -> Iterator[Floor]:
        """Yield the limits. Latency and memory are judged from the end of the warm-up."""
        yield Floor(name="errors other than 503", figure=sum(self.errors.values()), limit=0)
        begin, end = p99_thirds([(each.requests, each.p99) for each in self.intervals])
        third = len(begin)
        if third < 2:
            return
        # Two standard errors of the difference of both means. Neighbouring intervals resemble each other (correlation
        # 0.4 in hours of load), so the means of several are compared (batch means).
        size = min(BATCH_INTERVALS, third // 2)
        batches = [[mean(part[at : at + size]) for at in range(0, third - size + 1, size)] for part in (begin, end)]
        noise = 2 * (sum(map(variance, batches)) / len(batches[0])) ** 0.5
        yield Floor(name="p99 at the end, ms", figure=mean(end), limit=mean(begin) + max(noise, 0.1 * mean(begin)))
        for name, (before, after) in self.memory.items():
            # 5 % of the smallest process would be less than one block of its allocator. A database connection that is
            # used seldom reaches its level of 5 to 8 MiB, with all statements prepared, only after the warm-up.
            yield Floor(name=f"memory of {name}, MiB", figure=after, limit=max(before * 1.05, before + 4))


def p99_thirds(intervals: Sequence[tuple[int, float]]) -> tuple[Sequence[float], Sequence[float]]:
    """Return the p99 of the first and of the last third of the intervals after the warm-up.

    Each interval consists of its number of requests and its p99.
    """
    later = intervals[int(len(intervals) * WARM_UP) :]
    # The last interval may contain only actions that were still unfinished.
    least = max((requests for requests, _ in later), default=0) / 2
    times = [p99 for requests, p99 in later if requests > least]
    third = len(times) // 3
    return times[:third], times[len(times) - third :]


def outcome(load: Load, memory: Memory, probe: Probe, *, capacity: float, share: float, actions: int) -> Outcome:
    """Summarise a simulation."""
    intervals = []
    for number in range(max(load.times, default=-1) + 1):
        p50, p99 = quantiles(load.times[number])
        intervals.append(Interval(requests=len(load.times[number]), p50=p50, p99=p99, refused=load.refused[number]))
    levels = {}
    most = max(map(len, memory.samples.values()), default=0)
    for name, samples in memory.samples.items():
        # Short-lived processes, such as those that a server starts for a task, have no trend.
        if len(samples) > most * (1 - WARM_UP) and (part := len(samples) // 5):
            levels[name] = (median(samples[part : 2 * part]), median(samples[-part:]))
    return Outcome(
        capacity=capacity,
        load=share,
        actions=actions,
        intervals=intervals,
        memory=levels,
        errors=dict(load.errors) | Counter("the probe got no answer" for status, _ in probe.answers if not status),
        refusals=[took for status, took in probe.answers if status == 503],
    )


def quantiles(times: Sequence[float]) -> tuple[float, float]:
    """Return the 50th and the 99th percentile."""
    ranked = sorted(times) or [0.0]
    return ranked[int(len(ranked) * 0.5)], ranked[int(len(ranked) * 0.99)]


def created_teams(environment: Mapping[str, str], number: int) -> list[Team]:
    """Create teams with a key each."""
    script = (
        "from tenants import services\n"
        f"for number in range({number}):\n"
        "    team = services.ensure_team(name=f'team {number}')\n"
        "    print(services.create_key(team=team, spec=services.KeySpec(name='simulation')).secret)\n"
    )
    lines = manage(environment, "shell", "--command", script).splitlines()
    return [Team(headers=_headers(line)) for line in lines if line.startswith("sk-")]


def _headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}


async def simulate(
    servers: Servers, url: str, teams: Sequence[Team], roots: Mapping[str, int], options: Namespace
) -> Outcome:
    """Measure the capacity and run the simulation."""
    seconds = 60 * options.minutes
    interval = min(60.0, seconds / 10)
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as session:
        first = Load(session, teams, seed=options.seed, interval=interval)
        rate = options.rate or await capacity(first, seconds=options.capacity_seconds)
        tell(f"capacity: {rate:.0f} actions/s; {60 * options.minutes:.0f} s at {options.load:.0%}")
        load = Load(session, teams, seed=options.seed + 1, interval=interval)
        load.errors.update(first.errors)
        pace = {"rate": rate * options.load, "seconds": seconds}
        with Memory(roots) as memory, Probe(url, teams[-1]) as probe:
            actions = await arrivals(load, **pace, seed=options.seed, least=LEAST_ACTIONS)
        load.errors.update(servers.deaths())
    return outcome(load, memory, probe, capacity=rate, share=options.load, actions=actions)


def report(found: Outcome) -> Iterator[str]:
    """Yield the lines of the report."""
    yield f"capacity {found.capacity:.0f} actions/s, load {found.load:.0%}: {found.actions:,} actions"
    yield f"{'interval':>8}{'requests':>10}{'p50 ms':>10}{'p99 ms':>10}{'503':>8}"
    for number, each in enumerate(found.intervals, 1):
        yield f"{number:8}{each.requests:10,}{each.p50:10.1f}{each.p99:10.1f}{each.refused:8,}"
    if found.refusals:
        p50, p99 = quantiles(found.refusals)
        yield f"the probe got {len(found.refusals):,} times 503, after {p50:.1f} ms (p99 {p99:.1f})"
    for name, (before, after) in found.memory.items():
        yield f"{name}: {before:.1f} MiB after the warm-up, {after:.1f} at the end"
    for error, count in sorted(found.errors.items(), key=lambda pair: -pair[1]):
        yield f"{count:,} × {error}"


def table(content: Mapping[str, Any]) -> str:
    """Return the table of the documentation."""
    number, rows = published.number, []
    for run in content["runs"].values():
        intervals = run["intervals"][int(len(run["intervals"]) * WARM_UP) :]
        thirds = p99_thirds([(each["requests"], each["p99"]) for each in run["intervals"]])
        p99 = [mean(part or [each["p99"] for each in intervals]) for part in thirds]
        before, after = map(sum, zip(*run["memory"].values(), strict=True)) if run["memory"] else (1.0, 1.0)
        growth = 100 * (after / before - 1)
        refused, requests = (sum(each[name] for each in run["intervals"]) for name in ("refused", "requests"))
        p50 = median(each["p50"] for each in intervals)
        figures = [f"{run['minutes']:g} min", f"{run['load']:.0%} of {number(run['capacity'])}/s", f"{requests:,}"]
        errors = sum(run["errors"].values())
        wait = number(quantiles(run["refusals"])[0]) if run.get("refusals") else "-"
        ends = f"{growth:.1f} %", f"{refused:,}", wait, str(errors)
        rows.append([*figures, number(p50), *map(number, p99), *ends])
    head = [
        "duration",
        "load",
        "requests",
        "p50 ms",
        "p99 begin",
        "p99 end",
        "memory",
        "503",
        "503 after ms",
        "other errors",
    ]
    at = content["conditions"]
    return f"{published.table(head, rows)}\n\n{at['cores']} cores shared with the simulated clients, {at['date']}."


VIEWS = {"table": table}


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Run the simulation and print the figures. With `--check`, return 1 if a limit is exceeded."""
    parser = published.parser("mixed", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="duration of the simulation (default 5)")
    parser.add_argument("--load", type=float, default=0.7, help="share of the capacity (default 0.7)")
    parser.add_argument("--rate", type=float, help="actions per second that count as the capacity, not measured then")
    parser.add_argument("--capacity-seconds", type=float, default=120.0, help="to find the capacity (default 120)")
    parser.add_argument("--teams", type=int, default=1000, help="number of teams (default 1000)")
    parser.add_argument("--processes", type=int, default=2, help="web processes (default 2)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default 2)")
    parser.add_argument("--seed", type=int, default=1, help="of everything random")
    options = parser.parse_args(arguments)
    with running_stack(directory=directory, processes=options.processes) as (servers, stack):
        roots = {"web": stack.platform.pid, "PostgreSQL": servers.postgres.process.pid}
        roots |= {"Valkey": servers.valkey.process.pid}
        for number in range(1, options.workers + 1):
            name = f"worker-{number}"
            ready = partial(_has_celery, servers.log(name))
            roots[name] = servers.start(name, sys.executable, MANAGE, "worker", is_ready=ready).process.pid
        roots["beat"] = servers.start("beat", sys.executable, MANAGE, "beat").process.pid
        tell(f"creating {options.teams:,} teams")
        teams = created_teams(servers.environment, options.teams)
        found = asyncio.run(simulate(servers, stack.platform.url, teams, roots, options))
    floors = list(found.floors())
    for line in (*report(found), *(floor.text() for floor in floors)):
        print(line)
    if options.publish:
        runs = dict((published.load("mixed") or {"runs": {}})["runs"])
        runs[f"{options.load:g}"] = {**asdict(found), "minutes": options.minutes}
        published.publish("mixed", {"conditions": published.conditions(), "runs": runs})
    return 1 if options.check and not all(floor.holds for floor in floors) else 0


def _has_celery(log: Path) -> bool:
    return log.exists() and "celery@" in log.read_text()
