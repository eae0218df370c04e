"""`python -m benchmarks rolling-restart`: every process is replaced while streams run, and no client misses an event.

Two web processes, two workers and two schedulers serve paced streams, half of them of background responses. Each
process gets SIGTERM, must exit with 0, and is started again before the next one is stopped. Clients behave as
docs/howto/restarts.md describes: when a connection ends before the response, they read on from another web process.
"""

import asyncio
import hashlib
import itertools
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import psutil

from benchmarks import published
from benchmarks.load import Target, program
from benchmarks.report import Floor
from benchmarks.stack import MANAGE, Server, Servers, is_up, running_servers, tell
from launcher import processes
from launcher.address import any_free_port

MOST_P99_SECONDS = 1.0
ALL = ("web-1", "web-2", "worker-1", "worker-2", "beat-1", "beat-2")
_PROBE_SECONDS = 0.25
_AGAIN_SECONDS = 0.05
_STOP_SECONDS = 60.0
# The model's time to its first token, which a stream waits for again if its turn is repeated.
_FIRST_MS = 100
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=60)
_WORKS = "the worker claims background responses"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Number of streams at the same time, events per second of each, their length, and the processes to restart.

    `drain` is the time in seconds that a process has to finish; streams must be longer for some to be cut.
    """

    streams: int
    rate: float = 1.5
    seconds: float = 30.0
    drain: int = 20
    restarts: Sequence[str] = ALL


@dataclass(kw_only=True)
class Stream:
    """The part of one response that a client has received."""

    background: bool
    response_id: str = ""
    last: int = -1
    cuts: int = 0
    longest_pause: float = 0.0
    paused_at: float = 0.0
    has_ended: bool = False
    events: list[bytes] = field(default_factory=list)
    failure: str = ""
    _read_at: float = 0.0

    @property
    def digest(self) -> str:
        """SHA-256 of the received events."""
        return hashlib.sha256(b"".join(self.events)).hexdigest()

    def receive(self, event: bytes) -> None:
        """Record an event. Raises ValueError if it is not the next one."""
        data = orjson.loads(event.partition(b"\ndata: ")[2])
        at = time.monotonic()
        if data["sequence_number"] != self.last + 1:
            raise ValueError(f"event {data['sequence_number']} after {self.last}")
        if self.events and at - self._read_at > self.longest_pause:
            self.longest_pause, self.paused_at = at - self._read_at, at
        self.last, self._read_at = self.last + 1, at
        self.events.append(event)
        self.response_id = self.response_id or data["response"]["id"]
        if data["type"] in {"response.failed", "response.incomplete"}:
            self.failure = data["type"]


@dataclass(frozen=True, kw_only=True)
class Result:
    """Results of the clients. `stolen_percent` of the CPU time was taken by the host, for other machines."""

    streams: int
    cut: int
    failed: Sequence[str]
    different: int
    p50_seconds: float
    p99_seconds: float
    max_seconds: float
    usual_seconds: float
    took_seconds: float
    stolen_percent: float

    def floors(self) -> list[Floor]:
        """Return the limits."""
        return [
            Floor(name="failed streams", figure=len(self.failed), limit=0),
            Floor(name="streams that differ from their log", figure=self.different, limit=0),
            Floor(name="longest pause, p99 s", figure=self.p99_seconds, limit=MOST_P99_SECONDS),
        ]

    def line(self) -> str:
        """Return the report in one line."""
        return (
            f"{self.streams:,} streams, {self.cut:,} of them continued on another process; longest pause p50 "
            f"{self.p50_seconds:.2f}, p99 {self.p99_seconds:.2f}, max {self.max_seconds:.2f} s, of which "
            f"{self.usual_seconds:.2f} s are between two events of the model; {len(self.failed)} failed, "
            f"{self.different} differ from their log; {self.took_seconds:.0f} s, of whose CPU time the host took "
            f"{self.stolen_percent:.1f}% {'; '.join(self.failed[:3])}"
        )


class Balancer:
    """Chooses among the web processes that report to be ready, as a load balancer with fast probes does."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = targets
        self._ready = list(targets)
        self._turns = itertools.count()

    def choose(self) -> Target:
        """Return the next ready process."""
        ready = self._ready or list(self._targets)
        return ready[next(self._turns) % len(ready)]

    async def probe(self) -> None:
        """Probe all processes repeatedly."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as http:
            while True:
                answers = await asyncio.gather(*(_is_ready(http, target) for target in self._targets))
                self._ready = [target for target, is_ready in zip(self._targets, answers, strict=True) if is_ready]
                await asyncio.sleep(_PROBE_SECONDS)


async def _is_ready(http: aiohttp.ClientSession, target: Target) -> bool:
    with suppress(aiohttp.ClientError, TimeoutError):
        async with http.get(f"{target.url}/readyz") as answer:
            return answer.status == 200
    return False


class Clients:
    """Streams that are replaced by others when they end, until the restarts are over."""

    def __init__(self, plan: Plan, balancer: Balancer) -> None:
        self._plan, self._balancer = plan, balancer
        self.streams: list[Stream] = []
        self.is_over = asyncio.Event()
        self.running = 0

    async def run(self) -> None:
        """Run all clients until their streams have ended."""
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(timeout=_TIMEOUT, connector=connector, read_bufsize=2**20) as http:
            await asyncio.gather(*(self._repeat(http, number) for number in range(self._plan.streams)))

    async def _repeat(self, http: aiohttp.ClientSession, number: int) -> None:
        await asyncio.sleep(self._plan.seconds * number / self._plan.streams)
        while not self.is_over.is_set():
            stream = Stream(background=number % 4 > 1)
            self.streams.append(stream)
            self.running += 1
            try:
                async with asyncio.timeout(12 * self._plan.seconds):
                    await self._follow(http, stream)
            except Exception as error:
                stream.failure = repr(error)
            self.running -= 1

    async def _follow(self, http: aiohttp.ClientSession, stream: Stream) -> None:
        tokens, pause = int(self._plan.seconds * self._plan.rate), int(1000 / self._plan.rate)
        body = {"model": f"mock-t{tokens}-d{pause}-f{_FIRST_MS}", "input": "Hi", "stream": True}
        while not stream.has_ended:
            target = self._balancer.choose()
            url, headers = f"{target.url}/v1/responses", target.headers
            try:
                if stream.response_id:
                    query = {"stream": "true", "starting_after": str(stream.last)}
                    reading = http.get(f"{url}/{stream.response_id}", params=query, headers=headers)
                else:
                    reading = http.post(url, json={**body, "background": stream.background}, headers=headers)
                async with reading as answer:
                    if answer.status != 503:
                        answer.raise_for_status()
                        await _read(answer, stream)
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
                pass
            if not stream.has_ended:
                stream.cuts += bool(stream.response_id)
                await asyncio.sleep(_AGAIN_SECONDS)


async def _read(answer: aiohttp.ClientResponse, stream: Stream) -> None:
    rest = b""
    async for piece in answer.content.iter_any():
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            if event.startswith(b"event: "):
                stream.receive(event + b"\n\n")
            elif event == b"data: [DONE]":
                stream.has_ended = True


class Restarts:
    """The processes, which are replaced one after the other."""

    def __init__(self, servers: Servers, *, concurrency: int) -> None:
        self._servers = servers
        self.web: dict[str, Target] = {}
        self._running: dict[str, Server] = {}
        self._starts: dict[str, Callable[[], Server]] = {}
        for name in ALL:
            kind = name.partition("-")[0]
            if kind == "web":
                port = any_free_port()
                url = f"http://127.0.0.1:{port}"
                options: Sequence[str] = ("--host", "127.0.0.1", "--port", str(port), "--processes", "1")
                check: Callable[[], bool] | None = partial(is_up, f"{url}/readyz")
                self.web[name] = Target(name=name, url=url, pid=0, api="responses", headers={})
            else:
                options = ("--concurrency", str(concurrency)) if kind == "worker" else ()
                check = None
            self._starts[name] = partial(self._start, name, kind, options, check)
        for name, start in self._starts.items():
            self._running[name] = start()

    def _start(self, name: str, kind: str, options: Sequence[str], check: Callable[[], bool] | None) -> Server:
        log = self._servers.log(name)
        seen = log.stat().st_size if log.exists() else 0
        if kind == "worker":
            check = lambda: _WORKS in log.read_text(errors="replace")[seen:]  # noqa: E731
        return self._servers.start(name, sys.executable, MANAGE, kind, *options, is_ready=check)

    def restart(self, name: str) -> float:
        """Replace a process. Returns how many seconds it took to stop. Raises ValueError if it does not exit with 0."""
        process, began = self._running[name].process, time.monotonic()
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            processes.kill_group(process)
            raise
        took = time.monotonic() - began
        if code != 0:
            raise ValueError(f"{name} exited with {code}: {self._servers.log(name).read_text()[-2000:]}")
        self._running[name] = self._starts[name]()
        return took


async def _measured(plan: Plan, servers: Servers, key: str) -> Result:
    restarts = await asyncio.to_thread(Restarts, servers, concurrency=max(50, plan.streams))
    targets = [
        Target(name=one.name, url=one.url, pid=0, api="responses", headers={"Authorization": f"Bearer {key}"})
        for one in restarts.web.values()
    ]
    balancer = Balancer(targets)
    clients = Clients(plan, balancer)
    probing = asyncio.create_task(balancer.probe())
    running = asyncio.create_task(clients.run())
    began, cpu = time.monotonic(), psutil.cpu_times()
    # All streams have begun, and none of the first ones has ended.
    await asyncio.sleep(plan.seconds)
    begins: dict[str, float] = {}
    try:
        for name in plan.restarts:
            begins[name] = time.monotonic()
            took = await asyncio.to_thread(restarts.restart, name)
            tell(f"{name} stopped within {took:.1f} s and was started again; {clients.running} streams are open")
        begins["the last ones"] = time.monotonic()
    finally:
        clients.is_over.set()
        await running
        probing.cancel()
    cpu_after = psutil.cpu_times()
    stolen_percent = 100 * (cpu_after.steal - cpu.steal) / (sum(cpu_after) - sum(cpu))
    _tell_pauses(clients.streams, begins)
    different = await _compare(clients.streams, balancer)
    pauses = sorted(stream.longest_pause for stream in clients.streams)
    return Result(
        streams=len(clients.streams),
        cut=sum(stream.cuts > 0 for stream in clients.streams),
        failed=[f"{stream.response_id}: {stream.failure}" for stream in clients.streams if stream.failure],
        different=different,
        p50_seconds=pauses[len(pauses) // 2],
        p99_seconds=pauses[min(len(pauses) - 1, int(0.99 * len(pauses)))],
        max_seconds=pauses[-1],
        usual_seconds=1 / plan.rate,
        took_seconds=time.monotonic() - began,
        stolen_percent=stolen_percent,
    )


def _tell_pauses(streams: Sequence[Stream], begins: dict[str, float]) -> None:
    """Report the longest pauses by the process that was being replaced."""
    for (name, begin), end in zip(begins.items(), [*list(begins.values())[1:], math.inf], strict=True):
        pauses = sorted(one.longest_pause for one in streams if begin <= one.paused_at < end)
        if pauses:
            tell(f"{name}: {len(pauses)} longest pauses, p50 {pauses[len(pauses) // 2]:.2f}, max {pauses[-1]:.2f} s")


async def _compare(streams: Sequence[Stream], balancer: Balancer) -> int:
    """Return how many streams differ from the event log of their response."""
    different, waiting = 0, iter(streams)

    async def compare(http: aiohttp.ClientSession) -> None:
        nonlocal different
        for stream in waiting:
            target, log = balancer.choose(), Stream(background=stream.background)
            url = f"{target.url}/v1/responses/{stream.response_id}"
            async with http.get(url, params={"stream": "true"}, headers=target.headers) as answer:
                await _read(answer, log)
            different += log.digest != stream.digest

    async with aiohttp.ClientSession(timeout=_TIMEOUT, read_bufsize=2**20) as http:
        await asyncio.gather(*(compare(http) for _ in range(8)))
    return different


def measured(plan: Plan, *, directory: Path) -> Result:
    """Restart the processes under the streams of the plan."""
    with running_servers(directory) as servers:
        drain = str(plan.drain)
        servers.environment |= {
            "DRAIN_DELAY_SECONDS": "2",
            "DRAIN_SECONDS": drain,
            "WORKER_DRAIN_SECONDS": drain,
        }
        port = any_free_port()
        url = f"http://127.0.0.1:{port}"
        servers.start("mock", str(program("mock")), "--port", str(port), is_ready=partial(is_up, f"{url}/health"))
        return asyncio.run(_measured(plan, servers, servers.route(url)))


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Measure and print the figures. With `--check`, return 1 if a limit is exceeded."""
    parser = published.parser("rolling-restart", description=__doc__)
    parser.add_argument("--streams", type=int, default=500, help="at the same time (default %(default)s)")
    parser.add_argument("--rate", type=float, default=1.5, help="events per second of each (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of each (default %(default)s)")
    options = parser.parse_args(arguments)
    plan = Plan(streams=options.streams, rate=options.rate, seconds=options.seconds)
    result = measured(plan, directory=directory)
    for line in (result.line(), *(floor.text() for floor in result.floors())):
        print(line)
    content: dict[str, Any] = {"conditions": published.conditions(), "result": vars(result)}
    return published.conclude("rolling-restart", options, content=content, floors=result.floors())


def table(content: Mapping[str, Any]) -> str:
    """Return the table of the documentation."""
    result, at = content["result"], content["conditions"]
    rows = [
        ["streams", f"{result['streams']:,}", ""],
        ["... that clients continued on another process", f"{result['cut']:,}", ""],
        ["... that failed", str(len(result["failed"])), "must be 0"],
        ["... that differ from the event log of their response", str(result["different"]), "must be 0"],
        ["longest pause of a stream, p50", f"{result['p50_seconds']:.2f} s", ""],
        ["... p99", f"{result['p99_seconds']:.2f} s", f"at most {MOST_P99_SECONDS:.0f} s"],
        ["... between two events of the model", f"{result['usual_seconds']:.2f} s", ""],
        ["CPU time that the host took", f"{result['stolen_percent']:.1f}%", ""],
    ]
    text = published.table(["figure", "value", ""], rows)
    return f"{text}\n\n{at['cores']} cores shared with clients, model and database, {at['date']}."


VIEWS = {"table": table}
