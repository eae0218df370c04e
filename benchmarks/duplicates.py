"""`python -m benchmarks duplicates`: one request with an idempotency key, sent many times at once to three processes.

All clients must get the same bytes, and the model's server one request. `--check` ends with 1 otherwise.
"""

import asyncio
import json
import sys
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import orjson
from typing_extensions import override

from benchmarks.failover.cases import APIS
from benchmarks.failover.clients import PATHS, body_of
from benchmarks.failover.outage_targets import MODEL, OutageTarget, running_targets
from benchmarks.stack import MANAGE, Programs, Servers, running_servers, tell

_PROCESSES = 3
_REPLAYED = "idempotent-replayed"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A request of one API. `name` is that of the model."""

    api: str
    streamed: bool
    background: bool = False
    name: str = MODEL

    @override
    def __str__(self) -> str:
        mode = "stream" if self.streamed else "JSON"
        return f"{self.api}, {'background, ' if self.background else ''}{mode}"


CASES = [
    *(Case(api=api, streamed=streamed) for api in APIS for streamed in (False, True)),
    Case(api="responses", streamed=False, background=True),
    Case(api="responses", streamed=True, background=True),
]


@dataclass(kw_only=True)
class Found:
    """The answers to the duplicates of one request, and the requests that the model's server has received."""

    case: Case
    duplicates: int
    statuses: Counter[int] = field(default_factory=Counter)
    answers: set[bytes] = field(default_factory=set)
    replayed: int = 0
    attempts: int = 0
    seconds: float = 0.0

    def faults(self) -> list[str]:
        """Return what is wrong."""
        faults = []
        if self.statuses != {200: self.duplicates}:
            faults.append(f"statuses {dict(self.statuses)}")
        if len(self.answers) != 1:
            faults.append(f"{len(self.answers)} different answers")
        if self.attempts != 1:
            faults.append(f"{self.attempts} requests to the model's server")
        if self.replayed != self.duplicates - 1:
            faults.append(f"{self.duplicates - self.replayed} answers without the header {_REPLAYED}")
        return faults

    def line(self) -> str:
        """Return a line of the report."""
        faults = ", ".join(self.faults())
        return f"{'MISSED' if faults else 'holds':7} {self.case!s:30} {self.seconds:5.1f} s  {faults}"


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Send the duplicates. Return 1 with --check if a request was executed twice or got different answers."""
    parser = ArgumentParser(prog="python -m benchmarks duplicates")
    parser.add_argument("--duplicates", type=int, default=500, help="requests at once (default: 500)")
    parser.add_argument("--check", action="store_true", help="exit 1 if a promise is not kept")
    options = parser.parse_args(arguments)
    found = asyncio.run(measured(duplicates=options.duplicates, directory=directory, log=tell))
    for result in found:
        print(result.line())
    return 1 if options.check and any(result.faults() for result in found) else 0


async def measured(
    *,
    duplicates: int,
    directory: Path,
    programs: Programs | None = None,
    log: Callable[[str], None] = lambda _: None,
) -> list[Found]:
    """Run the platform and send the duplicates of each case."""
    async with running_targets(["server"]) as (target,):
        with running_servers(directory, durable=False, programs=programs) as servers:
            url, key = await asyncio.to_thread(_start, servers, target)
            log("all processes are running")
            return [await _send(case, duplicates, target, url=url, key=key) for case in CASES]


def _start(servers: Servers, target: OutageTarget) -> tuple[str, str]:
    servers.environment |= {"EGRESS_ALLOW": "127.0.0.1"}
    key = servers.route(target.url.removesuffix("/v1"))
    web = servers.start_web(processes=_PROCESSES, key=key)
    # Background responses need a worker.
    is_ready = lambda: "celery@" in servers.log("worker").read_text()  # noqa: E731
    servers.start("worker", sys.executable, MANAGE, "worker", is_ready=is_ready)
    return web.url, key


async def _send(case: Case, duplicates: int, target: OutageTarget, *, url: str, key: str) -> Found:
    found = Found(case=case, duplicates=duplicates)
    name = f"{case}".replace(", ", "-").replace(" ", "-")
    body = {**body_of(case, name), **({"background": True} if case.background else {})}
    headers = {
        "Authorization": f"Bearer {key}",
        "Content-Type": "application/json",
        "Idempotency-Key": name,
    }
    began = time.monotonic()
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:

        async def send() -> None:
            async with session.post(url + PATHS[case.api], data=orjson.dumps(body)) as answer:
                content = await answer.read()
                found.statuses[answer.status] += 1
                found.answers.add(content)
                found.replayed += _REPLAYED in answer.headers

        async with asyncio.TaskGroup() as group:
            for _ in range(duplicates):
                group.create_task(send())
        if case.background and not case.streamed:
            await _wait_for_end(session, f"{url}/v1/responses/{json.loads(min(found.answers))['id']}")
    found.seconds = time.monotonic() - began
    found.attempts = sum(attempt.run == name for attempt in target.attempts)
    return found


async def _wait_for_end(session: aiohttp.ClientSession, url: str) -> None:
    while True:
        async with session.get(url) as answer:
            if (await answer.json())["status"] not in {"queued", "in_progress"}:
                return
        await asyncio.sleep(0.2)
