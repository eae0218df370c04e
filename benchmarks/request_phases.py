"""`python -m benchmarks request-phases`: what the time of a single request is spent on, from a trace of system calls.

Requests are sent one at a time. strace records when the web process reads and writes; between two of these moments it
either computes or waits for PostgreSQL or the upstream, which answers in microseconds. strace makes each system call
slower, so that the figures are upper bounds. Needs strace, and the right to trace the process.
"""

import re
import signal
import subprocess
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.load import Pace, measure
from benchmarks.matrix import BURST, PROMPT
from benchmarks.stack import Stack, running
from launcher.errors import LaunchError

_WARM_UP, _REQUESTS = 200, 200
_CALL = re.compile(r"^(?P<at>\d+\.\d+) (?P<call>read|write|sendto|recvfrom)\(\d+, (?P<data>.*)$")
_POSTGRES_BATCH = '"B\\0'
PHASES = (
    "checks the request and builds its rows",
    "waits for the first commit",
    "builds the upstream's request",
    "waits for the upstream",
    "converts the answer and builds the rows",
    "waits for the second commit",
    "sends the end",
)


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Print the medians of all phases, and of the time until the first byte."""
    parser = ArgumentParser(prog="python -m benchmarks request-phases", description=__doc__)
    parser.add_argument("--requests", type=int, default=_REQUESTS, help="of each kind (default %(default)s)")
    options = parser.parse_args(arguments)
    with running(directory=directory) as stack:
        for kind in ("JSON", "stream"):
            found = [*phases_of(_traced(stack, directory / f"{kind}.trace", kind, requests=options.requests))]
            if not found:
                raise LaunchError("The trace has no complete request: is strace allowed to trace the process?")
            _print(kind, found)
    return 0


def _traced(stack: Stack, file: Path, kind: str, *, requests: int) -> str:
    body = {"model": BURST, "stream": kind == "stream", "input": PROMPT}
    measure(stack.platform, body=body, pace=Pace(connections=1, requests=_WARM_UP))
    command = ["strace", "-ttt", "-s", "40", "-e", "trace=read,write,sendto,recvfrom", "-o", str(file)]
    try:
        tracer = subprocess.Popen([*command, "-p", str(stack.platform.pid)], stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        raise LaunchError("The trace needs strace: apt-get install strace") from None
    while not file.exists():
        time.sleep(0.05)
    measure(stack.platform, body=body, pace=Pace(connections=1, requests=requests))
    tracer.send_signal(signal.SIGINT)
    tracer.wait()
    return file.read_text(errors="replace")


def phases_of(trace: str) -> Iterator[Mapping[str, float]]:
    """Yield the milliseconds of each phase of each complete request in a trace, and those until its first byte."""
    marks: list[float] = []
    first_byte = 0.0
    for line in trace.splitlines():
        if (match := _CALL.match(line)) is None:
            continue
        at, call, data = 1000 * float(match["at"]), match["call"], match["data"]
        # The moments in their order: each is looked for once the one before it was found.
        expected = (
            call == "read" and "POST /v1/responses" in data,
            call == "sendto" and data.startswith(_POSTGRES_BATCH),
            call == "recvfrom",
            call == "write" and "POST /v1/chat" in data,
            call == "read" and "HTTP/1.1 200" in data,
            call == "sendto" and data.startswith(_POSTGRES_BATCH),
            call == "recvfrom",
            call == "write" and ("response.completed" in data or '"{\\"id' in data),
        )
        if expected[0]:
            marks, first_byte = [at], 0.0
        elif marks and len(marks) < len(expected):
            if not first_byte and call == "write" and "HTTP/1.1 200" in data:
                first_byte = at
            if expected[len(marks)]:
                marks.append(at)
                if len(marks) == len(expected):
                    times = (end - begin for begin, end in pairwise(marks))
                    yield {**dict(zip(PHASES, times, strict=True)), "first byte": first_byte - marks[0]}


def _print(kind: str, found: Sequence[Mapping[str, float]]) -> None:
    print(f"{kind}: medians of {len(found)} requests in ms")
    for phase in (*PHASES, "first byte"):
        print(f"{median(times[phase] for times in found):8.2f}  {phase}")
