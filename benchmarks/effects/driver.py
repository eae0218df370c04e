"""Runs whose process is killed between the effect of a tool and the storage of its result, and what is left of them.

People decide about the calls of background runs whose outcome is unknown, and these runs continue to their end.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import psycopg

from benchmarks.books.driver import Deployment, until
from benchmarks.effects.acting_server import ACTED, ALWAYS, LABEL, ONCE, ActingServer, running_server
from benchmarks.effects.people import OUTCOMES, People, create_person, outcomes_of, receipt
from benchmarks.stack import MANAGE, Programs, running_servers

_LEASE_SECONDS = 4
# A run may be killed again while it is suspended or repeats its call.
_ATTEMPTS = 10
_TIMEOUT = aiohttp.ClientTimeout(total=120)
_UNKNOWN = "the outcome of this call is unknown"
_NOT_DONE = "did not take effect"
_NETWORK_ERRORS = (aiohttp.ClientError, OSError, TimeoutError)
# Part of the rounds in which the answer of the tool and the kill race each other.
_RACES = 0.3
_RACE_SECONDS = 0.03
_OPEN = "SELECT count(*) FROM responses_response WHERE ended_at IS NULL"
_CALLS = """
SELECT split_part(end_user, ' ', 1) AS run, response.id, response.status, call.status
FROM responses_response AS response JOIN responses_toolcall AS call ON call.response_id = response.id
WHERE end_user LIKE 'run-%'
"""
_DECISIONS = """
SELECT response_id, coalesce(answer ->> 'outcome', state) FROM responses_approval
WHERE kind = 'unknown_outcome' ORDER BY asked_at
"""


@dataclass(kw_only=True)
class EffectRun:
    """A run with one call. A run of a worker has no conversation, and the end of the others is not awaited."""

    name: str
    tool: str
    in_worker: bool
    conversation: str = ""
    response_id: str = ""
    status: str = ""
    call_status: str = ""
    decisions: list[str] = field(default_factory=list)

    @property
    def repeats(self) -> int:
        """Number of times that a person let the call be repeated."""
        return self.decisions.count("repeat")


@dataclass(kw_only=True)
class Outcome:
    """Result of the benchmark: figures and faults."""

    figures: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Return the result as lines."""
        lines = [f"{name:<62}{value:>16}" for name, value in self.figures.items()]
        return "\n".join([*lines, f"{'faults':<62}{len(self.faults):>16}", *(f"    {one}" for one in self.faults[:20])])


