"""`python -m benchmarks background`: latency until a worker starts a response, runs per second, and concurrent runs."""

import asyncio
import re
import signal
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from pathlib import Path

import aiohttp
import psutil
import psycopg

from benchmarks.load import Target, cpu_seconds, resident_mb
from benchmarks.matrix import PROMPT, SHORT
from benchmarks.report import Floor
from benchmarks.stack import Client, Stack, running

SECONDS = 30
TOKENS = 64
# 64 tokens in 30 seconds: 200 ms to the first, equal pauses between the others.
SLOW = f"mock-d{(SECONDS * 1000 - 200) // (TOKENS - 1)}-f200"
# 40 tokens, ten per second, each with the time at which the upstream sent it.
FOLLOWED = "mock-t40-d100-ts"
_SENT_AT = re.compile(rb'"delta":"t(\d+) "')
MOST_P50_MS, MOST_P95_MS, MOST_MB, MOST_CORES = 40.0, 150.0, 400.0, 0.4
MOST_RUN_MS, MOST_RUN_CPU_MS, MOST_LATE_MS = 10.0, 8.0, 60.0


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Measure and print the figures. With `--check`, return 1 if a limit is exceeded."""
    parser = ArgumentParser(prog="python -m benchmarks background")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is exceeded")
    parser.add_argument("--pick-ups", type=int, default=100, help="number of measurements of the latency")
    parser.add_argument("--short-runs", type=int, default=600, help="number of queued runs of one worker")
    parser.add_argument("--followers", type=int, default=100, help="number of followed runs")
    parser.add_argument("--runs", type=int, default=200, help="number of concurrent runs")
    options = parser.parse_args(arguments)
    with running(directory=directory, with_worker=True) as stack:
        figures = [
            *_pick_up(stack.platform, times=options.pick_ups),
            *_throughput(stack, runs=options.short_runs),
            *_followers(stack.platform, runs=options.followers),
            *_many(stack, runs=options.runs),
            *_not_completed(stack),
        ]
    for figure in figures:
        print(figure.text())
    return 1 if options.check and not all(figure.holds for figure in figures) else 0


def _pick_up(platform: Target, *, times: int) -> Iterator[Floor]:
    """Measure the time from the request to `response.in_progress` at the client, one response after the other."""
    waited = []
    for _ in range(5 + times):
        began = time.monotonic()
        # The stream is read to its end, so that the worker is idle for the next measurement.
        for line in Client(platform).open("POST", "/responses", _body(SHORT, stream=True)):
            if line.startswith(b"event: response.in_progress"):
                waited.append(1000 * (time.monotonic() - began))
    # The first runs warm the processes up.
    waited = sorted(waited[5:])
    yield Floor(name="create to in_progress, p50 ms", figure=waited[len(waited) // 2], limit=MOST_P50_MS)
    yield Floor(name="create to in_progress, p95 ms", figure=waited[int(len(waited) * 0.95)], limit=MOST_P95_MS)


def _throughput(stack: Stack, *, runs: int) -> Iterator[Floor]:
    """Measure how fast one worker empties a queue of short runs."""
    if runs == 0:
        return
    pid = _worker_of(stack)
    client = Client(stack.platform)
    # The worker is paused while the queue is filled, so that the web process does not compete with it.
    psutil.Process(pid).send_signal(signal.SIGSTOP)
    for _ in range(runs):
        client.ask("POST", "/responses", _body(SHORT, stream=False))
    cpu, began = cpu_seconds(pid), time.monotonic()
    psutil.Process(pid).send_signal(signal.SIGCONT)
    with psycopg.connect(stack.admin, autocommit=True) as database:
        while database.execute("SELECT 1 FROM responses_response WHERE ended_at IS NULL LIMIT 1").fetchone():
            time.sleep(0.05)
    spent, seconds = cpu_seconds(pid) - cpu, time.monotonic() - began
    load = f"one worker, {runs} queued runs of 4 tokens"
    yield Floor(name=f"{load}: ms per run, {runs / seconds:.0f}/s", figure=1000 * seconds / runs, limit=MOST_RUN_MS)
    yield Floor(name=f"{load}: CPU ms per run", figure=1000 * spent / runs, limit=MOST_RUN_CPU_MS)


def _followers(platform: Target, *, runs: int) -> Iterator[Floor]:
    """Measure the delay with which followers of background runs receive the deltas of a paced upstream."""
    if runs == 0:
        return
    late = sorted(asyncio.run(_follow(platform, runs)))
    load = f"followers of {runs} runs"
    yield Floor(name=f"{load}: deltas late, p50 ms", figure=late[len(late) // 2], limit=MOST_LATE_MS)
    yield Floor(name=f"{load}: deltas late, p95 ms", figure=late[int(len(late) * 0.95)], limit=MOST_LATE_MS)
    yield Floor(name=f"{load}: deltas late, worst ms", figure=late[-1], limit=10 * MOST_LATE_MS)


async def _follow(platform: Target, runs: int) -> list[float]:
    """Create runs and return by how many milliseconds each of their deltas arrived late."""
    late: list[float] = []

    async def follow() -> None:
        body = _body(FOLLOWED, stream=True)
        async with session.post(f"{platform.url}/v1/responses", json=body, headers=platform.headers) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                if sent := _SENT_AT.search(line):
                    late.append((time.monotonic_ns() - int(sent[1])) / 1e6)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
        for _ in range(runs):
            group.create_task(follow())
            # Spread over two seconds, like independent clients.
            await asyncio.sleep(2 / runs)
    return late


def _worker_of(stack: Stack) -> int:
    if stack.worker_pid is None:
        raise RuntimeError("the stack has no worker")
    return stack.worker_pid


def _many(stack: Stack, *, runs: int) -> Iterator[Floor]:
    """Measure many slow runs at the same time on one worker."""
    if runs == 0:
        return
    pid, most_mb = _worker_of(stack), 0.0
    cpu, began = cpu_seconds(pid), time.monotonic()
    client = Client(stack.platform)
    for _ in range(runs):
        client.ask("POST", "/responses", _body(SLOW, stream=False))
    with psycopg.connect(stack.admin, autocommit=True) as database:
        while database.execute("SELECT 1 FROM responses_response WHERE ended_at IS NULL LIMIT 1").fetchone():
            most_mb = max(most_mb, resident_mb(pid))
            time.sleep(0.5)
    spent, seconds = cpu_seconds(pid) - cpu, time.monotonic() - began
    load = f"{runs} runs of {TOKENS} tokens over {SECONDS} s"
    yield Floor(name=f"{load}: seconds until all ended", figure=seconds, limit=SECONDS * 1.5)
    yield Floor(name=f"{load}: MB", figure=most_mb, limit=MOST_MB)
    yield Floor(name=f"{load}: cores", figure=spent / seconds, limit=MOST_CORES)


def _not_completed(stack: Stack) -> Iterator[Floor]:
    with psycopg.connect(stack.admin) as database:
        failed = database.execute("SELECT count(*) FROM responses_response WHERE status <> 'completed'").fetchone()
    yield Floor(name="runs that were not completed", figure=float(failed[0] if failed else 0), limit=0)


def _body(model: str, *, stream: bool) -> dict[str, object]:
    return {"model": model, "input": PROMPT, "background": True, "stream": stream}
