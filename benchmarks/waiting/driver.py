"""Runs that wait for approvals while a day passes and every process is replaced, and the ends of these runs."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import psycopg

from benchmarks.books.driver import until
from benchmarks.effects.acting_server import ALWAYS, LABEL, ActingServer, running_server
from benchmarks.report import Floor
from benchmarks.stack import Programs, Servers, running_servers
from benchmarks.waiting.processes import Memory, Platform, Work, running_clock
from tests.support.clocks import ShiftedClock

_HOUR, _DAY = 3600, 86_400
_TIMEOUT = aiohttp.ClientTimeout(total=120)
_CLIENTS = 4
# A run reserves a tenth of the budget while it is executed, so that ten waiting runs would use it up.
_MOST_TOKENS, _BUDGET_USD, _PRICE = 100_000, "1", "1"
# Fewer than runs wait, and more than the slots of two workers.
_CONCURRENT_RUNS = 8
_OTHERS = 10
_OTHERS_SECONDS = 30.0
_TIMED_DECISIONS = 100
# How much more may be used in an idle interval while ten times as many runs wait.
_MORE_MB, _MORE_PART, _MORE_STATEMENTS, _MORE_ROWS, _MORE_BLOCKS = 10.0, 0.2, 40, 200, 2000

_WAITING = "SELECT count(*) FROM responses_response WHERE ended_at IS NULL AND waits_until IS NOT NULL"
_HELD = """
SELECT count(*) FROM responses_response
WHERE ended_at IS NULL AND waits_until IS NOT NULL AND (lease_owner IS NOT NULL OR lease_until IS NOT NULL)
"""
_RESERVED = "SELECT count(*) FROM tenants_reservation"
_OPEN = "SELECT count(*) FROM responses_response WHERE ended_at IS NULL"
_ENDED = """
SELECT split_part(end_user, ' ', 1), response.status, coalesce(response.error->>'code', ''), decision.state,
    call.status, response.attempt
FROM responses_response AS response
JOIN responses_approval AS decision ON decision.response_id = response.id
JOIN responses_toolcall AS call ON call.response_id = response.id AND call.call_id = decision.call_id
WHERE end_user LIKE 'run-%'
"""


class Fate(StrEnum):
    """The ends of runs that have waited."""

    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED_BY_REQUEST = "expired after its own time"
    EXPIRED_BY_DEFAULT = "expired after the default time"
    APPROVED_LATE = "approved after the default time"


# The shares of the runs, in percent.
_PARTS = {
    Fate.APPROVED: 40,
    Fate.DENIED: 20,
    Fate.EXPIRED_BY_REQUEST: 15,
    Fate.EXPIRED_BY_DEFAULT: 15,
    Fate.APPROVED_LATE: 10,
}
# `approval_wait_seconds` of the request. The default is a week.
_WAIT_SECONDS = {Fate.EXPIRED_BY_REQUEST: 18 * _HOUR, Fate.APPROVED_LATE: 14 * _DAY}
# The status and the error code of the response, the state of the decision, and the effects of the call.
_EXPECTED: Mapping[Fate, tuple[str, str, str, int]] = {
    Fate.APPROVED: ("completed", "", "granted", 1),
    Fate.DENIED: ("completed", "", "denied", 0),
    Fate.EXPIRED_BY_REQUEST: ("failed", "approval_expired", "expired", 0),
    Fate.EXPIRED_BY_DEFAULT: ("failed", "approval_expired", "expired", 0),
    Fate.APPROVED_LATE: ("completed", "", "granted", 1),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The number of runs and workers, the seconds of idle intervals, and the limit of the time until a run resumes.

    Each idle interval comes after `settle_seconds`, because processes that have just started do all periodic work. With
    `idle_seconds` of 0, the use of resources by few and by all waiting runs is not compared.
    """

    runs: int
    seed: int = 1
    workers: int = 2
    idle_seconds: float = 30.0
    settle_seconds: float = 5.0
    most_resume_seconds: float = 1.0


@dataclass(kw_only=True)
class WaitingRun:
    """A run that waits for the approval of its call."""

    name: str
    fate: Fate
    response_id: str = ""


@dataclass(frozen=True, kw_only=True)
class Idle:
    """Use of resources in an interval in which runs only waited."""

    memory: Memory
    work: Work


