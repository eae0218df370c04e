"""`python -m benchmarks limit-races`: no limit is exceeded by a single unit under concurrency, kills and data loss.

In each run, 64 clients on three web processes share a key with a budget, a limit of tokens and a limit of concurrency.
Meanwhile web processes are killed, and in every other run Redis is emptied. The upstream counts what it has served: the
most calls at the same time, the tokens and the cost, also of calls that were cut, of requests to which it never
answered, and of searches of the web. Beside them, calls of every kind share the budget of a second key, whose upstream
bills the most that each request allows (`benchmarks/every_kind.py`). At the end no reservation is left. Everything that
is random in a run follows from its seed.
"""

import asyncio
import json
import os
import random
import signal
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import psutil
import redis.asyncio
from aiohttp import web

from benchmarks import every_kind
from benchmarks.every_kind import Kinds
from benchmarks.stack import Servers, manage, running_servers
from launcher.address import any_free_port
from tests.support.maximum_bills import billing_upstream

CLIENTS = 64
PROCESSES = 3
MODEL = "races"
# Dollars per million tokens, and units of 10^-10 dollars per token.
INPUT_PRICE, OUTPUT_PRICE = "1", "3"
INPUT_UNITS, OUTPUT_UNITS = 10_000, 30_000
DOLLAR = 10**10
SEARCH_UNITS = 7_000_000
_SEARCH_PRICE = f"""
from tenants import scope
from tenants.models import Price
with scope.every_team():
    Price.objects.create(dimension="tool_call", tool="web_search", amount="{SEARCH_UNITS / DOLLAR:.10f}", per=1)
"""
_SWEEP = """
from responses import tasks
tasks.sweep_dead_runs()
tasks.sweep_limits()
"""
# Share of the first requests of calls whose connection is closed without an answer.
_BROKEN = 0.03
_WORD = "word "
_LONGEST_PAUSE = 0.3
_MINUTE = 60.0
_START_SECONDS = 30.0
# A response waits for a minute at most until its next call fits into the limits.
_ANSWER_SECONDS = 150.0


@dataclass(kw_only=True)
class Run:
    """The limits of one run, and what the upstream has served within them. The budget is in units of 10^-10 dollars."""

    seed: int
    tokens_per_minute: int
    concurrent: int
    budget: int
    is_wiped: bool
    waits: bool = True
    began: float = 0.0
    wipes: int = 0
    active: int = 0
    most_active: int = 0
    tokens: int = 0
    cost: int = 0
    served: int = 0
    cut: int = 0
    broken: int = 0
    searches: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    violations: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    kinds: Kinds | None = None

    @classmethod
    def of(cls, seed: int, number: int) -> "Run":
        """Return the run with this seed."""
        chance = random.Random(seed)
        return cls(
            seed=seed,
            tokens_per_minute=chance.choice([3_000, 10_000, 30_000, 100_000]),
            concurrent=chance.randint(1, 12),
            budget=chance.choice([5, 20, 60, 200]) * DOLLAR // 1000,
            is_wiped=number % 2 == 1,
        )

    def begin_call(self) -> None:
        """Count a call that the upstream begins to serve."""
        self.active += 1
        self.idle.clear()
        self.most_active = max(self.most_active, self.active)
        if self.active > self.concurrent:
            self.violations.append(f"{self.active} calls at the same time, the limit is {self.concurrent}")

    def end_call(self, *, prompt: int, output: int, is_cut: bool) -> None:
        """Count the cost of a call, even if its client did not receive the end."""
        self.active -= 1
        if not self.active:
            self.idle.set()
        self.tokens += prompt + output
        self.cost += prompt * INPUT_UNITS + output * OUTPUT_UNITS
        self.served += 1
        self.cut += is_cut
        self._check_budget()
        # A window that is full at the beginning, and what flows back into it. An emptied Redis forgets one window.
        elapsed = time.monotonic() - self.began
        most = self.tokens_per_minute * (1 + self.wipes) + self.tokens_per_minute * elapsed / _MINUTE
        if self.tokens > most:
            self.violations.append(f"{self.tokens} tokens after {elapsed:.1f} s, at most {most:.0f} are allowed")

    def search(self) -> None:
        """Count a search, whether its result is used or not."""
        self.searches += 1
        self.cost += SEARCH_UNITS
        self._check_budget()

    def _check_budget(self) -> None:
        if self.cost > self.budget:
            self.violations.append(f"cost {self.cost / DOLLAR:.10f}, the budget is {self.budget / DOLLAR:.10f}")

    def summary(self) -> dict[str, Any]:
        """Return the figures for the report."""
        return {
            "seed": self.seed,
            "concurrent": f"{self.most_active} of {self.concurrent}",
            "tokens": f"{self.tokens} at {self.tokens_per_minute} per minute",
            "dollars": f"{self.cost / DOLLAR:.6f} of {self.budget / DOLLAR:.6f}",
            "calls": self.served,
            "cut": self.cut,
            "broken": self.broken,
            "searches": self.searches,
            "wiped": self.wipes,
            "answers": dict(self.answers),
            **({} if self.kinds is None else self.kinds.summary()),
            "violations": self.violations[:3],
        }


