"""The play: many background runs, and one disaster after the other while they run."""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import psycopg

from benchmarks.chaos import audit
from benchmarks.chaos.partners import CALLS, LABEL, Partners, running_partners
from benchmarks.chaos.stage import Stage, running_stage, until

_AT_ONCE = 8
_AGAIN_SECONDS = 0.5
_FOLLOWED = 10
_FLOW_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How many runs, and when what happens: at these shares of all tool calls. Beside them a worker is killed
    `kill_every` seconds after all were at work, again and again for as long as there are runs."""

    runs: int
    kills: Sequence[float] = ()
    valkey_restarts: Sequence[float] = ()
    postgres_restarts: Sequence[float] = ()
    kill_every: float | None = None
    concurrency: int = 200
    patience: float = 900.0


@dataclass(kw_only=True)
class Course:
    """What happened. `created`: the ids of the responses by run. `heard`: the numbers of the events that followers got,
    by response."""

    created: dict[str, str] = field(default_factory=dict)
    unanswered: int = 0
    heard: dict[str, list[int]] = field(default_factory=dict)
    disasters: dict[str, int] = field(default_factory=lambda: {"worker": 0, "valkey": 0, "postgres": 0})
    is_over: bool = False
    seconds: float = 0.0

    def note(self, kind: str) -> None:
        """One more disaster of that kind."""
        self.disasters[kind] += 1


@dataclass(frozen=True, kw_only=True)
class Played:
    """All that is to be judged, while the platform still runs."""

    plan: Plan
    course: Course
    partners: Partners
    stage: Stage


@asynccontextmanager
async def played(plan: Plan, *, directory: Path, tell: Callable[[str], None] = lambda _: None) -> AsyncIterator[Played]:
    """Play it to its end; the platform runs on inside of the block."""
    async with running_partners() as partners:
        with running_stage(directory=directory, upstream=partners.url, concurrency=plan.concurrency) as stage:
            audit.install(stage.admin)
            tell("everything runs")
            course = Course()
            headers = {"Authorization": f"Bearer {stage.key}"}
            async with aiohttp.ClientSession(stage.url, headers=headers) as client:
                await _Play(plan, stage, partners, course, client, tell).run()
            yield Played(plan=plan, course=course, partners=partners, stage=stage)


class _Play:
    def __init__(
        self,
        plan: Plan,
        stage: Stage,
        partners: Partners,
        course: Course,
        client: aiohttp.ClientSession,
        tell: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._stage = stage
        self._partners = partners
        self._course = course
        self._client = client
        self._tell = tell
        self._followers: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Create all runs, let everything happen that is planned, and wait until all have ended."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        numbers = iter(range(self._plan.runs))
        async with asyncio.timeout(self._plan.patience), asyncio.TaskGroup() as group:
            creators = [group.create_task(self._create(numbers)) for _ in range(_AT_ONCE)]
            disasters = [group.create_task(work) for work in self._disasters()]
            kills = group.create_task(self._kill_on()) if self._plan.kill_every else None
            await asyncio.wait([*creators, *disasters])
            await self._all_ended()
            self._course.is_over = True
            if kills is not None:
                await kills
            await asyncio.gather(*self._followers)
        self._course.seconds = loop.time() - began

    # -- runs ----------------------------------------------------------------------------------------------------------

    async def _create(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            response_id = await self._created(number)
            if number % _FOLLOWED == 0:
                self._followers.append(asyncio.create_task(self._follow(response_id)))

    async def _created(self, number: int) -> str:
        """A run whose creation was not answered may exist all the same: each attempt has a key of its own."""
        for attempt in itertools.count():
            run = f"run-{number}-{attempt}"
            try:
                async with self._client.post("/v1/responses", json=_request(run, self._partners.url)) as answer:
                    if answer.status == 200:
                        self._course.created[run] = (await answer.json())["id"]
                        return self._course.created[run]
            except aiohttp.ClientError:
                pass
            self._course.unanswered += 1
            await asyncio.sleep(_AGAIN_SECONDS)
        raise AssertionError

    async def _all_ended(self) -> None:
        await until(lambda: not _unfinished(self._stage.admin), seconds=self._plan.patience)

    async def _follow(self, response_id: str) -> None:
        """Read the events as they come; whatever breaks the stream, go on behind the last one."""
        heard = self._course.heard.setdefault(response_id, [])
        while True:
            after = {"starting_after": str(heard[-1])} if heard else {}
            try:
                async with self._client.get(
                    f"/v1/responses/{response_id}", params={"stream": "true", **after}, timeout=_NO_TIMEOUT
                ) as answer:
                    async for line in answer.content:
                        if line.startswith(b"data: [DONE]"):
                            return
                        if line.startswith(b"data: "):
                            heard.append(json.loads(line[len(b"data: ") :])["sequence_number"])
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(_AGAIN_SECONDS)

    # -- disasters -----------------------------------------------------------------------------------------------------

    def _disasters(self) -> list[Coroutine[Any, Any, None]]:
        stage, plan = self._stage, self._plan
        return [
            self._strike("worker", plan.kills, self._kill_in_full_flow),
            self._strike("valkey", plan.valkey_restarts, stage.restart_valkey),
            self._strike("postgres", plan.postgres_restarts, stage.restart_postgres),
        ]

    async def _strike(
        self, kind: str, shares: Sequence[float], strike: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        for share in shares:
            await until(partial(self._has_come_to, share), seconds=self._plan.patience)
            await strike()
            self._note(kind)

    async def _kill_in_full_flow(self) -> None:
        """However fast the machine is, no run ends before all workers are there; and however slow, all runs get on."""
        self._partners.flowing.clear()
        try:
            await self._stage.all_working()
        finally:
            self._partners.flowing.set()
        await asyncio.sleep(random.uniform(0, _FLOW_SECONDS))
        await self._stage.kill_worker()

    async def _kill_on(self) -> None:
        every = self._plan.kill_every or 0
        while True:
            await self._stage.all_working()
            await asyncio.sleep(every * random.uniform(0.5, 1.5))
            if self._course.is_over:
                return
            await self._stage.kill_worker()
            self._note("worker")

    def _note(self, kind: str) -> None:
        self._course.note(kind)
        self._tell(f"{kind} killed; {self._share():.0%} of the calls have come")

    def _share(self) -> float:
        return len(self._partners.arrivals) / (self._plan.runs * CALLS)

    def _has_come_to(self, share: float) -> bool:
        return self._share() >= share


_NO_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_read=30)


def _request(run: str, tools: str) -> dict[str, Any]:
    server = {"type": "mcp", "server_label": LABEL, "server_url": f"{tools}/mcp", "require_approval": "never"}
    return {"model": "m", "input": run, "background": True, "tools": [server], "metadata": {"run": run}}


def _unfinished(admin: str) -> bool:
    """Also while the database is away."""
    try:
        with psycopg.connect(admin) as connection:
            found = connection.execute("SELECT 1 FROM responses_response WHERE ended_at IS NULL LIMIT 1").fetchone()
    except psycopg.OperationalError:
        return True
    return found is not None
