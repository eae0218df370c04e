"""`python -m benchmarks background`: latency until a worker starts a response, and cost of many concurrent ones."""

import json
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from benchmarks import meters
from benchmarks.cells import PROMPT, SHORT
from benchmarks.load import Target
from benchmarks.stack import Stack, running

SECONDS = 30
TOKENS = 64
# 64 tokens in 30 seconds: 200 ms to the first, equal pauses between the others.
SLOW = f"mock-d{(SECONDS * 1000 - 200) // (TOKENS - 1)}-f200"
MOST_P50_MS, MOST_P95_MS, MOST_MB, MOST_CORES = 50.0, 150.0, 400.0, 0.4


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure with its limit."""

    name: str
    value: float
    most: float

    @property
    def holds(self) -> bool:
        return self.value < self.most

    def text(self) -> str:
        return f"{self.name:<58} {self.value:8.2f}   (below {self.most:g}: {'yes' if self.holds else 'NO'})"


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Measure and print the figures. With `--check`, return 1 if a limit is exceeded."""
    parser = ArgumentParser(prog="python -m benchmarks background")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is exceeded")
    parser.add_argument("--pick-ups", type=int, default=100, help="number of measurements of the latency")
    parser.add_argument("--runs", type=int, default=200, help="number of concurrent runs")
    options = parser.parse_args(arguments)
    with running(directory=directory, server="daphne", proxy_python=sys.executable, with_worker=True) as stack:
        figures = [*_pick_up(stack.platform, times=options.pick_ups), *_many(stack, runs=options.runs)]
    for figure in figures:
        print(figure.text())
    return 1 if options.check and not all(figure.holds for figure in figures) else 0


def _pick_up(platform: Target, *, times: int) -> Iterator[Figure]:
    """Measure the time from the request to `response.in_progress` at the client, one response after the other."""
    for _ in range(5):
        _begun_after(platform)
    waited = sorted(_begun_after(platform) * 1000 for _ in range(times))
    yield Figure(name="create to in_progress, p50 ms", value=waited[len(waited) // 2], most=MOST_P50_MS)
    yield Figure(name="create to in_progress, p95 ms", value=waited[int(len(waited) * 0.95)], most=MOST_P95_MS)


def _begun_after(platform: Target) -> float:
    """Return the seconds until `response.in_progress`."""
    # The stream is read to its end, so that the worker is idle for the next measurement.
    began, waited = time.monotonic(), 0.0
    with closing(_connected(platform)) as connection:
        for line in _asked(connection, platform, model=SHORT, stream=True):
            if line.startswith(b"event: response.in_progress"):
                waited = time.monotonic() - began
    return waited


def _many(stack: Stack, *, runs: int) -> Iterator[Figure]:
    """Measure many slow runs at the same time on one worker."""
    if stack.worker_pid is None:
        message = "the stack has no worker"
        raise RuntimeError(message)
    pid, most_mb = stack.worker_pid, 0.0
    cpu, began = meters.cpu_seconds(pid), time.monotonic()
    with closing(_connected(stack.platform)) as connection:
        for _ in range(runs):
            json.loads(_asked(connection, stack.platform, model=SLOW, stream=False).read())
    with psycopg.connect(stack.admin, autocommit=True) as database:
        while _unfinished(database):
            most_mb = max(most_mb, meters.resident_mb(pid))
            time.sleep(0.5)
        failed = database.execute("SELECT count(*) FROM responses_response WHERE status <> 'completed'").fetchone()
    spent, seconds = meters.cpu_seconds(pid) - cpu, time.monotonic() - began
    load = f"{runs} runs of {TOKENS} tokens over {SECONDS} s"
    yield Figure(name=f"{load}: seconds until all ended", value=seconds, most=SECONDS * 1.5)
    yield Figure(name=f"{load}: MB", value=most_mb, most=MOST_MB)
    yield Figure(name=f"{load}: cores", value=spent / seconds, most=MOST_CORES)
    yield Figure(name=f"{load}: not completed", value=float(failed[0] if failed else 0), most=1)


def _unfinished(database: "psycopg.Connection[tuple[int]]") -> int:
    found = database.execute("SELECT count(*) FROM responses_response WHERE ended_at IS NULL").fetchone()
    return found[0] if found else 0


def _connected(platform: Target) -> HTTPConnection:
    return HTTPConnection(urlsplit(platform.url).netloc, timeout=60)


def _asked(connection: HTTPConnection, platform: Target, *, model: str, stream: bool) -> HTTPResponse:
    body = json.dumps({"model": model, "input": PROMPT, "background": True, "stream": stream})
    headers = dict(header.split(": ", 1) for header in platform.headers)
    connection.request("POST", "/v1/responses", body, {**headers, "Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"{answer.status}: {answer.read()!r}")
    return answer