class Upstream:
    """A chat-completions server that respects `max_completion_tokens` and counts what it serves for the current run."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self._chance = random.Random(0)

    async def start(self) -> str:
        """Serve on a free port and return the URL."""
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/search", self._search)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        port = any_free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        return f"http://127.0.0.1:{port}"

    def begin(self, run: Run) -> None:
        """Count for this run from now on."""
        self.run, self._chance = run, random.Random(run.seed)

    async def _search(self, _: web.Request) -> web.StreamResponse:
        run, chance = self.run, self._chance
        assert run is not None
        run.search()
        await asyncio.sleep(chance.uniform(0, 0.2))
        return web.json_response({"results": [{"url": "https://example.com/", "title": "", "content": _WORD}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        run, chance = self.run, self._chance
        assert run is not None
        # Never more than four characters per token, which the platform estimates.
        prompt = max(1, sum(len(str(message["content"])) for message in body["messages"]) // 4 - chance.randint(0, 5))
        most = body.get("max_completion_tokens")
        if most is None:
            run.violations.append("a call without a maximum of output")
            most = 16
        # Often the whole maximum, which a wrong reservation would not cover.
        output = most if chance.random() < 0.3 and most < 2000 else chance.randint(1, min(most, 200))
        calls = _calls(body, chance)
        run.begin_call()
        written = 0
        try:
            if run.waits and chance.random() < _BROKEN and request.transport is not None:
                # The model has generated its maximum, but no client receives the answer.
                run.broken += 1
                run.cost += (most - output) * OUTPUT_UNITS
                written = output
                request.transport.close()
                return web.Response()
            if not body.get("stream"):
                if run.waits:
                    await asyncio.sleep(chance.uniform(0, 0.2))
                written = output
                return web.json_response(_completion(prompt, output, calls))
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            for tokens in _parts(output, 4):
                written += tokens
                await response.write(_event({"choices": [_choice({"content": _WORD * tokens})]}))
                await asyncio.sleep(chance.uniform(0, 0.05))
            if calls:
                numbered = [{**call, "index": number} for number, call in enumerate(calls)]
                await response.write(_event({"choices": [_choice({"tool_calls": numbered})]}))
            await response.write(_event({"choices": [_choice({}, "tool_calls" if calls else "stop")]}))
            await response.write(_event({"choices": [], "usage": _usage(prompt, output)}) + b"data: [DONE]\n\n")
            return response
        finally:
            run.end_call(prompt=prompt, output=written, is_cut=written < output)


def _parts(number: int, parts: int) -> list[int]:
    return [number // parts] * (parts - 1) + [number - number // parts * (parts - 1)]


def _calls(body: dict[str, Any], chance: random.Random) -> list[dict[str, Any]]:
    """Return calls of a search, several of them at once, if the request offers it and has none yet."""
    if not body.get("tools") or any(message["role"] == "tool" for message in body["messages"]):
        return []
    function = {"name": "web_search", "arguments": '{"queries": ["word"]}'}
    return [{"id": f"call_{one}", "type": "function", "function": function} for one in range(chance.randint(1, 3))]


def _choice(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish}


def _usage(prompt: int, output: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def _event(values: dict[str, Any]) -> bytes:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    return b"data: %b\n\n" % orjson.dumps({**head, **values})


def _completion(prompt: int, output: int, calls: list[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _WORD * output}
    message |= {"tool_calls": calls} if calls else {}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL}
    return {**head, "choices": [choice], "usage": _usage(prompt, output)}


async def _client(number: int, run: Run, session: aiohttp.ClientSession, *, until: float) -> None:
    """Send requests until the time is over, with the pauses that the platform asks for, but not longer ones."""
    chance = random.Random(run.seed * 1000 + number)
    while time.monotonic() < until:
        body: dict[str, Any] = {"model": MODEL, "stream": chance.random() < 0.5, "store": chance.random() < 0.5}
        words = _WORD * chance.randint(1, 60)
        most = chance.choice([None, 16, 50, 200])
        if chance.random() < 0.3:
            path = "/v1/chat/completions"
            body = {"model": MODEL, "stream": body["stream"], "messages": [{"role": "user", "content": words}]}
            body |= {} if most is None else {"max_completion_tokens": most}
        else:
            path = "/v1/responses"
            body |= {"input": words} | ({} if most is None else {"max_output_tokens": most})
            body |= {"tools": [{"type": "web_search"}]} if chance.random() < 0.2 else {}
        pause = 0.0
        try:
            async with session.post(path, json=body) as answer:
                if chance.random() < 0.05:
                    # This client leaves in the middle of the answer.
                    answer.close()
                    continue
                content = await answer.read()
                code = orjson.loads(content)["error"]["code"] if answer.status >= 400 else ""
                run.answers[f"{answer.status} {code}".strip()] += 1
                if answer.status >= 400:
                    wait = float(answer.headers.get("retry-after-ms", 200)) / 1000
                    pause = chance.uniform(0.02, min(wait, _LONGEST_PAUSE) + 0.02)
        except TimeoutError:
            run.violations.append(f"a request without an answer after {_ANSWER_SECONDS} s")
        except (aiohttp.ClientError, OSError, orjson.JSONDecodeError):
            # Its process was killed, or the next one does not listen yet.
            run.answers["no answer"] += 1
            pause = 0.1
        await asyncio.sleep(pause)


async def _disturb(run: Run, *, web_pid: int, redis_url: str, until: float) -> None:
    """Kill web processes, and empty Redis in every other run."""
    chance = random.Random(run.seed + 1)
    left = until - time.monotonic()
    moments = sorted(
        [(chance.uniform(0.1, 0.9) * left, "kill") for _ in range(chance.randint(1, 3))]
        + [(chance.uniform(0.1, 0.9) * left, "wipe") for _ in range(2 if run.is_wiped else 0)]
    )
    began = time.monotonic()
    for after, what in moments:
        await asyncio.sleep(max(0.0, began + after - time.monotonic()))
        if what == "kill":
            children = psutil.Process(web_pid).children()
            if children:
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(children).pid, signal.SIGKILL)
        else:
            run.wipes += 1
            client = redis.asyncio.Redis.from_url(redis_url)
            await client.flushall()
            await client.aclose()


async def _first_request(run: Run, session: aiohttp.ClientSession) -> None:
    """Send the largest request that fits into the limits, and record a violation if it is refused."""
    words = _WORD * 8
    body = {"model": MODEL, "input": words, "max_output_tokens": min(run.tokens_per_minute - 10, 400)}
    until = time.monotonic() + _START_SECONDS
    while True:
        try:
            async with session.post("/v1/responses", json=body) as answer:
                if 400 <= answer.status < 500:
                    run.violations.append(f"the first request was refused: {await answer.text()}")
                return
        except aiohttp.ClientConnectorError:
            # A process that was killed in the previous run does not listen yet. Nothing was sent.
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.1)


async def _every_kind(kinds: Kinds, servers: Servers, *, url: str, seconds: float) -> None:
    """Send calls of every kind with a new key to the model of the run."""
    limits = ("--budget-usd", str(kinds.budget), "--budget-period", "day")
    team = ("--team", f"kinds {kinds.seed}", "--json")
    made = await asyncio.to_thread(manage, servers.environment, "create_key", *team, *limits)
    until = time.monotonic() + seconds
    await every_kind.send_every_kind(kinds, url, json.loads(made)["key"], until=until)


async def _run(run: Run, servers: Servers, upstream: Upstream, *, url: str, web_pid: int, seconds: float) -> None:
    made = manage(
        servers.environment,
        *("create_key", "--team", f"races {run.seed}", "--json", "--tokens-per-minute", str(run.tokens_per_minute)),
        *("--concurrent", str(run.concurrent), "--budget-usd", f"{run.budget / DOLLAR:.10f}", "--budget-period", "day"),
    )
    headers = {"Authorization": f"Bearer {json.loads(made)['key']}"}
    # Connections of their own, so that the clients reach all processes.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
    async with aiohttp.ClientSession(url, connector=connector, headers=headers, timeout=timeout) as session:
        upstream.begin(run)
        run.began = time.monotonic()
        await _first_request(run, session)
        until = time.monotonic() + seconds
        clients = [_client(number, run, session, until=until) for number in range(CLIENTS)]
        disturbing = _disturb(run, web_pid=web_pid, redis_url=servers.environment["REDIS_URL"], until=until)
        others = [] if run.kinds is None else [_every_kind(run.kinds, servers, url=url, seconds=seconds)]
        await asyncio.gather(*clients, disturbing, *others)
    with suppress(TimeoutError):
        async with asyncio.timeout(10):
            await run.idle.wait()
    if run.kinds is not None:
        run.violations += run.kinds.violations


async def _race(servers: Servers, *, seeds: Sequence[int], seconds: float) -> tuple[list[Run], int]:
    """Return the runs and the number of reservations that are left."""
    upstream = Upstream()
    address = await upstream.start()
    # The reservation of a call whose process was killed is dropped when no answer can take that long any more.
    servers.environment |= {"SEARXNG_URL": address, "EGRESS_ALLOW": "127.0.0.1", "UPSTREAM_ANSWER_TIMEOUT": "60"}
    await asyncio.to_thread(servers.route, address)
    price = ("set_price", MODEL, "--input", INPUT_PRICE, "--output", OUTPUT_PRICE)
    await asyncio.to_thread(manage, servers.environment, *price)
    await asyncio.to_thread(manage, servers.environment, "shell", "-c", _SEARCH_PRICE)
    target = await asyncio.to_thread(lambda: servers.start_web(processes=PROCESSES))
    runs = []
    for number, seed in enumerate(seeds):
        run = Run.of(seed, number)
        with billing_upstream(declared=True) as (address, billed):
            run.kinds = Kinds(seed=seed, budget=Decimal(random.Random(seed).choice([1, 3, 10])), billed=billed)
            script = every_kind.prepare(run.kinds, address)
            await asyncio.to_thread(manage, servers.environment, "shell", "-v", "0", "-c", script)
            await _run(run, servers, upstream, url=target.url, web_pid=target.pid, seconds=seconds)
        print(json.dumps(run.summary()), flush=True)
        runs.append(run)
    sweep = partial(manage, servers.environment, "shell", "-v", "0", "-c", _SWEEP)
    return runs, await every_kind.reservations_left(servers.admin, sweep)


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Run the races and return 1 if any limit was exceeded."""
    parser = ArgumentParser(prog="python -m benchmarks limit-races", description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1, help="of the first run; each further one has the next number")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each run")
    options = parser.parse_args(arguments)
    seeds = range(options.seed, options.seed + options.runs)
    with running_servers(directory, durable=False) as servers:
        runs, left = asyncio.run(_race(servers, seeds=seeds, seconds=options.seconds))
    failed = [run for run in runs if run.violations]
    names = ("served", "cut", "broken", "searches", "wipes")
    calls, cut, broken, searches, wipes = (sum(getattr(run, name) for run in runs) for name in names)
    print(
        f"{len(runs)} runs, {calls} calls, {cut} cut, {broken} without an answer, {searches} searches, "
        f"Redis emptied {wipes} times: {len(failed)} exceeded a limit, {left} reservations left"
    )
    return 1 if failed or left else 0
