"""The scenario: many background runs while processes are killed."""

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import psycopg

from benchmarks.chaos.deployment import Deployment, running_deployment, until
from benchmarks.chaos.mock_servers import CALLS, LABEL, MockServers, running_mock_servers

_AT_ONCE = 8
_AGAIN_SECONDS = 0.5
_FOLLOWED = 10
_FLOW_SECONDS = 0.5
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_read=30)
# The platform itself gives up sooner while it has no database.
_ANSWER_SECONDS = 60
_LOG_LINES = 15
# An independent record of tool calls: when a call starts, and when its result is stored.
_TRIGGER = """
CREATE SCHEMA chaos;
CREATE TABLE chaos.note (
    at timestamptz NOT NULL, response_id text NOT NULL, call_id text NOT NULL, status text NOT NULL
);
CREATE INDEX ON chaos.note (response_id);
CREATE FUNCTION chaos.note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO chaos.note VALUES (clock_timestamp(), NEW.response_id, NEW.call_id, NEW.status);
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_note AFTER UPDATE ON responses_toolcall FOR EACH ROW EXECUTE FUNCTION chaos.note();
"""
# The rows that an interrupted scenario prints.
_RESPONSES = """
SELECT 'responses', status, lease_owner, lease_until < now() AS expired, count(*) FROM responses_response
GROUP BY 2, 3, 4 ORDER BY 2
"""
_BACKENDS = r"""
SELECT 'backend', pid, application_name, state, wait_event_type, wait_event,
    left(regexp_replace(query, '\s+', ' ', 'g'), 100)
FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Number of runs and times of the disasters, given as shares of all tool calls.

    With `kill_every`, workers and web processes are also killed at this interval in seconds until all runs have ended.
    Runs are created while fewer than `open_runs` have not ended.
    """

    runs: int
    kills: Sequence[float] = ()
    web_kills: Sequence[float] = ()
    valkey_restarts: Sequence[float] = ()
    postgres_restarts: Sequence[float] = ()
    kill_every: float | None = None
    concurrency: int = 200
    open_runs: int = 400
    patience: float = 3600.0