@dataclass(kw_only=True)
class EffectDriver:
    """Starts runs on a deployment and kills their processes."""

    server: ActingServer
    deployment: Deployment
    http: aiohttp.ClientSession
    chance: Random
    people: People
    runs: list[EffectRun] = field(default_factory=list)

    async def round(self) -> None:
        """Kill the web process and the worker of four runs after their tools have acted."""
        web, other = self.deployment.webs[0][0], self.deployment.webs[-1][0]
        made = [self._new_run(tool, in_worker=in_worker) for in_worker in (False, True) for tool in (ONCE, ALWAYS)]
        for run in made:
            if not run.in_worker:
                run.conversation = (await self._json("POST", f"{other}/v1/conversations", {}))["id"]
        clients = [asyncio.create_task(self._execute(run, other if run.in_worker else web)) for run in made]
        await asyncio.gather(*(self.server.acted(run.name) for run in made))
        if self.chance.random() < _RACES:
            self._release(made)
            await asyncio.sleep(self.chance.uniform(0, _RACE_SECONDS))
        await asyncio.gather(self.deployment.kill_web(), self.deployment.kill_worker())
        self._release(made)
        await asyncio.gather(*clients)

    def _release(self, runs: Sequence[EffectRun]) -> None:
        for run in runs:
            self.server.release(run.name)

    def _new_run(self, tool: str, *, in_worker: bool) -> EffectRun:
        run = EffectRun(name=f"run-{len(self.runs)}", tool=tool, in_worker=in_worker)
        self.runs.append(run)
        return run

    async def _execute(self, run: EffectRun, url: str) -> None:
        server = {
            "type": "mcp",
            "server_label": LABEL,
            "server_url": f"{self.server.url}/mcp",
            "require_approval": "never",
        }
        body: dict[str, Any] = {
            "model": "m",
            "input": f"{run.name} {run.tool}",
            "tools": [server],
            "safety_identifier": run.name,
        }
        if run.in_worker:
            await self._json("POST", f"{url}/v1/responses", {**body, "background": True})
            return
        body |= {"conversation": run.conversation, "store": self.chance.random() < 0.5}
        body["stream"] = self.chance.random() < 0.5
        with suppress(*_NETWORK_ERRORS):
            async with self.http.post(f"{url}/v1/responses", json=body) as answer:
                await answer.read()

    async def _json(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        async with self.http.request(method, url, json=body) as answer:
            answer.raise_for_status()
            document: dict[str, Any] = await answer.json()
            return document

    # -- afterwards ----------------------------------------------------------------------------------------------------

    async def compare(self) -> Outcome:
        """Compare the effects with the records of the calls. Every run must have ended."""
        with psycopg.connect(self.deployment.servers.admin) as connection:
            rows = {run: row for run, *row in connection.execute(_CALLS).fetchall()}
            decisions = outcomes_of(connection.execute(_DECISIONS).fetchall())
        outcome, shown = Outcome(), 0
        for run in self.runs:
            if run.name not in rows:
                outcome.faults.append(f"{run.name} has no call in the database")
                continue
            run.response_id, run.status, run.call_status = rows[run.name]
            run.decisions = decisions.get(run.response_id, [])
            outcome.faults += [f"{run.name} ({run.tool}): {fault}" for fault in self._faults(run)]
            if (text := await self._history(run)) is not None:
                expected = _UNKNOWN if run.call_status == "outcome_unknown" else ACTED
                shown += 1
                if expected not in text:
                    outcome.faults.append(f"{run.name}: the call is {run.call_status}, but the model reads {text!r}")
        calls = [run.call_status for run in self.runs]
        outcome.faults += self.people.faults
        made = [decision for run in self.runs for decision in run.decisions]
        outcome.figures = {
            "killed web processes": self.deployment.killed["web"],
            "killed workers": self.deployment.killed["worker"],
            "calls": sum(map(len, self.server.ids.values())),
            "calls that were repeated with the same effect id": sum(len(ids) - 1 for ids in self.server.ids.values()),
            "calls with an unknown outcome": calls.count("outcome_unknown"),
            "calls that the next turn shows": shown,
            "decisions on the page": len(self.people.settled["page"]),
            "decisions through the API": len(self.people.settled["api"]),
            **{f"decisions: {choice.replace('_', ' ')}": made.count(choice) for choice in OUTCOMES},
        }
        return outcome

    def _faults(self, run: EffectRun) -> list[str]:
        ids, effects, faults = self.server.ids[run.name], self.server.effects[run.name], list[str]()
        allowed = 1 + run.repeats
        if not 1 <= effects <= (1 if run.tool == ONCE else allowed):
            faults.append(f"it has taken effect {effects} times")
        if len({*ids}) != 1:
            faults.append(f"it was called with {len({*ids})} effect ids")
        if run.tool == ALWAYS and len(ids) > allowed:
            faults.append(f"it was repeated {len(ids) - 1} times, and people decided so {run.repeats} times")
        if not run.in_worker:
            if run.call_status not in {"completed", "outcome_unknown"}:
                faults.append(f"the call is {run.call_status}")
            return faults
        if run.tool == ONCE and run.decisions:
            faults.append("a person had to decide although the tool honours the id")
        if not {*run.decisions} <= {*OUTCOMES}:
            faults.append(f"its decisions are {run.decisions}")
        last = run.decisions[-1] if run.decisions else ""
        expected = "failed" if last == "not_done" else "completed"
        if (run.status, run.call_status) != ("completed", expected):
            faults.append(f"after {run.decisions}, the response is {run.status}, and the call is {run.call_status}")
        reads = {"done": receipt(run.response_id), "not_done": _NOT_DONE}.get(last, ACTED)
        if reads not in (read := "\n".join(self.server.outputs.get(run.name, ()))):
            faults.append(f"after {run.decisions}, the model reads {read!r}")
        return faults

    async def _history(self, run: EffectRun) -> str | None:
        """Return the output that the model reads in the next turn of the conversation, if the run has one."""
        if run.in_worker:
            return None
        body = {"model": "m", "input": "And now?", "store": False, "conversation": run.conversation}
        await self._json("POST", f"{self.deployment.urls[0]}/v1/responses", body)
        return "\n".join(self.server.outputs.get(run.name, ()))


async def measured(
    *, kills: int, seed: int, directory: Path, log: Callable[[str], None], programs: Programs | None = None
) -> Outcome:
    """Kill processes, half of them web processes and half workers, and compare what is left."""
    async with running_server() as server:
        with running_servers(directory, durable=False, programs=programs) as servers:
            servers.environment |= {
                "EGRESS_ALLOW": "127.0.0.1",
                "LEASE_SECONDS": str(_LEASE_SECONDS),
                "BACKGROUND_ATTEMPTS": str(_ATTEMPTS),
            }
            deployment = Deployment(servers=servers, key=servers.route(server.url))
            await asyncio.to_thread(_start, deployment)
            await asyncio.to_thread(create_person, deployment)
            headers = {"Authorization": f"Bearer {deployment.key}"}
            async with aiohttp.ClientSession(headers=headers, timeout=_TIMEOUT) as http:
                people = People(deployment=deployment, http=http, chance=Random(seed))
                driver = EffectDriver(
                    server=server, deployment=deployment, http=http, chance=Random(seed), people=people
                )
                settling = asyncio.create_task(people.settle_for_ever())
                try:
                    began = time.monotonic()
                    for number in range(kills // 2):
                        await driver.round()
                        if number % 25 == 24:
                            log(f"{2 * number + 2} processes killed, {len(driver.runs)} runs")
                    log(f"{(time.monotonic() - began) / kills:.2f} s for each kill")
                    await until(lambda: settling.done() or _is_settled(servers.admin), seconds=180)
                    if settling.done():
                        settling.result()
                finally:
                    settling.cancel()
                    await asyncio.gather(settling, return_exceptions=True)
                    await people.close()
                return await driver.compare()


def _start(deployment: Deployment) -> None:
    deployment.servers.start("beat", sys.executable, MANAGE, "beat")
    for _ in range(2):
        deployment.add_web()
    deployment.add_worker()
    for server in (*deployment.workers, *(web for _, web in deployment.webs)):
        deployment.servers.wait_for(server)
    deployment.urls += [url for url, _ in deployment.webs]


def _is_settled(admin: str) -> bool:
    with psycopg.connect(admin) as connection:
        return connection.execute(_OPEN).fetchone() == (0,)
