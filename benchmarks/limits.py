"""`python -m benchmarks limits`: what all limits together cost a request, in CPU and in round trips to Redis.

Two keys send the same requests to one web process in turns: one without limits, one with every limit and a hard budget.
The limits are high enough to refuse nothing. The CPU is that of the web process; Redis counts the commands.
"""

import asyncio
import json
import statistics
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import psutil
import redis

from benchmarks.limit_races import MODEL, Run, Upstream
from benchmarks.stack import Servers, manage, running_servers

CONCURRENT = 8
MOST_MILLISECONDS = 0.5
LIMITS = (
    *("--requests-per-minute", "1000000", "--requests-per-day", "10000000", "--tokens-per-minute", "100000000"),
    *("--concurrent", "1000", "--streams", "1000", "--max-output-tokens", "100000", "--max-tool-calls", "100"),
    *("--budget-usd", "100000", "--budget-period", "month"),
)


def _cpu(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and its children."""
    parts = [process, *process.children(recursive=True)]
    return sum(part.cpu_times().user + part.cpu_times().system for part in parts)


def _scripts(client: "redis.Redis") -> int:
    """Return how often the script was called."""
    stats = client.info("commandstats")
    return int(stats.get("cmdstat_evalsha", {}).get("calls", 0))


async def _send(url: str, key: str, number: int) -> None:
    body = {"model": MODEL, "input": "word " * 20, "max_output_tokens": 16, "store": False}
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(url, headers=headers) as session:

        async def some(count: int) -> None:
            for _ in range(count):
                async with session.post("/v1/responses", json=body) as answer:
                    content = await answer.read()
                    if answer.status != 200:
                        raise RuntimeError(f"{answer.status}: {content[:300]!r}")

        await asyncio.gather(*(some(number // CONCURRENT) for _ in range(CONCURRENT)))


async def _measure(servers: Servers, *, rounds: int, requests: int) -> int:
    upstream = Upstream()
    run = Run(seed=1, tokens_per_minute=10**12, concurrent=10**6, budget=10**18, is_wiped=False, waits=False)
    upstream.begin(run)
    address = await upstream.start()
    await asyncio.to_thread(servers.route, address)
    price = ("set_price", MODEL, "--input", "1", "--output", "3")
    await asyncio.to_thread(manage, servers.environment, *price)
    keys = {}
    for name, limits in (("without", ()), ("with", LIMITS)):
        made = await asyncio.to_thread(manage, servers.environment, "create_key", "--team", name, "--json", *limits)
        keys[name] = str(json.loads(made)["key"])
    target = await asyncio.to_thread(lambda: servers.start_web(processes=1))
    process, client = psutil.Process(target.pid), redis.Redis.from_url(servers.environment["REDIS_URL"])
    for key in keys.values():
        await _send(target.url, key, requests // 4)
    milliseconds: dict[str, list[float]] = {name: [] for name in keys}
    calls = 0
    for _ in range(rounds):
        for name, key in keys.items():
            began, scripts = _cpu(process), _scripts(client)
            await _send(target.url, key, requests)
            milliseconds[name].append(1000 * (_cpu(process) - began) / requests)
            calls += _scripts(client) - scripts if name == "with" else 0
    without, limited = (statistics.median(milliseconds[name]) for name in ("without", "with"))
    per_request = calls / (rounds * requests)
    print(f"CPU per request: {without:.2f} ms without limits, {limited:.2f} ms with all of them")
    print(f"difference: {limited - without:.2f} ms; calls of the script per request: {per_request:.2f},")
    print("one that the request waits for, and one that settles it without waiting")
    return 0 if limited - without <= MOST_MILLISECONDS else 1


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Measure, and return 1 if limits take more than half a millisecond of CPU."""
    parser = ArgumentParser(prog="python -m benchmarks limits", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=1600, help="of each round and key")
    options = parser.parse_args(arguments)
    with running_servers(directory, durable=False) as servers:
        return asyncio.run(_measure(servers, rounds=options.rounds, requests=options.requests))