@dataclass(kw_only=True)
class Scenario:
    """A run of the plan, with the observations of the clients.

    `created` has response ids by run, `received` event numbers by followed response, `silent` the runs whose create
    request was not answered in time.
    """

    plan: Plan
    mocks: MockServers
    deployment: Deployment
    log: Callable[[str], None]
    created: dict[str, str] = field(default_factory=dict)
    unanswered: int = 0
    silent: list[str] = field(default_factory=list)
    received: dict[str, list[int]] = field(default_factory=dict)
    disasters: Counter[str] = field(default_factory=Counter)
    is_over: bool = False
    seconds: float = 0.0
    _room: asyncio.Event = field(default_factory=asyncio.Event)
    _addresses: Iterator[str] = field(init=False)
    _followers: list[asyncio.Task[None]] = field(default_factory=list)

    async def run(self) -> None:
        """Create all runs, cause the planned disasters, and wait until all runs have ended."""
        self._addresses = itertools.cycle([f"{target.url}/v1/responses" for target in self.deployment.targets])
        with psycopg.connect(self.deployment.admin) as connection:
            connection.execute(_TRIGGER)
        async with aiohttp.ClientSession(headers=self.deployment.platform.headers) as self._client:
            await self._run()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        began, state = loop.time(), ""
        try:
            async with asyncio.timeout(self.plan.patience), asyncio.TaskGroup() as group:
                try:
                    await self._all_ended(group)
                except asyncio.CancelledError:
                    # The time is over, or one of the tasks has failed; the group will cancel the others.
                    state = self._state()
                    raise
        except BaseException as error:
            error.add_note(state)
            raise
        self.seconds = loop.time() - began

    async def _all_ended(self, group: asyncio.TaskGroup) -> None:
        numbers = iter(range(self.plan.runs))
        creators = [group.create_task(self._create(numbers)) for _ in range(_AT_ONCE)]
        disasters = [
            group.create_task(self._strike(kind, shares, strike))
            for kind, shares, strike in (
                ("worker", self.plan.kills, self._kill_busy_worker),
                ("web", self.plan.web_kills, self.deployment.kill_web),
                ("valkey", self.plan.valkey_restarts, self.deployment.restart_valkey),
                ("postgres", self.plan.postgres_restarts, self.deployment.restart_postgres),
            )
        ]
        kills = group.create_task(self._kill_repeatedly()) if self.plan.kill_every else None
        counting = group.create_task(self._count_open())
        await asyncio.wait([*creators, *disasters])
        await until(lambda: _open_runs(self.deployment.admin) == 0, seconds=self.plan.patience)
        self.is_over = True
        counting.cancel()
        if kills is not None:
            await kills
        await self.deployment.all_working()
        await asyncio.gather(*self._followers)

    def _state(self) -> str:
        """Return the await positions of unfinished tasks, the stored responses, and the ends of all logs."""
        lines = [
            f"{self._share():.0%} of the calls have come, {dict(self.disasters)} killed",
            f"{len(self.created)} of {self.plan.runs} runs created, {self.unanswered} requests repeated; waiting are:",
            *(f"{count} x {place}" for place, count in Counter(map(_place, asyncio.all_tasks())).items()),
        ]
        try:
            with psycopg.connect(self.deployment.admin, connect_timeout=5) as connection:
                lines += [
                    " ".join(map(str, row)) for query in (_RESPONSES, _BACKENDS) for row in connection.execute(query)
                ]
        except psycopg.OperationalError as error:
            lines.append(str(error))
        for log in sorted(self.deployment.servers.directory.glob("*.log")):
            lines += [f"-- the end of {log.name}", *log.read_text(errors="replace").splitlines()[-_LOG_LINES:]]
        return "\n".join(lines)

    # -- runs ----------------------------------------------------------------------------------------------------------

    async def _create(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            await self._room.wait()
            response_id = await self._created(number)
            if number % _FOLLOWED == 0:
                self._followers.append(asyncio.create_task(self._follow(response_id)))

    async def _count_open(self) -> None:
        while True:
            found = await asyncio.to_thread(_open_runs, self.deployment.admin)
            if found is not None and found < self.plan.open_runs:
                self._room.set()
            else:
                self._room.clear()
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _created(self, number: int) -> str:
        server = {
            "type": "mcp",
            "server_label": LABEL,
            "server_url": f"{self.mocks.url}/mcp",
            "require_approval": "never",
        }
        body = {"model": "m", "background": True, "tools": [server]}
        # Without an answer, the run may exist nevertheless. Each attempt has another key to distinguish them.
        for attempt in itertools.count():
            run = f"run-{number}-{attempt}"
            try:
                async with (
                    asyncio.timeout(_ANSWER_SECONDS),
                    self._client.post(
                        next(self._addresses), json={**body, "input": run, "metadata": {"run": run}}
                    ) as answer,
                ):
                    if answer.status == 200:
                        self.created[run] = (await answer.json())["id"]
                        return self.created[run]
            except aiohttp.ClientError:
                pass
            except TimeoutError:
                self.silent.append(run)
            self.unanswered += 1
            await asyncio.sleep(_AGAIN_SECONDS)
        raise AssertionError

    async def _follow(self, response_id: str) -> None:
        """Read the events of a response, resuming after the last one whenever the stream breaks."""
        received = self.received.setdefault(response_id, [])
        while True:
            after = {"starting_after": str(received[-1])} if received else {}
            try:
                async with self._client.get(
                    f"{next(self._addresses)}/{response_id}", params={"stream": "true", **after}, timeout=_NO_TIMEOUT
                ) as answer:
                    async for line in answer.content:
                        if line.startswith(b"data: [DONE]"):
                            return
                        if line.startswith(b"data: "):
                            received.append(json.loads(line[len(b"data: ") :])["sequence_number"])
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(_AGAIN_SECONDS)

    # -- disasters -----------------------------------------------------------------------------------------------------

    async def _strike(
        self, kind: str, shares: Sequence[float], strike: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        for share in shares:
            await until(partial(lambda share: self._share() >= share, share), seconds=self.plan.patience)
            await strike()
            self._note(kind)

    async def _kill_busy_worker(self) -> None:
        # Answers are paused until all workers are ready, so that no run ends before. Then runs progress for a moment.
        self.mocks.flowing.clear()
        try:
            await self.deployment.all_working()
        finally:
            self.mocks.flowing.set()
        await asyncio.sleep(random.uniform(0, _FLOW_SECONDS))
        await self.deployment.kill_worker()

    async def _kill_repeatedly(self) -> None:
        every = self.plan.kill_every or 0
        while True:
            await self.deployment.all_working()
            await asyncio.sleep(every * random.uniform(0.5, 1.5))
            if self.is_over:
                return
            # Web processes restart less often, because each restart costs as much as hundreds of requests.
            kind = random.choices(("worker", "web"), (2, 1))[0]
            await (self.deployment.kill_worker() if kind == "worker" else self.deployment.kill_web())
            self._note(kind)

    def _note(self, kind: str) -> None:
        self.disasters[kind] += 1
        self.log(f"{kind} killed; {self._share():.0%} of the calls have come")

    def _share(self) -> float:
        return len(self.mocks.arrivals) / (self.plan.runs * CALLS)


def _place(task: asyncio.Task[Any]) -> str:
    """Return the current functions of a task, outermost first, with their lines."""
    places: list[str] = []
    awaited: Any = task.get_coro()
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        places.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
        awaited = getattr(awaited, "cr_await", None)
    return " > ".join(places)


def _open_runs(admin: str) -> int | None:
    """Return how many runs have not ended, or None while the database is unavailable."""
    try:
        with psycopg.connect(admin) as connection:
            found = connection.execute("SELECT count(*) FROM responses_response WHERE ended_at IS NULL").fetchone()
    except psycopg.OperationalError:
        return None
    return found[0] if found else None


@asynccontextmanager
async def running_chaos(plan: Plan, *, directory: Path, log: Callable[[str], None]) -> AsyncIterator[Scenario]:
    """Run the scenario to its end. The platform keeps running inside the block."""
    async with running_mock_servers() as mocks:
        with running_deployment(directory=directory, upstream=mocks.url, concurrency=plan.concurrency) as deployment:
            log("all processes are running")
            scenario = Scenario(plan=plan, mocks=mocks, deployment=deployment, log=log)
            await scenario.run()
            yield scenario