@dataclass(kw_only=True)
class Outcome:
    """Result of the benchmark: figures with limits, counts, and faults."""

    floors: list[Floor] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """True if there are no faults and all figures are within their limits."""
        return not self.faults and all(floor.holds for floor in self.floors)

    def text(self) -> str:
        """Return the result as lines."""
        counts = [f"{name:<62}{value:>16}" for name, value in self.counts.items()]
        faults = [f"{'faults':<62}{len(self.faults):>16}", *(f"    {fault}" for fault in self.faults[:20])]
        return "\n".join([*counts, *faults, *(floor.text() for floor in self.floors)])


@dataclass(kw_only=True)
class WaitingDriver:
    """Lets runs wait, replaces the processes meanwhile, and decides."""

    server: ActingServer
    platform: Platform
    clock: ShiftedClock
    http: aiohttp.ClientSession
    chance: Random
    plan: Plan
    log: Callable[[str], None]
    outcome: Outcome = field(default_factory=Outcome)
    runs: list[WaitingRun] = field(default_factory=list)
    _others: int = 0

    async def drive(self) -> None:
        """Execute everything, one step after the other."""
        runs = self.plan.runs
        fates = self.chance.choices([*_PARTS], [*_PARTS.values()], k=runs - len(Fate))
        # Each fate at least once.
        self.runs = [WaitingRun(name=f"run-{number}", fate=fate) for number, fate in enumerate([*Fate, *fates])]
        self.chance.shuffle(self.runs)
        few = max(1, runs // 10)
        await self._create(self.runs[:few])
        before = None
        if self.plan.idle_seconds:
            # Processes that have just started are compared with others that have just started.
            await self._replace(kill=False)
            before = await self._idle()
        await self._create(self.runs[few:])
        await self._check_waiting("all runs wait", runs)
        await self._set_clock(hours=12)
        await self._replace(kill=False)
        if before is not None:
            self._compare(before, await self._idle(), few=few)
        await self._check_waiting("after half a day and a restart", runs)
        await self._set_clock(hours=25)
        await self._replace(kill=True)
        expired = await self._expire(Fate.EXPIRED_BY_REQUEST)
        await self._check_waiting("after a day and kills", runs - expired)
        await self._decide_timed([run for run in self.runs if run.fate == Fate.APPROVED][:_TIMED_DECISIONS])
        await self._decide([run for run in self.runs if run.fate in {Fate.APPROVED, Fate.DENIED}])
        await self._set_clock(hours=8 * 24)
        await self._expire(Fate.EXPIRED_BY_DEFAULT)
        await self._decide([run for run in self.runs if run.fate == Fate.APPROVED_LATE])
        await until(lambda: self._number(_OPEN) == 0, seconds=120)
        self._compare_ends()

    # -- steps ---------------------------------------------------------------------------------------------------------

    async def _create(self, runs: Sequence[WaitingRun]) -> None:
        expected = self._number(_WAITING) + len(runs)
        await self._each(runs, self._create_run)
        await until(lambda: self._number(_WAITING) == expected, seconds=300)
        self.log(f"{expected} runs wait")

    async def _create_run(self, run: WaitingRun) -> None:
        options: dict[str, Any] = {"wait_for_approval": True}
        if run.fate in _WAIT_SECONDS:
            options["approval_wait_seconds"] = _WAIT_SECONDS[run.fate]
        tool = {
            "type": "mcp",
            "server_label": LABEL,
            "server_url": f"{self.server.url}/mcp",
            "require_approval": "always",
        }
        self.server.release(run.name)
        body = {**self._body(f"{run.name} {ALWAYS}", run.name), "tools": [tool], "background_options": options}
        run.response_id = (await self._json("POST", "/v1/responses", body))["id"]

    def _body(self, text: str, name: str) -> dict[str, Any]:
        limits = {"max_output_tokens": _MOST_TOKENS, "safety_identifier": name}
        return {"model": "m", "input": text, "background": True, **limits}

    async def _replace(self, *, kill: bool) -> None:
        await asyncio.to_thread(self.platform.kill if kill else self.platform.stop)
        await asyncio.to_thread(self.platform.start)
        self.log(f"all processes were {'killed' if kill else 'stopped'} and replaced")

    async def _set_clock(self, *, hours: int) -> None:
        log = self.platform.servers.log("beat")
        noticed = log.read_text().count("the clock was set")
        self.clock.shift(hours * _HOUR)
        await until(lambda: log.read_text().count("the clock was set") > noticed, seconds=30)
        self.log(f"the clock is {hours} hours ahead")

    async def _idle(self) -> Idle:
        await asyncio.sleep(self.plan.settle_seconds)
        before = await asyncio.to_thread(self.platform.work)
        await asyncio.sleep(self.plan.idle_seconds)
        after = await asyncio.to_thread(self.platform.work)
        work = Work(
            statements=after.statements - before.statements,
            rows=after.rows - before.rows,
            blocks=after.blocks - before.blocks,
        )
        return Idle(memory=self.platform.memory(), work=work)

    def _compare(self, before: Idle, after: Idle, *, few: int) -> None:
        waiting = f"{few} to {len(self.runs)} waiting runs"
        for process in ("web", "worker"):
            small, large = getattr(before.memory, process), getattr(after.memory, process)
            name = f"MB of the {process} process, from {waiting}: {small:.0f} to {large:.0f}, more"
            self.outcome.floors.append(Floor(name=name, figure=large - small, limit=_MORE_MB))
        for name, room in (("statements", _MORE_STATEMENTS), ("rows", _MORE_ROWS), ("blocks", _MORE_BLOCKS)):
            small, large = getattr(before.work, name), getattr(after.work, name)
            named = f"{name} in {self.plan.idle_seconds:g} idle s, from {waiting}: {small} to {large}, more"
            floor = Floor(name=named, figure=large - small, limit=_MORE_PART * small + room)
            self.outcome.floors.append(floor)

    async def _check_waiting(self, when: str, expected: int) -> None:
        """Check that the runs wait and hold nothing: other runs, each with a reservation, complete."""
        for what, query, number in (
            ("waiting runs", _WAITING, expected),
            ("waiting runs with a lease", _HELD, 0),
            ("reservations", _RESERVED, 0),
        ):
            if (found := self._number(query)) != number:
                self.outcome.faults.append(f"{when}: {found} {what} instead of {number}")
        began = time.monotonic()
        names = [f"other-{self._others + number}" for number in range(_OTHERS)]
        self._others += _OTHERS
        others = await asyncio.gather(
            *(self._json("POST", "/v1/responses", self._body(f"{name} none", name)) for name in names)
        )
        statuses = await asyncio.gather(*(self._end_of(other["id"]) for other in others))
        name = f"{when}, {expected} of them: s until {_OTHERS} other runs have completed"
        done = set(statuses) == {"completed"}
        figure = time.monotonic() - began if done else None
        self.outcome.floors.append(Floor(name=name, figure=figure, limit=_OTHERS_SECONDS))

    async def _end_of(self, response_id: str) -> str:
        ends_at = time.monotonic() + _OTHERS_SECONDS
        while time.monotonic() < ends_at:
            status: str = (await self._json("GET", f"/v1/responses/{response_id}"))["status"]
            if status not in {"queued", "in_progress"}:
                return status
            await asyncio.sleep(0.1)
        return "not ended"

    async def _expire(self, fate: Fate) -> int:
        """Wait until the runs with this fate have ended, and return their number."""
        ids = [run.response_id for run in self.runs if run.fate == fate]
        query = "SELECT count(*) FROM responses_response WHERE ended_at IS NULL AND id = ANY (%s)"
        began = time.monotonic()
        await until(lambda: self._number(query, ids) == 0, seconds=300)
        self.log(f"{len(ids)} runs have expired within {time.monotonic() - began:.0f} s")
        return len(ids)

    async def _decide_timed(self, runs: Sequence[WaitingRun]) -> None:
        """Approve one run after the other, and measure the time until its call reaches the tool's server."""
        seconds = []
        for run in runs:
            began = time.monotonic()
            await self._decide_run(run)
            await self.server.acted(run.name)
            seconds.append(time.monotonic() - began)
            await until(partial(self._has_ended, run.response_id), seconds=60)
        seconds.sort()
        name = f"s from a decision to the call, {len(seconds)} decisions"
        median, late = seconds[len(seconds) // 2], seconds[int(len(seconds) * 0.95)]
        limit = self.plan.most_resume_seconds
        self.outcome.floors.append(Floor(name=f"{name}, p50", figure=median, limit=limit))
        self.outcome.floors.append(Floor(name=f"{name}, p95", figure=late, limit=limit))

    async def _decide(self, runs: Sequence[WaitingRun]) -> None:
        left = [run for run in runs if not self._has_ended(run.response_id)]
        await self._each(left, self._decide_run)
        self.log(f"{len(left)} more runs were decided")

    async def _decide_run(self, run: WaitingRun) -> None:
        response = await self._json("GET", f"/v1/responses/{run.response_id}")
        (request,) = [item["id"] for item in response["output"] if item["type"] == "mcp_approval_request"]
        path = f"/v1/responses/{run.response_id}/approvals/{request}"
        await self._json("POST", path, {"approve": run.fate != Fate.DENIED, "reason": "It was decided."})

    # -- afterwards ----------------------------------------------------------------------------------------------------

    def _compare_ends(self) -> None:
        """Compare the stored states and the effects with the fates of the runs."""
        with psycopg.connect(self.platform.servers.admin) as connection:
            rows = {run: tuple(row) for run, *row in connection.execute(_ENDED).fetchall()}
        for run in self.runs:
            status, code, state, effects = _EXPECTED[run.fate]
            expected = (status, code, state)
            found = rows.get(run.name, ("missing", "", "", "", 0))
            self.outcome.counts[run.fate] += 1
            if found[:3] != expected or self.server.effects[run.name] != effects:
                acted = self.server.effects[run.name]
                self.outcome.faults.append(f"{run.name} ({run.fate}): {found[:3]} with {acted} effects")
        if (left := self._number(_RESERVED)) != 0:
            self.outcome.faults.append(f"{left} reservations are left")

    # -- helpers -------------------------------------------------------------------------------------------------------

    async def _each(self, runs: Iterable[WaitingRun], step: Callable[[WaitingRun], Any]) -> None:
        left = iter(runs)

        async def client() -> None:
            for run in left:
                await step(run)

        await asyncio.gather(*(client() for _ in range(_CLIENTS)))

    async def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        async with self.http.request(method, f"{self.platform.url}{path}", json=body) as answer:
            if answer.status >= 400:
                raise RuntimeError(f"{method} {path} was answered {answer.status}: {await answer.text()}")
            document: dict[str, Any] = await answer.json()
            return document

    def _has_ended(self, response_id: str) -> bool:
        query = "SELECT count(*) FROM responses_response WHERE ended_at IS NOT NULL AND id = %s"
        return self._number(query, response_id) == 1

    def _number(self, query: str, *parameters: Any) -> int:
        with psycopg.connect(self.platform.servers.admin) as connection:
            (number,) = connection.execute(query.encode(), parameters).fetchone() or (0,)
        return int(number)


async def measured(
    plan: Plan, *, directory: Path, log: Callable[[str], None], programs: Programs | None = None
) -> Outcome:
    """Let the runs wait for a day, and return what has become of them."""
    async with running_server() as server:
        with running_clock() as clock, running_servers(directory, durable=False, programs=programs) as servers:
            servers.environment |= {"EGRESS_ALLOW": "127.0.0.1"}
            key = await asyncio.to_thread(_prepare, servers, server.url)
            platform = Platform(servers=servers, key=key, workers=plan.workers)
            await asyncio.to_thread(platform.start)
            headers = {"Authorization": f"Bearer {platform.key}"}
            # A connection per request, because the web process is replaced.
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            async with aiohttp.ClientSession(headers=headers, timeout=_TIMEOUT, connector=connector) as http:
                driver = WaitingDriver(
                    server=server,
                    platform=platform,
                    clock=clock,
                    http=http,
                    chance=Random(plan.seed),
                    plan=plan,
                    log=log,
                )
                await driver.drive()
                return driver.outcome


def _prepare(servers: Servers, upstream: str) -> str:
    """Route the model with a price, and return a key with a hard budget and a limit of concurrent runs."""
    servers.route(upstream)
    servers.manage("set_price", "*", "--input", _PRICE, "--output", _PRICE)
    limits = ("--budget-usd", _BUDGET_USD, "--budget-period", "month", "--concurrent", str(_CONCURRENT_RUNS))
    made = json.loads(servers.manage("create_key", "--team", "patient", *limits, "--json"))
    return str(made["key"])
