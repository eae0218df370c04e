"""`python -m benchmarks failover`: faults of a target, with three web processes and each API, streamed and not.

Each case has a model with a primary, which fails, and a replica. Clients check the text of every answer, the targets
count the attempts, and the usage records must agree with the targets' books. `--check` ends with 1 if a promise of the
failover policy is not kept.
"""

import asyncio
import json
import time
import urllib.request
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.books.audit import is_settled
from benchmarks.books.driver import until
from benchmarks.failover.cases import CASES, FIRST_TOKEN_SECONDS, Cell, Fault, cells
from benchmarks.failover.clients import Result, ask
from benchmarks.failover.evaluation import RECOVERY_SECONDS, Outage, Verified, outage_faults, report, verified
from benchmarks.failover.upstream import PRICES, TARGETS, Attempt, FailingUpstream, running_upstream
from benchmarks.failover.usage import stored_records, usage_faults
from benchmarks.stack import Programs, Servers, running_servers, tell
from launcher.address import any_free_port

PROCESSES = 3
_NAMES = [case.name for case in CASES]
# Short limits, so that silent targets cost seconds. The first token of the case `late` comes after all of them, but
# something arrives each second.
_LIMITS = {
    "UPSTREAM_FIRST_TOKEN_SECONDS": str(FIRST_TOKEN_SECONDS),
    "UPSTREAM_STALL_SECONDS": "3",
    "UPSTREAM_IDLE_TIMEOUT": "6",
    "UPSTREAM_ANSWER_TIMEOUT": "8",
    "UPSTREAM_RETRY_SECONDS": "10",
}
# For all attempts: the longest limit, the time for repeated requests, and the answer on a busy machine.
_DEADLINE_SECONDS = 18.0
_CELLS_AT_ONCE = 12
_DEAD_PAUSE_SECONDS = 1.0
_SETTLED_SECONDS = 90.0
_ADD_TARGETS = """
import io, json
from decimal import Decimal
from django.core.management import call_command
from tenants import scope, services
from tenants.models import Model
from tenants.prices import PriceEntry
for row in json.loads('''{rows}'''):
    address = ("--name", row["name"], "--base-url", row["url"], "--models", row["model"])
    place = ("--priority", str(row["priority"]), "--capabilities", json.dumps(row["capabilities"]), "--json")
    call_command("add_upstream", *address, *place, stdout=io.StringIO())
    with scope.every_team():
        model = Model.objects.get(name=row["model"], upstream__name=row["name"])
    entries = [PriceEntry(dimension=name, amount=Decimal(amount)) for name, amount in row["prices"].items()]
    services.set_prices(model, entries)
"""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The cells, the requests to each of them, and the seconds for which the targets with the fault DEAD are dead."""

    cells: Sequence[Cell]
    requests: int = 6
    dead_seconds: float = 60.0
    seed: int = 1


@dataclass(kw_only=True)
class Metrics:
    """Requests to upstreams that the platform has counted: by process, and those without an answer by upstream."""

    requests: Counter[str] = field(default_factory=Counter)
    unreachable: Counter[str] = field(default_factory=Counter)


@dataclass(kw_only=True)
class Outcomes:
    """The results of a run by cell, the attempts at the targets, and the faults of the usage records by request."""

    results: Mapping[str, Sequence[Result]]
    attempts: Sequence[Attempt]
    outage: Outage
    metrics: Metrics = field(default_factory=Metrics)
    usage_faults: Sequence[tuple[str, str]] = ()

    def verified(self, cell: Cell) -> Verified:
        """Compare the results of a cell with the policy."""
        results = self.results[cell.name]
        attempts = [attempt for attempt in self.attempts if attempt.cell == cell.name]
        found = verified(cell, results, attempts)
        names = {result.name for result in results}
        found.add("usage", (f"{name}: {fault}" for name, fault in self.usage_faults if name in names))
        if cell.case.fault is Fault.DEAD:
            found.add("outage", outage_faults(self.outage, attempts))
        if cell.case.fault is Fault.REFUSED:
            found.add("attempts", self._refused_faults(cell))
        return found

    def _refused_faults(self, cell: Cell) -> Iterator[str]:
        """Compare the attempts that the platform has counted, because refused ones do not reach the target."""
        count = self.metrics.unreachable[f"{cell.name}.primary"]
        most = cell.expected.primary * len(self.results[cell.name])
        if not 0 < count <= most:
            yield f"{count} refused attempts for {len(self.results[cell.name])} requests, at most {most} are allowed"


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Run the cases. Return 1 with --check if a promise is not kept."""
    parser = ArgumentParser(prog="python -m benchmarks failover")
    parser.add_argument("--only", action="append", choices=_NAMES, help="only this case (repeatable)")
    parser.add_argument("--requests", type=int, default=6, help="requests per case, API and mode (default: 6)")
    parser.add_argument(
        "--dead-seconds", type=float, default=60.0, metavar="S", help="seconds without the dead target (default: 60)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="exit 1 if a promise is not kept")
    options = parser.parse_args(arguments)
    cases = [case for case in CASES if options.only is None or case.name in options.only]
    plan = Plan(cells=[*cells(cases)], requests=options.requests, dead_seconds=options.dead_seconds, seed=options.seed)
    found = asyncio.run(measured(plan, directory=directory, log=tell))
    print("\n".join(report(found)))
    missed = sum(bool(cell.faults) for cell in found)
    print(f"{len(found)} combinations of case, API and mode, of which {missed} missed")
    return 1 if options.check and missed else 0


async def measured(
    plan: Plan,
    *,
    directory: Path,
    programs: Programs | None = None,
    log: Callable[[str], None] = lambda _: None,
) -> list[Verified]:
    """Run the platform and all cells, and compare the results with the policy."""
    async with running_upstream(plan.cells) as upstream:
        with running_servers(directory, durable=False, programs=programs) as servers:
            url, headers, metrics = await asyncio.to_thread(_start, servers, plan, upstream)
            await upstream.begin_to_fail()
            log("all processes are running")
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
                driver = _Driver(plan=plan, upstream=upstream, session=session, url=url, log=log)
                outcomes = await driver.run()
            outcomes.metrics = await asyncio.to_thread(_read_metrics, metrics)
            log(f"requests to targets by web process: {sorted(outcomes.metrics.requests.values())}")
            with suppress(TimeoutError):
                # Calls that are still open have no record, which is a fault of their request.
                await until(partial(is_settled, servers.admin), seconds=_SETTLED_SECONDS)
            records = await asyncio.to_thread(stored_records, servers.admin)
            outcomes.usage_faults = [*usage_faults(outcomes.attempts, records)]
    return [outcomes.verified(cell) for cell in plan.cells]


def _start(servers: Servers, plan: Plan, upstream: FailingUpstream) -> tuple[str, Mapping[str, str], str]:
    """Start the web processes. Return their URL, the headers of requests, and the URL of the metrics of all of them."""
    port = any_free_port()
    servers.environment |= {"EGRESS_ALLOW": "127.0.0.1", "METRICS_PORT": str(port), **_LIMITS}
    made = json.loads(servers.manage("create_key", "--team", "failover", "--json"))
    rows = [
        {
            "name": f"{cell.name}.{target}",
            "url": upstream.address(cell, target),
            "model": cell.name,
            "priority": priority,
            "capabilities": cell.case.capabilities.get(target, {}),
            "prices": PRICES[target],
        }
        for cell in plan.cells
        for priority, target in enumerate(TARGETS)
    ]
    add_targets(servers, rows)
    web = servers.start_web(processes=PROCESSES, key=made["key"])
    return web.url, {"Content-Type": "application/json", **web.headers}, f"http://127.0.0.1:{port}/metrics"


def add_targets(servers: Servers, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add targets with their prices: `name` and `url` of the server, `model`, `priority`, `capabilities`, `prices`."""
    servers.manage("shell", "-v", "0", "-c", _ADD_TARGETS.replace("{rows}", json.dumps(rows)))


def _read_metrics(url: str) -> Metrics:
    """Return the counters of all web processes."""
    metrics = Metrics()
    with urllib.request.urlopen(url, timeout=30) as answer:
        text = answer.read().decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "ors_upstream_requests_total":
                metrics.requests[sample.labels["process"]] += int(sample.value)
                if sample.labels["code"] == "unreachable":
                    metrics.unreachable[sample.labels["upstream"]] += int(sample.value)
    return metrics


@dataclass(kw_only=True)
class _Driver:
    """Sends the requests of all cells."""

    plan: Plan
    upstream: FailingUpstream
    session: aiohttp.ClientSession
    url: str
    log: Callable[[str], None]

    async def run(self) -> Outcomes:
        """Send the requests of a few cells at a time, in random order, and then those of the dead targets."""
        dead = [cell for cell in self.plan.cells if cell.case.fault is Fault.DEAD]
        others = [cell for cell in self.plan.cells if cell.case.fault is not Fault.DEAD]
        Random(self.plan.seed).shuffle(others)
        places = asyncio.Semaphore(_CELLS_AT_ONCE)
        results: dict[str, Sequence[Result]] = {}

        async def run_cell(cell: Cell) -> None:
            async with places:
                results[cell.name] = await self._requests(cell)

        async with asyncio.TaskGroup() as group:
            for cell in others:
                group.create_task(run_cell(cell))
        outage = Outage(began=0.0, ended=0.0)
        if dead:
            self.log(f"the primary is dead for {self.plan.dead_seconds:g} seconds")
            outage = await self._outage(dead, results)
        return Outcomes(results=results, attempts=self.upstream.attempts, outage=outage)

    async def _requests(self, cell: Cell) -> Sequence[Result]:
        """Send the requests to a cell in two groups, the second of which finds what the first has learnt."""
        numbers = range(self.plan.requests)
        results: list[Result] = []
        for group in (numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]):
            results += await asyncio.gather(*(self._ask(cell, number) for number in group))
        return results

    async def _ask(self, cell: Cell, number: int) -> Result:
        name = f"{cell.name}.{self.plan.seed}.{number}"
        return await ask(self.session, self.url, cell, name, deadline=_DEADLINE_SECONDS)

    async def _outage(self, dead: Sequence[Cell], results: dict[str, Sequence[Result]]) -> Outage:
        """Send requests in regular intervals to the cells with dead primaries, until these are used again."""
        self.upstream.is_dead = True
        began = time.monotonic()
        ended = began + self.plan.dead_seconds

        async def run_cell(cell: Cell) -> None:
            asked: list[asyncio.Task[Result]] = []
            while time.monotonic() < ended or not (
                time.monotonic() > ended + RECOVERY_SECONDS or self._has_returned(cell, ended)
            ):
                asked.append(asyncio.create_task(self._ask(cell, len(asked))))
                await asyncio.sleep(_DEAD_PAUSE_SECONDS)
            results[cell.name] = await asyncio.gather(*asked)

        async with asyncio.TaskGroup() as group:
            for cell in dead:
                group.create_task(run_cell(cell))
            await asyncio.sleep(max(0.0, ended - time.monotonic()))
            self.upstream.is_dead = False
        return Outage(began=began, ended=ended)

    def _has_returned(self, cell: Cell, ended: float) -> bool:
        return any(
            attempt.cell == cell.name and attempt.target == "primary" and attempt.began > ended
            for attempt in self.upstream.attempts
        )
