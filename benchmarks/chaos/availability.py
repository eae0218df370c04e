"""`python -m benchmarks chaos --minutes 30`: random faults under mixed load, and their effects on clients.

Paced requests of all kinds arrive at a share of the measured capacity. Every half minute something fails: a process is
killed or replaced, Valkey or PostgreSQL stops, the upstream misbehaves. A fault affects the requests that overlap the
time from its start until ten seconds after its end. Whatever happens, no client may get a wrong answer, no response may
be lost or remain unfinished, and usage records must agree with the upstream's books.
"""

import asyncio
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import psycopg

from benchmarks import published
from benchmarks.books.audit import Comparison, compare, is_settled
from benchmarks.books.command import roll_up, set_prices
from benchmarks.books.runs import LargeBatch
from benchmarks.chaos.checking_upstream import CheckingUpstream, running_checking_upstream
from benchmarks.chaos.clients import CheckedLoad, Request, Tenant, verify
from benchmarks.chaos.deployment import until
from benchmarks.chaos.faults import RECOVERY_SECONDS, Faults, Platform, Window, running_platform
from benchmarks.mixed import arrivals, capacity, created_teams
from benchmarks.report import Floor
from benchmarks.rolling_restart import Balancer
from benchmarks.stack import manage, tell

MOST_UNAVAILABLE = 0.05
"""Maximum share, in percent, of failed requests among those that no fault has hit."""
END_SECONDS = 60.0
_SETTLED_SECONDS = 900.0
_BATCH_SECONDS = 3600.0
_SIGN_IN = """
from importlib import import_module
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
user = User.objects.create(username="chaos", is_staff=True, is_superuser=True)
session = import_module(settings.SESSION_ENGINE).SessionStore()
session[SESSION_KEY], session[BACKEND_SESSION_KEY] = str(user.pk), settings.AUTHENTICATION_BACKENDS[0]
session[HASH_SESSION_KEY] = user.get_session_auth_hash()
session.save()
print(f"cookie {settings.SESSION_COOKIE_NAME}={session.session_key}")
"""
_OPEN = "SELECT id, status FROM responses_response WHERE ended_at IS NULL"


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Faults of a kind: how often, the requests that they hit, and the failed ones among them.

    `seconds` is the longest time from the end of a fault to the start of a request that failed.
    """

    kind: str
    count: int
    requests: int
    failed: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of the scenario. `failures` counts the failures of requests that no fault has hit, by their text."""

    minutes: float
    load: float
    seed: int
    capacity: float
    requests: int
    failed: int
    repeated: int
    unhit: int
    unhit_failed: int
    failures: Mapping[str, int]
    effects: Sequence[Effect]
    acknowledged: Mapping[str, int]
    wrong: Sequence[str]
    stuck: Sequence[str]
    settled_seconds: float
    books: Mapping[str, Any]
    permitted: Mapping[str, int]
    book_faults: Sequence[str]

    @property
    def availability(self) -> float:
        """Share of successful requests among those that no fault hit."""
        return 1 - self.unhit_failed / max(1, self.unhit)

    @property
    def total_availability(self) -> float:
        """Share of successful requests among all."""
        return 1 - self.failed / max(1, self.requests)

    def floors(self) -> Iterator[Floor]:
        """Yield the limits."""
        unavailable = 100 * (1 - self.availability) if self.unhit else None
        yield Floor(name="unavailable of the requests that no fault hit, %", figure=unavailable, limit=MOST_UNAVAILABLE)
        yield Floor(name="wrong answers", figure=len(self.wrong), limit=0)
        lost = sum(self.acknowledged.get(kind, 0) for kind in ("lost", "different", "not ended", "files lost"))
        yield Floor(name="acknowledged responses and files lost or changed", figure=lost, limit=0)
        yield Floor(name=f"runs open {END_SECONDS:.0f} s after the end", figure=len(self.stuck), limit=0)
        yield Floor(name="differences from the upstream's books", figure=len(self.book_faults), limit=0)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report."""
        yield (
            f"{self.minutes:g} minutes at {self.load:.0%} of {self.capacity:.0f} actions/s: {self.requests:,} "
            f"requests, {self.repeated:,} repetitions"
        )
        yield f"available, of all requests:                {self.total_availability:.4%} ({self.failed:,} failed)"
        yield f"available, of {self.unhit:,} that no fault hit: {self.availability:.4%} ({self.unhit_failed:,} failed)"
        yield from (f"    {count:,} x {text}" for text, count in self.failures.items())
        yield f"{'fault':<28}{'times':>6}{'requests hit':>14}{'failed':>8}{'last failure after s':>22}"
        for effect in self.effects:
            seconds = f"{effect.seconds:.1f}" if effect.failed else "-"
            yield f"{effect.kind:<28}{effect.count:>6}{effect.requests:>14,}{effect.failed:>8,}{seconds:>22}"
        yield f"acknowledged: {', '.join(f'{count:,} {kind}' for kind, count in self.acknowledged.items())}"
        yield f"nothing was open {self.settled_seconds:.1f} s after the last request"
        yield from (f"    stuck: {each}" for each in self.stuck[:10])
        yield f"wrong: {len(self.wrong)}"
        yield from (f"    {each}" for each in self.wrong[:20])


def effects(windows: Sequence[Window], requests: Sequence[Request]) -> Iterator[Effect]:
    """Yield the effects of the faults by kind."""
    for kind in sorted({window.kind for window in windows}):
        mine = [window for window in windows if window.kind == kind]
        hit = [(window, each) for window in mine for each in requests if window.hits(each.began, each.ended)]
        failed = [(window, each) for window, each in hit if each.failure]
        seconds = max((each.began - window.ended for window, each in failed), default=0.0)
        yield Effect(kind=kind, count=len(mine), requests=len(hit), failed=len(failed), seconds=max(0.0, seconds))


def summarised(
    options: Namespace,
    load: CheckedLoad,
    faults: Faults,
    *,
    rate: float,
    found: Counter[str],
    stuck: Sequence[str],
    settled: float,
    books: Comparison,
    wrong: Sequence[str],
) -> Outcome:
    """Compare the requests with the times of the faults."""
    unhit = [each for each in load.requests if not any(w.hits(each.began, each.ended) for w in faults.windows)]
    failures = Counter(f"{each.kind}: {each.failure}" for each in unhit if each.failure)
    return Outcome(
        minutes=options.minutes,
        load=options.load,
        seed=options.seed,
        capacity=rate,
        requests=len(load.requests),
        failed=sum(bool(each.failure) for each in load.requests),
        repeated=sum(each.repeated for each in load.requests),
        unhit=len(unhit),
        unhit_failed=sum(bool(each.failure) for each in unhit),
        failures=dict(failures.most_common(20)),
        effects=list(effects(faults.windows, load.requests)),
        acknowledged=dict(found),
        wrong=wrong,
        stuck=stuck,
        settled_seconds=settled,
        books=books.figures,
        permitted=dict(books.permitted),
        book_faults=books.faults,
    )


async def measured(options: Namespace, *, directory: Path, log: Callable[[str], None] = tell) -> Outcome:
    """Run the scenario."""
    async with running_checking_upstream(seed=options.seed) as upstream:
        with running_platform(directory, upstream=upstream.url) as platform:
            return await _measured(options, platform, upstream, log)


async def _measured(
    options: Namespace, platform: Platform, upstream: CheckingUpstream, log: Callable[[str], None]
) -> Outcome:
    environment = platform.servers.environment
    await asyncio.to_thread(set_prices, environment)
    teams = await asyncio.to_thread(created_teams, environment, options.teams)
    tenants = [Tenant(headers=team.headers, number=number) for number, team in enumerate(teams)]
    [cookie] = [
        line.removeprefix("cookie ")
        for line in (await asyncio.to_thread(manage, environment, "shell", "-v", "0", "-c", _SIGN_IN)).splitlines()
        if line.startswith("cookie ")
    ]
    platform.start()
    log("all processes are running")
    balancer = Balancer(platform.targets)
    probing = asyncio.create_task(balancer.probe())
    faults = Faults(platform, upstream, seed=options.seed, log=log)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), read_bufsize=2**20) as session:
        load = CheckedLoad(
            session,
            tenants,
            balancer,
            seed=options.seed,
            mcp_url=upstream.url,
            cookie=cookie,
            has_sandbox=platform.has_sandbox,
        )
        rate = options.rate or await capacity(load, seconds=options.capacity_seconds)
        # The capacity is measured with all clients at once; only the paced requests count.
        before = len(load.requests)
        log(f"capacity: {rate:.0f} actions/s, {dict(load.errors)}; {options.minutes:g} minutes at {options.load:.0%}")
        seconds = 60 * options.minutes
        batch = asyncio.create_task(_batch_faults(load, balancer, options.batch_lines))
        striking = asyncio.create_task(
            faults.run(seconds=seconds - RECOVERY_SECONDS, pause=options.pause, only=options.only or ())
        )
        try:
            await arrivals(load, rate=rate * options.load, seconds=seconds, seed=options.seed)
            await striking
            log("waiting for the batch")
            async with asyncio.timeout(_BATCH_SECONDS):
                batch_faults = await batch
        finally:
            for task in (striking, batch):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        ended = time.monotonic()
        log(f"{len(load.requests):,} requests, {len(load.acknowledged):,} responses; waiting for open runs")
        del load.requests[:before]
        with suppress(TimeoutError):
            await until(partial(is_settled, platform.servers.admin), seconds=END_SECONDS)
        settled = time.monotonic() - ended
        stuck = await asyncio.to_thread(_open, platform.servers.admin)
        await platform.wait_until_ready()
        wrong = [*faults.broken, *upstream.wrong, *batch_faults]
        found = await verify(load)
        log(f"{dict(found)}; comparing the books")
    probing.cancel()
    with suppress(TimeoutError):
        # Calls of killed processes keep their reservation for a while; it does not count as a run.
        await until(partial(is_settled, platform.servers.admin), seconds=_SETTLED_SECONDS)
    await asyncio.to_thread(roll_up, environment)
    killed = Counter(window.kind.removesuffix(" killed") for window in faults.windows)
    books = await asyncio.to_thread(
        compare, admin=platform.servers.admin, upstream=upstream, observed=load.runs, killed=killed
    )
    log(books.text())
    for each in load.requests:
        if each.failure and not any(window.hits(each.began, each.ended) for window in faults.windows):
            last = [window for window in faults.windows if window.began < each.began][-1:]
            since = [f"{each.began - window.ended:.1f} s after {window.kind}" for window in last]
            log(f"unavailable: {each.kind} {each.name}, {each.ended - each.began:.1f} s, {since}")
    return summarised(
        options,
        load,
        faults,
        rate=rate,
        found=found,
        stuck=stuck,
        settled=settled,
        books=books,
        wrong=[*wrong, *load.wrong],
    )


async def _batch_faults(load: CheckedLoad, balancer: Balancer, lines: int) -> list[str]:
    """Execute a batch of the first team and return its faults."""
    if not lines:
        return []
    headers = {**load.tenants[0].headers}
    # A form is sent with another content type.
    headers.pop("Content-Type")
    async with aiohttp.ClientSession(headers=headers) as http:
        return await LargeBatch(lines=lines, http=http, url=lambda: balancer.choose().url).faults()


def _open(admin: str) -> list[str]:
    with psycopg.connect(admin) as connection:
        return [f"{response_id} is {status}" for response_id, status in connection.execute(_OPEN)]


def run(options: Namespace, *, directory: Path) -> int:
    """Run the scenario and print the report. With `--check`, return 1 if a limit is exceeded."""
    outcome = asyncio.run(measured(options, directory=directory))
    floors = list(outcome.floors())
    for line in (*outcome.lines(), *(floor.text() for floor in floors)):
        print(line)
    figures = {
        **asdict(outcome),
        "availability": outcome.availability,
        "total_availability": outcome.total_availability,
    }
    return published.conclude(
        "chaos", options, content={"conditions": published.conditions(), **figures}, floors=floors
    )


def table(content: Mapping[str, Any]) -> str:
    """Return the table of the documentation."""
    rows = [
        [
            effect["kind"],
            str(effect["count"]),
            f"{effect['requests']:,}",
            f"{effect['failed']:,}",
            f"{effect['seconds']:.1f}" if effect["failed"] else "–",
        ]
        for effect in content["effects"]
    ]
    head = ["fault", "times", "requests hit", "failed", "last failure after, s"]
    found, books, at = content["acknowledged"], content["books"], content["conditions"]
    lost = sum(found.get(kind, 0) for kind in ("lost", "different", "not ended"))
    return (
        f"{published.table(head, rows)}\n\n"
        f"{content['requests']:,} requests in {content['minutes']:g} minutes, at {content['load']:.0%} of the capacity "
        f"of {content['capacity']:.0f} actions/s.\n"
        f"{content['availability']:.3%} of the {content['unhit']:,} requests that no fault hit succeeded, and "
        f"{content['total_availability']:.3%} of all.\n"
        f"{len(content['wrong'])} wrong answers; {found.get('retrieved', 0):,} responses retrieved afterwards, "
        f"{lost:,} lost or changed;\n"
        f"{len(content['stuck'])} runs open after a minute; {books['usage records']:,} usage records, "
        f"{len(content['book_faults'])} differences from the upstream's books.\n"
        f"{at['cores']} cores shared with clients, upstream and database, {at['date']}."
    )


VIEWS = {"table": table}
