"""`python -m benchmarks background`: latency until a worker starts a response, and cost of many concurrent ones."""

import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg

from benchmarks.load import Target, cpu_seconds, resident_mb
from benchmarks.matrix import PROMPT, SHORT
from benchmarks.report import Floor
from benchmarks.stack import Client, Stack, running

SECONDS = 30
TOKENS = 64
# 64 tokens in 30 seconds: 200 ms to the first, equal pauses between the others.
SLOW = f"mock-d{(SECONDS * 1000 - 200) // (TOKENS - 1)}-f200"
MOST_P50_MS, MOST_P95_MS, MOST_MB, MOST_CORES = 50.0, 150.0, 400.0, 0.4


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Measure and print the figures. With `--check`, return 1 if a limit is exceeded."""
    parser = ArgumentParser(prog="python -m benchmarks background")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is exceeded")
    parser.add_argument("--pick-ups", type=int, default=100, help="number of measurements of the latency")
    parser.add_argument("--runs", type=int, default=200, help="number of concurrent runs")
    options = parser.parse_args(arguments)
    with running(directory=directory, with_worker=True) as stack:
        figures = [*_pick_up(stack.platform, times=options.pick_ups), *_many(stack, runs=options.runs)]
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
    # The first ones warm the processes up.
    waited = sorted(waited[5:])
    yield Floor(name="create to in_progress, p50 ms", figure=waited[len(waited) // 2], limit=MOST_P50_MS)
    yield Floor(name="create to in_progress, p95 ms", figure=waited[int(len(waited) * 0.95)], limit=MOST_P95_MS)


def _many(stack: Stack, *, runs: int) -> Iterator[Floor]:
    """Measure many slow runs at the same time on one worker."""
    pid, most_mb = stack.worker_pid, 0.0
    if pid is None:
        raise RuntimeError("the stack has no worker")
    cpu, began = cpu_seconds(pid), time.monotonic()
    client = Client(stack.platform)
    for _ in range(runs):
        client.ask("POST", "/responses", _body(SLOW, stream=False))
    with psycopg.connect(stack.admin, autocommit=True) as database:
        while database.execute("SELECT 1 FROM responses_response WHERE ended_at IS NULL LIMIT 1").fetchone():
            most_mb = max(most_mb, resident_mb(pid))
            time.sleep(0.5)
        failed = database.execute("SELECT count(*) FROM responses_response WHERE status <> 'completed'").fetchone()
    spent, seconds = cpu_seconds(pid) - cpu, time.monotonic() - began
    load = f"{runs} runs of {TOKENS} tokens over {SECONDS} s"
    yield Floor(name=f"{load}: seconds until all ended", figure=seconds, limit=SECONDS * 1.5)
    yield Floor(name=f"{load}: MB", figure=most_mb, limit=MOST_MB)
    yield Floor(name=f"{load}: cores", figure=spent / seconds, limit=MOST_CORES)
    yield Floor(name=f"{load}: not completed", figure=float(failed[0] if failed else 0), limit=0)


def _body(model: str, *, stream: bool) -> dict[str, object]:
    return {"model": model, "input": PROMPT, "background": True, "stream": stream}
