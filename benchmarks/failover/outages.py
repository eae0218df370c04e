"""`python -m benchmarks target-outages`: streams through three targets that fail and return at random times.

A third of the streams each are Responses, chat completions and Messages, on three web processes. Clients check the text
of every answer, and the usage records must agree with the targets' books. All keys have hard budgets; that of some of
the streams is too small for them. `--check` ends with 1 if a promise is not kept.
"""

import asyncio
import json
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from random import Random

import aiohttp

from benchmarks.books.audit import is_settled
from benchmarks.books.driver import until
from benchmarks.failover.cases import APIS, Outcome
from benchmarks.failover.clients import Reply, outcome_of, reply_to
from benchmarks.failover.command import add_targets
from benchmarks.failover.outage_targets import MODEL, PRICES, Change, OutageTarget, State, running_targets, schedule
from benchmarks.failover.upstream import Attempt, text_for
from benchmarks.failover.usage import stored_records, usage_faults
from benchmarks.stack import Programs, Servers, running_servers, tell

TARGETS = ("first", "second", "third")
ANSWERED = 0.999
"""Least share of the streams that are answered in full."""
_PROCESSES = 3
# Short, so that stalled targets cost seconds. Of the first token and of silence within an answer.
_LIMITS = {"UPSTREAM_FIRST_TOKEN_SECONDS": "4", "UPSTREAM_STALL_SECONDS": "3", "UPSTREAM_IDLE_TIMEOUT": "8"}
_DEADLINE_SECONDS = 60.0
_CLIENTS = 24
# Every sixth stream is of a key with a small budget, which lasts for about half of them.
_BUDGETED, _BUDGET_SHARE = 6, 0.5
_LARGE_BUDGET = Decimal(100)
# Of a whole answer, in dollars.
_ANSWER_COST = Decimal("0.001")
_SETTLED_SECONDS = 90.0
_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A request for the model of the benchmark. `run` is the request's name, `name` the model's."""

    run: str
    api: str
    is_budgeted: bool
    name: str = MODEL
    streamed: bool = True


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A stream with its reply. `ended` is in seconds after the start."""

    stream: Stream
    reply: Reply
    began: float
    ended: float

    @property
    def outcome(self) -> Outcome:
        """The outcome of the stream."""
        return outcome_of(self.reply, [text_for(self.stream.run)])

    @property
    def may_fail(self) -> bool:
        """True if the budget of the stream's key may be too small for its first request or for another one."""
        return self.stream.is_budgeted and self.outcome in {Outcome.ERROR, Outcome.FAILED}


