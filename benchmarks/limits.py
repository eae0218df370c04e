"""`python -m benchmarks limits`: the cost of all limits for a request, in CPU and in round trips to Redis.

Two keys send the same requests to one web process in turns: one without limits, one with every limit and a hard budget.
The limits are high enough to refuse nothing. The CPU is that of the web process; Redis counts the commands. Under load,
the settlements of ended requests share round trips with the reservations of new requests. With a single client nothing
is shared: each request makes one call for its reservation, for which it waits, and one for its settlement, for which it
does not wait.
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

CONCURRENT = 16
MOST_MILLISECONDS = 0.5
MOST_ROUND_TRIPS = 1.0
# With a single client: one round trip for the reservation, for which the request waits, and one for the settlement.
MOST_ALONE = 2.0
LIMITS = (
    *("--requests-per-minute", "1000000", "--requests-per-day", "10000000", "--tokens-per-minute", "100000000"),
    *("--concurrent", "1000", "--streams", "1000", "--max-output-tokens", "100000", "--max-tool-calls", "100"),
    *("--budget-usd", "100000", "--budget-period", "month"),
)


def _cpu(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and its children."""
    parts = [process, *process.children(recursive=True)]
    return sum(part.cpu_times().user + part.cpu_times().system for part in parts)


def _round_trips(client: "redis.Redis") -> int:
    """Return how often the script of the limits was called."""
    stats = client.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "eval"))


async def _send(url: str, key: str, number: int, *, clients: int = CONCURRENT) -> None:
    body = {"model": MODEL, "input": "word " * 20, "max_output_tokens": 16, "store": False}
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(url, headers=headers) as session:

        async def some(count: int) -> None:
            for _ in range(count):
                async with session.post("/v1/responses", json=body) as answer:
                    content = await answer.read()
                    if answer.status != 200:
                        raise RuntimeError(f"{answer.status}: {content[:300]!r}")

        await asyncio.gather(*(some(number // clients) for _ in range(clients)))


async def _measure(servers: Servers, *, rounds: int, requests: int) -> bool:
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
    began = _round_trips(client)
    await _send(target.url, keys["with"], requests // 4, clients=1)
    alone = (_round_trips(client) - began) / (requests // 4)
    calls = 0
    for _ in range(rounds):
        for name, key in keys.items():
            cpu, trips = _cpu(process), _round_trips(client)
            await _send(target.url, key, requests)
            milliseconds[name].append(1000 * (_cpu(process) - cpu) / requests)
            calls += _round_trips(client) - trips if name == "with" else 0
    without, limited = (statistics.median(milliseconds[name]) for name in ("without", "with"))
    # Compares neighbouring measurements, because the speed of a machine changes over time.
    difference = statistics.median(b - a for a, b in zip(*milliseconds.values(), strict=True))
    per_request = calls / (rounds * requests)
    print(f"CPU per request: {without:.2f} ms without limits, {limited:.2f} ms with all of them")
    print(f"difference: {difference:.2f} ms (limit: {MOST_MILLISECONDS})")
    print(f"round trips to Redis per request of {CONCURRENT} clients: {per_request:.2f} (limit: {MOST_ROUND_TRIPS:g})")
    print(f"of a single client: {alone:.2f} (limit: {MOST_ALONE:g}), of which it does not wait for the settlement")
    return difference <= MOST_MILLISECONDS and per_request <= MOST_ROUND_TRIPS and alone <= MOST_ALONE


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Measure, and return 1 with `--check` if limits take more CPU or more round trips than they should."""
    parser = ArgumentParser(prog="python -m benchmarks limits", description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--requests", type=int, default=800, help="of each round and key")
    parser.add_argument("--check", action="store_true", help="exit 1 if a limit is exceeded")
    options = parser.parse_args(arguments)
    with running_servers(directory, durable=False) as servers:
        is_within = asyncio.run(_measure(servers, rounds=options.rounds, requests=options.requests))
    return 0 if is_within or not options.check else 1
