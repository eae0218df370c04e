"""`python -m benchmarks idle-connections`: thousands of idle connections, and the requests that are served beside them.

Half of the connections have sent nothing, the others are kept after a request. Their memory is the additional memory of
one web process; the latency of JSON requests is measured without them, beside them, and without them again.
"""

import contextlib
import resource
import select
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import published
from benchmarks.load import Measurement, Pace, Target, cpu_seconds, measure, proportional_mb
from benchmarks.matrix import BURST, PROMPT
from benchmarks.report import Floor
from benchmarks.stack import running_stack, tell
from launcher.errors import LaunchError

CONNECTIONS = 10_000
CLIENTS = 8
SECONDS = 8.0
MOST_KB = 25.0
MOST_RISE = 1.5
# Connections of one address are limited by its ports: 28,000 by default.
PER_ADDRESS = 5_000
TOGETHER = 50
OTHER_FILES = 500


def raise_file_limit(needed: int) -> None:
    """Let this process open this many files; raises LaunchError if the system does not allow it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < needed:
        raise LaunchError(f"A process may open only {most:,} files, and {needed:,} are needed: raise `ulimit -Hn`.")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextlib.contextmanager
def idle_connections(target: Target, *, silent: int, kept: int) -> Iterator[list[socket.socket]]:
    """Open connections that send nothing, and others that have been used for a request."""
    address = urlsplit(target.url)
    where = (address.hostname or "", address.port or 80)
    head = f"GET /v1/models HTTP/1.1\r\nHost: {address.netloc}\r\n"
    request = (head + "".join(f"{name}: {value}\r\n" for name, value in target.headers.items()) + "\r\n").encode()
    with contextlib.ExitStack() as stack:
        peers = []
        for number in range(silent + kept):
            source = (f"127.0.0.{1 + number // PER_ADDRESS}", 0)
            peers.append(stack.enter_context(socket.create_connection(where, timeout=30, source_address=source)))
        for start in range(0, kept, TOGETHER):
            using = peers[start : min(start + TOGETHER, kept)]
            for peer in using:
                peer.sendall(request)
            for peer in using:
                _read_response(peer)
        yield peers


def _read_response(peer: socket.socket) -> None:
    """Read a response with a Content-Length; raises LaunchError unless its status is 200."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += _received(peer)
    head, _, body = received.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise LaunchError(f"A request before the wait was refused: {received[:300].decode(errors='replace')}")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    while len(body) < length:
        body += _received(peer)


def _received(peer: socket.socket) -> bytes:
    data = peer.recv(65536)
    if not data:
        raise LaunchError("The platform has closed a connection before its response.")
    return data


def closed(peers: Sequence[socket.socket]) -> int:
    """Return the number of connections that the server has closed or sent data to."""
    poll = select.poll()
    for peer in peers:
        poll.register(peer, select.POLLIN)
    return len(poll.poll(0))


def load(platform: Target, seconds: float) -> Measurement:
    """Send JSON requests one after the other on a few connections."""
    pace = Pace(connections=CLIENTS, seconds=seconds, warm_up=min(1.0, seconds / 2))
    return measure(platform, body={"model": BURST, "input": PROMPT}, pace=pace)


def measured(platform: Target, *, connections: int, seconds: float) -> dict[str, Any]:
    """Return the figures of a number of idle connections, half of which were used for a request."""
    kept = connections // 2
    without = [load(platform, seconds)]
    memory, began = proportional_mb(platform.pid), time.monotonic()
    with idle_connections(platform, silent=connections - kept, kept=kept) as peers:
        opened = time.monotonic() - began
        tell(f"{connections:,} connections opened in {opened:.1f} s")
        kilobytes = 1024 * (proportional_mb(platform.pid) - memory) / connections
        cpu, began = cpu_seconds(platform.pid), time.monotonic()
        time.sleep(seconds / 4)
        idle = (cpu_seconds(platform.pid) - cpu) / (time.monotonic() - began)
        beside = load(platform, seconds)
        lost = closed(peers)
    without.append(load(platform, seconds))
    return {
        "connections": connections,
        "kept": kept,
        "kb_per_connection": kilobytes,
        "opened_per_second": connections / opened,
        "idle_cores": idle,
        "closed": lost,
        "beside": beside.model_dump(),
        "without": Measurement.of_rounds(without).model_dump(),
    }


def floors(run: Mapping[str, Any]) -> Iterator[Floor]:
    """Yield the limits."""
    name = f"{run['connections']:,} idle connections"
    beside, without = run["beside"], run["without"]
    yield Floor(name=f"{name}: closed", figure=run["closed"], limit=0)
    yield Floor(name=f"{name}: requests that failed", figure=beside["failed"] + without["failed"], limit=0)
    yield Floor(name=f"{name}: KB each", figure=run["kb_per_connection"], limit=MOST_KB)
    times = _latency(beside, "p99"), _latency(without, "p99")
    rise = times[0] / times[1] if times[0] and times[1] else None
    yield Floor(name=f"{name}: rise of the p99 of requests", figure=rise, limit=MOST_RISE)


def _latency(side: Mapping[str, Any], quantile: str) -> float | None:
    """Return a quantile in milliseconds, or None if no request was answered while it was measured."""
    return side["total_ms"][quantile] if side["total_ms"] else None


def table(content: Mapping[str, Any]) -> str:
    """Return the table of the documentation."""
    number, run, at = published.number, content["run"], content["conditions"]
    rows = [
        [words, *(number(_latency(run[side], name)) for name in ("p50", "p99")), number(run[side]["per_second"])]
        for words, side in (("without", "without"), (f"{run['connections']:,}", "beside"))
    ]
    head = ["idle connections", "JSON request, p50 ms", "p99", "requests/s"]
    return (
        f"{published.table(head, rows)}\n\n{number(run['kb_per_connection'])} KB of memory per idle connection; "
        f"{run['kept']:,} were kept after a request; {number(run['idle_cores'])} cores while nothing was sent. One web "
        f"process, {CLIENTS} clients, {at['cores']} cores shared with upstream, driver and database, {at['date']}."
    )


VIEWS = {"table": table}


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Measure and print the figures. With `--check`, return 1 if a limit is exceeded."""
    parser = published.parser("idle-connections", description=__doc__)
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help="idle connections (default 10,000)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that requests are measured (default 8)")
    options = parser.parse_args(arguments)
    raise_file_limit(options.connections + OTHER_FILES)
    most = str(options.connections + OTHER_FILES)
    # Longer than the measurement: the platform would close connections that send nothing.
    with running_stack(directory=directory, HEADERS_SECONDS="600", MAX_CONNECTIONS=most) as (_, stack):
        run = measured(stack.platform, connections=options.connections, seconds=options.seconds)
    content = {"conditions": published.conditions(), "run": run}
    limits = list(floors(run))
    beside, without = (
        [published.number(_latency(run[side], quantile)) for quantile in ("p50", "p99")]
        for side in ("beside", "without")
    )
    print(
        f"{run['connections']:,} idle connections: {run['kb_per_connection']:.1f} KB each; requests p50 {beside[0]}, "
        f"p99 {beside[1]} ms, without them p50 {without[0]}, p99 {without[1]} ms; {run['idle_cores']:.3f} cores while "
        "idle"
    )
    for floor in limits:
        print(floor.text())
    return published.conclude("idle-connections", options, content=content, floors=limits)
