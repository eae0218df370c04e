"""Batches of full size: `python -m benchmarks batches [--check] [--lines N] [--megabytes N]`.

One batch is completed, one is cancelled and one expires after half of its lines have ended. Every line of the input
must be in exactly one of the result files, once, with its own instructions or the right error. The measured memory is
the worker's. The time to finalize is measured from the end of the last line to the end of the batch.
"""

import http.client
import json
import random
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from benchmarks.load import Target, resident_mb
from benchmarks.matrix import PROMPT, SHORT
from benchmarks.report import Floor
from benchmarks.stack import Stack, ask, running, tell

ENDINGS = ("completed", "cancelled", "expired")
MOST_MB = 500.0
# Limit for 10,000 lines of 4 KB. The time is linear in the number of lines.
MOST_FINALIZING_SECONDS = 15.0
# Approximate size of a response without its instructions.
ANSWER_BYTES = 1500
POLL_SECONDS = 0.5
BOUNDARY = "batch-of-the-benchmark"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The seeded input: instructions by line."""

    seed: int
    lines: int
    size: int

    def instructions(self, number: int) -> str:
        """Return the instructions of a line, which its response repeats."""
        return f"{random.Random(f'{self.seed}-{number}').getrandbits(64):016x}" * (self.size // 16)

    def content(self) -> bytes:
        """Return the input file."""
        return b"".join(json.dumps(self._line(number)).encode() + b"\n" for number in range(self.lines))

    def _line(self, number: int) -> dict[str, Any]:
        body = {"model": SHORT, "input": PROMPT, "instructions": self.instructions(number), "store": False}
        return {"custom_id": str(number), "method": "POST", "url": "/v1/responses", "body": body}


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Run the batches and print the figures. With `--check`, return 1 if a limit is exceeded."""
    parser = ArgumentParser(prog="python -m benchmarks batches", description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is exceeded")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lines", type=int, default=50_000, help="lines of each batch")
    parser.add_argument("--megabytes", type=int, default=200, help="results of each batch, in MiB")
    parser.add_argument("--stop-after", type=int, help="completed lines before a batch is stopped; half by default")
    parser.add_argument("--endings", nargs="+", choices=ENDINGS, default=ENDINGS)
    options = parser.parse_args(arguments)
    size = max(16, options.megabytes * 1024 * 1024 // options.lines - ANSWER_BYTES)
    plan = Plan(seed=options.seed, lines=options.lines, size=size)
    stop_after = options.lines // 2 if options.stop_after is None else options.stop_after
    figures: list[Floor] = []
    with running(directory=directory, with_worker=True) as stack:
        tell(f"uploading an input file of {plan.lines:,} lines")
        file_id = _upload(stack.platform, plan.content())
        for ending in options.endings:
            figures += _run(stack, plan, file_id, ending, stop_after)
    for figure in figures:
        print(figure.text())
    return 1 if options.check and not all(figure.holds for figure in figures) else 0


def _upload(platform: Target, content: bytes) -> str:
    """Upload an input file and return its id."""
    purpose = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    file = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="input.jsonl"\r\n\r\n'
    body = b"".join((purpose.encode(), file.encode(), content, f"\r\n--{BOUNDARY}--\r\n".encode()))
    headers = {**platform.headers, "Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    answer = _request(platform, "POST", "/v1/files", body, headers)
    return str(json.loads(answer)["id"])


def _request(
    platform: Target, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> bytes:
    connection = http.client.HTTPConnection(urlsplit(platform.url).netloc, timeout=600)
    connection.request(method, path, body=body, headers=headers or dict(platform.headers))
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    if answer.status != http.client.OK:
        raise RuntimeError(f"{method} {path} was answered {answer.status}: {content[:500]!r}")
    return content


def _run(stack: Stack, plan: Plan, file_id: str, ending: str, stop_after: int) -> Iterator[Floor]:
    """Run a batch to its end, check its files and yield its figures."""
    platform, worker = stack.platform, stack.worker_pid or 0
    body = {"input_file_id": file_id, "endpoint": "/v1/responses", "completion_window": "24h"}
    batch = ask(platform, "POST", "/batches", body)
    began, peak, last_line, is_stopped = time.monotonic(), 0.0, 0.0, ending == "completed"
    reported = began
    while batch["status"] not in ENDINGS:
        if batch["status"] == "failed":
            raise RuntimeError(f"the batch failed: {batch['errors']}")
        time.sleep(POLL_SECONDS)
        batch = ask(platform, "GET", f"/batches/{batch['id']}")
        peak = max(peak, resident_mb(worker))
        counts = batch["request_counts"]
        if not is_stopped and counts["completed"] >= stop_after:
            _stop(stack, batch["id"], ending)
            is_stopped = True
        if not last_line and counts["total"] and counts["completed"] + counts["failed"] == counts["total"]:
            last_line = time.monotonic()
        if time.monotonic() - reported > 10:
            reported = time.monotonic()
            tell(f"{ending}: {batch['status']}, {counts}, worker {peak:,.0f} MiB")
    ended = time.monotonic()
    size = _check(platform, plan, batch, ending)
    name = f"{plan.lines:,} lines {ending}, {size / 2**20:,.0f} MiB of results"
    yield Floor(name=f"{name}: peak memory of the worker, MiB", figure=peak, limit=MOST_MB)
    # The last poll may have seen the end of the batch and of its last line together.
    finalizing = ended - (last_line or ended)
    limit = MOST_FINALIZING_SECONDS * max(1.0, plan.lines / 10_000)
    yield Floor(name=f"{name}: seconds to finalize", figure=finalizing, limit=limit)
    yield Floor(name=f"{name}: seconds in all", figure=ended - began, limit=float("inf"))


def _stop(stack: Stack, batch_id: str, ending: str) -> None:
    if ending == "cancelled":
        ask(stack.platform, "POST", f"/batches/{batch_id}/cancel", {})
        return
    with psycopg.connect(stack.admin, autocommit=True) as connection:
        connection.execute("UPDATE responses_batch SET expires_at = now() WHERE id = %s", (batch_id,))


def _check(platform: Target, plan: Plan, batch: dict[str, Any], ending: str) -> int:
    """Compare every line of the result files with the input. Return the size of the files; raises RuntimeError."""
    numbers: set[int] = set()
    total = 0
    for kind in ("output", "error"):
        file_id = batch[f"{kind}_file_id"]
        content = _request(platform, "GET", f"/v1/files/{file_id}/content") if file_id else b""
        total += len(content)
        for raw in content.splitlines():
            entry = json.loads(raw)
            number = int(entry["custom_id"])
            if number in numbers:
                raise RuntimeError(f"line {number} of the batch that is {ending} is there twice")
            numbers.add(number)
            is_right = (
                entry["response"]["body"]["instructions"] == plan.instructions(number)
                if kind == "output"
                else (entry["error"] or {}).get("code") == f"batch_{ending}"
            )
            if not is_right:
                raise RuntimeError(f"line {number} of the batch that is {ending} is wrong: {raw[:300]!r}")
    counts = batch["request_counts"]
    if len(numbers) != plan.lines or counts["total"] != plan.lines or batch["status"] != ending:
        raise RuntimeError(f"{len(numbers)} of {plan.lines} lines; status {batch['status']}, {counts}")
    return total
