"""`python -m benchmarks admin`: latency of the console and of the API's lists with 5,000,000 responses.

Fills a private PostgreSQL, starts a web process, and requests every page of the console as an administrator, as an
operator and as the lead of the largest team, and the lists of the API with keys: once cold, then at least twenty times
warm, with different parameters in turn. With `--check` the exit code is 1 if the p95 of a page is above 300 ms, or if
it executes more than 50 queries, unless it is an export.
"""

import os
import random
import re
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import django
import psycopg

from benchmarks.console import population
from benchmarks.console.api import lists_of_a_team, lists_of_the_organization
from benchmarks.console.known import known_rows
from benchmarks.console.measurement import EXPORT, Browser, Subject, Timed
from benchmarks.console.organization import create_keys, create_organization, seeded_subject, sign_in
from benchmarks.console.pages import pages
from benchmarks.console.routes import paths_of_routes
from benchmarks.stack import POSTGRES_SETTINGS, manage, running_servers, tell

MOST_MS, MOST_QUERIES = 300.0, 50
# A sample runs in CI, on machines whose speed differs by a factor of three. A page that reads the whole table instead
# of an index range still exceeds this with 100,000 responses, even if only its fastest request counts.
MOST_MS_OF_A_SAMPLE = 1.5 * MOST_MS
PAGES_OF_A_SAMPLE, DAYS_OF_A_SAMPLE = 10, 32
LOADING = {
    **POSTGRES_SETTINGS,
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
}
"""Settings of PostgreSQL for requests that only read, and test data that need not survive a crash."""

Paths = Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Visitor:
    """A user or an API key, with the pages to request."""

    who: str
    headers: Mapping[str, str]
    pages: Paths


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Measure and print the table. With `--check`, return 1 if a page exceeds its limits."""
    parser = ArgumentParser(prog="python -m benchmarks admin", description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a page exceeds its limits")
    parser.add_argument("--responses", type=int, default=5_000_000, help="number of responses")
    parser.add_argument(
        "--brief", action="store_true", help="for tests: a sample of the pages, 30 days only, fastest below 450 ms"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample (default %(default)s)")
    parser.add_argument("--only", default="", help="only pages whose names match this regular expression")
    options = parser.parse_args(arguments)
    with running_servers(directory, settings=LOADING) as servers:
        os.environ.update(servers.environment, DJANGO_SETTINGS_MODULE="server.settings")
        django.setup()
        create_organization()
        population.fill(admin=servers.admin, rows=options.responses, tell=tell)
        days = DAYS_OF_A_SAMPLE if options.brief else population.DAYS
        visitors = prepare(servers.admin, environment=servers.environment, days=days)
        subject = Subject(web=servers.start_web(), admin=servers.admin)
        timed = list(measure(subject, visitors, options))
    limits = Limits(most_ms=MOST_MS_OF_A_SAMPLE, by_fastest=True) if options.brief else Limits()
    print(limits.text(timed))
    return 1 if options.check and not all(limits.holds(measured) for measured in timed) else 0


def prepare(admin: str, *, environment: Mapping[str, str], days: int) -> list[Visitor]:
    """Add the rows that are not test data, roll up the hours of the latest days, and return the visitors."""
    from core.clock import now
    from responses.models.rollups import RollupMark

    subject = seeded_subject()
    began = time.monotonic()
    hour = now().replace(minute=0, second=0, microsecond=0)
    RollupMark.objects.update_or_create(id=1, defaults={"until": hour - timedelta(days=days)})
    manage(environment, "rollup")
    tell(f"hours were rolled up in {time.monotonic() - began:.0f} s")
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute("ANALYZE")
        known = known_rows(connection)
    of_console = {**pages(known), **paths_of_routes(subject)}
    keys = create_keys()
    return [
        *(
            Visitor(who=who, headers={"Cookie": cookie}, pages=of_console)
            for who, cookie in sign_in("administrator", "operator", "team lead").items()
        ),
        Visitor(who="key", headers={"Authorization": f"Bearer {keys.team}"}, pages=lists_of_a_team(known)),
        Visitor(
            who="admin key",
            headers={"Authorization": f"Bearer {keys.organization}"},
            pages=lists_of_the_organization(known),
        ),
    ]


def measure(subject: Subject, visitors: Sequence[Visitor], options: Namespace) -> Iterator[Timed]:
    """Request the pages that the options select."""
    for visitor in visitors:
        wanted = {name: paths for name, paths in visitor.pages.items() if re.search(options.only, name)}
        if options.brief:
            long = [name for name in wanted if "24h" not in name]
            names = random.Random(f"{options.seed}").sample(long, min(PAGES_OF_A_SAMPLE, len(long)))
            wanted = {name: wanted[name] for name in names}
        browser = Browser(subject, headers=visitor.headers, who=visitor.who)
        browser.get("/admin/responses/response/?q=resp_none")
        for name, paths in wanted.items():
            timed = browser.time(name, paths)
            if timed is not None:
                tell(Limits().row(timed))
                yield timed


def worst_of_each(timed: Sequence[Timed]) -> list[Timed]:
    """Return each page with its slowest user."""
    worst: dict[str, Timed] = {}
    for measured in timed:
        if measured.page not in worst or measured.p95 > worst[measured.page].p95:
            worst[measured.page] = measured
    return list(worst.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a page. `most_ms` applies to the p95 of the warm requests, or with `by_fastest` to the fastest."""

    most_ms: float = MOST_MS
    by_fastest: bool = False

    def holds(self, timed: Timed) -> bool:
        """Return whether a page is within its limits."""
        # The queries of an export read all rows of the period in batches, while it is sent.
        is_few = timed.queries <= MOST_QUERIES or EXPORT in timed.slowest_path
        return (timed.fastest if self.by_fastest else timed.p95) <= self.most_ms and is_few

    def text(self, timed: Sequence[Timed]) -> str:
        """Return the table: each page with the slowest user, and exceeded limits."""
        titles = "".join(f"{title:>9}" for title in ("p50 ms", "p95 ms", "worst ms", "cold ms", "CPU ms", "SQL"))
        head = f"{'page':52}{'slowest for':>15}{titles}"
        missed = [measured for measured in timed if not self.holds(measured)]
        outcome = f"{len(timed)} pages, {len(missed)} of them above {self.most_ms:g} ms, or above {MOST_QUERIES} SQL"
        rows = [self.row(measured) for measured in worst_of_each(timed)]
        return "\n".join([head, *rows, outcome, *(self.row(measured) for measured in missed)])

    def row(self, timed: Timed) -> str:
        """Return a line of the table. A page that exceeds its limits is followed by its slowest path."""
        times = (timed.typical, timed.p95, timed.slowest, timed.first_ms, timed.cpu_ms, timed.queries)
        figures = "".join(f"{figure:9.0f}" for figure in times)
        return f"{timed.page:52}{timed.who:>15}{figures}{'' if self.holds(timed) else f'  MISSED {timed.slowest_path}'}"