@dataclass(kw_only=True)
class Result:
    """The streams of a run, the attempts at the targets, and what is wrong."""

    ended: Sequence[Ended]
    attempts: Sequence[Attempt]
    changes: Sequence[Change]
    budget: Decimal
    spent: Decimal = Decimal(0)
    faults: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """Yield the report."""
        outcomes = Counter(self._outcome(ended) for ended in self.ended)
        seconds = sorted(ended.ended - ended.began for ended in self.ended if ended.outcome is Outcome.WHOLE)
        states = Counter(attempt.state for attempt in self.attempts)
        failures = Counter(change.state.value for change in self.changes if change.state is not State.RUNNING)
        runs = Counter(attempt.run for attempt in self.attempts)
        answered = sum(ended.outcome is Outcome.WHOLE for ended in self.ended)
        wanted = sum(not ended.may_fail for ended in self.ended)
        yield f"streams: {len(self.ended)}: {_counted(outcomes)}"
        yield f"answered in full, without those beyond the small budget: {answered / wanted:.3%}"
        yield f"failures of targets: {_counted(failures)}"
        yield f"attempts: {len(self.attempts)}: {_counted(states)}; at most {max(runs.values())} for one stream"
        yield f"continued from a prefix: {sum(bool(attempt.prefix) for attempt in self.attempts)}"
        if seconds:
            middle, late = seconds[len(seconds) // 2], seconds[int(len(seconds) * 0.99)]
            yield f"seconds of an answer: median {middle:.1f}, p99 {late:.1f}, at most {seconds[-1]:.1f}"
        yield f"small budget: {self.spent:.6f} of {self.budget:.6f} dollars spent at the targets"
        yield f"faults: {len(self.faults)}"
        yield from (f"    {fault}" for fault in self.faults[:_SHOWN])

    @staticmethod
    def _outcome(ended: Ended) -> str:
        if ended.may_fail:
            return f"{ended.outcome} beyond the small budget"
        return f"{ended.outcome} ({ended.reply.error})" if ended.reply.error else ended.outcome.value

    def check(self) -> None:
        """Add the faults of the streams and of the budget."""
        allowed = {Outcome.WHOLE, Outcome.FAILED, Outcome.ERROR}
        others = [ended for ended in self.ended if not ended.may_fail]
        missed = [ended for ended in others if ended.outcome is not Outcome.WHOLE]
        self.faults += [
            f"{ended.stream.run} ({ended.stream.api}) at {ended.began:.1f}-{ended.ended:.1f} s: {ended.outcome}, "
            f"error {ended.reply.error!r}, {self._story(ended.stream.run)}"
            for ended in missed
            if ended.outcome not in allowed or len(missed) > (1 - ANSWERED) * len(others)
        ]
        if self.spent > self.budget:
            self.faults.append(f"{self.spent} dollars spent of a budget of {self.budget}")

    def _story(self, run: str) -> str:
        found = [attempt for attempt in self.attempts if attempt.run == run]
        return ", ".join(f"{attempt.target} {attempt.state} after {attempt.output} words" for attempt in found)


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Run the streams. Return 1 with --check if a promise is not kept."""
    parser = ArgumentParser(prog="python -m benchmarks target-outages")
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="exit 1 if a promise is not kept")
    options = parser.parse_args(arguments)
    result = asyncio.run(measured(streams=options.streams, seed=options.seed, directory=directory, log=tell))
    print("\n".join(result.lines()))
    return 1 if options.check and result.faults else 0


async def measured(
    *,
    streams: int,
    seed: int,
    directory: Path,
    programs: Programs | None = None,
    log: Callable[[str], None] = lambda _: None,
) -> Result:
    """Run the platform and the streams, and compare their texts and usage records with the targets' books."""
    async with running_targets(TARGETS) as targets:
        with running_servers(directory, durable=False, programs=programs) as servers:
            asked = [
                Stream(run=f"s{seed}.{number}", api=APIS[number % len(APIS)], is_budgeted=number % _BUDGETED == 0)
                for number in range(streams)
            ]
            budget = _ANSWER_COST * Decimal(_BUDGET_SHARE) * sum(stream.is_budgeted for stream in asked)
            url, keys = await asyncio.to_thread(_start, servers, targets, budget)
            log("all processes are running")
            driver = _Driver(url=url, keys=keys, targets=targets, chance=Random(seed))
            ended = await driver.run(asked)
            log("all streams have ended")
            with suppress(TimeoutError):
                # Calls that are still open have no record, which is a fault of their stream.
                await until(partial(is_settled, servers.admin), seconds=_SETTLED_SECONDS)
            records = await asyncio.to_thread(stored_records, servers.admin)
    attempts = [attempt for target in targets for attempt in target.attempts]
    result = Result(ended=ended, attempts=attempts, changes=driver.changes, budget=budget)
    budgeted = {stream.run for stream in asked if stream.is_budgeted}
    result.spent = sum((attempt.cost for attempt in attempts if attempt.run in budgeted), Decimal(0))
    result.check()
    result.faults += [f"{name}: {fault}" for name, fault in usage_faults(attempts, records)]
    return result


def _start(servers: Servers, targets: Sequence[OutageTarget], budget: Decimal) -> tuple[str, tuple[str, str]]:
    """Start the web processes. Return their URL and two keys, the second of which has the small budget."""
    servers.environment |= {"EGRESS_ALLOW": "127.0.0.1", **_LIMITS}
    made = [
        json.loads(
            servers.manage(
                *("create_key", "--team", team, "--json", "--budget-usd", f"{amount:.10f}", "--budget-period", "day")
            )
        )
        for team, amount in (("large", _LARGE_BUDGET), ("small", budget))
    ]
    rows = [
        {
            "name": f"{MODEL}.{target.name}",
            "url": target.url,
            "model": MODEL,
            # The last one only gets requests while both others fail.
            "priority": int(target is targets[-1]),
            "capabilities": {"assistant_prefix": "last_message"} if target.takes_prefix else {},
            "prices": PRICES,
        }
        for target in targets
    ]
    add_targets(servers, rows)
    web = servers.start_web(processes=_PROCESSES, key=made[0]["key"])
    return web.url, (made[0]["key"], made[1]["key"])


@dataclass(kw_only=True)
class _Driver:
    """Sends the streams, and changes the states of the targets meanwhile."""

    url: str
    keys: tuple[str, str]
    targets: Sequence[OutageTarget]
    chance: Random
    changes: list[Change] = field(default_factory=list)

    async def run(self, asked: Sequence[Stream]) -> list[Ended]:
        """Send the streams with a fixed number of clients."""
        self._began = time.monotonic()
        changing = asyncio.create_task(self._change())
        waiting, ended = iter(asked), list[Ended]()

        async def client(session: aiohttp.ClientSession) -> None:
            for stream in waiting:
                began = time.monotonic() - self._began
                headers = {"Authorization": f"Bearer {self.keys[stream.is_budgeted]}"}
                reply = await reply_to(
                    session, self.url, stream, stream.run, deadline=_DEADLINE_SECONDS, headers=headers
                )
                now = time.monotonic() - self._began
                ended.append(Ended(stream=stream, reply=reply, began=began, ended=now))

        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        headers = {"Content-Type": "application/json"}
        try:
            async with (
                aiohttp.ClientSession(headers=headers, connector=connector) as session,
                asyncio.TaskGroup() as group,
            ):
                for _ in range(_CLIENTS):
                    group.create_task(client(session))
        finally:
            changing.cancel()
            # Answers that the platform has left may be written to their end.
            for target in self.targets:
                await target.set_state(State.RUNNING)
        return ended

    async def _change(self) -> None:
        by_name = {target.name: target for target in self.targets}
        for change in schedule(TARGETS, seconds=3_600, chance=self.chance):
            await asyncio.sleep(max(0.0, self._began + change.at - time.monotonic()))
            await by_name[change.target].set_state(change.state)
            self.changes.append(change)
