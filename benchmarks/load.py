"""Applies a load to a target and measures responses and cost.

The load driver and the mock upstream are written in C, so that they leave the processor to the server under test. The
load generators of PyPI (locust, molotov) would use more CPU than the platform, and wrk does not understand streams.
"""

import contextlib
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal, Self

import psutil
from pydantic import BaseModel, ConfigDict

SOURCES, BUILD = (Path(__file__).parent / name for name in ("native", "build"))
# The slowest of the other servers needs a minute for 256 streams at once.
TIMEOUT_SECONDS = 120

Api = Literal["chat", "responses"]


def program(name: str) -> Path:
    """Return the path of a compiled program, rebuilt if its source has changed.

    Raises SystemExit with a sentence if there is no compiler, and with the compiler's message if it fails.
    """
    source, built = SOURCES / f"{name}.c", BUILD / name
    if built.exists() and built.stat().st_mtime > source.stat().st_mtime:
        return built
    BUILD.mkdir(exist_ok=True)
    # Replaced at once: another benchmark, or another thread of this one, may be building or running it.
    building = BUILD / f"{name}.{os.getpid()}.{threading.get_ident()}"
    command = ["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(building), str(source), "-lm"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise SystemExit("The benchmark needs a C compiler (`cc`) for its mock upstream and its load driver.") from None
    except subprocess.CalledProcessError as refused:
        raise SystemExit(refused.stderr) from None
    building.replace(built)
    return built


@dataclass(frozen=True, kw_only=True)
class Target:
    """A server to measure, with the processes whose CPU time is attributed to it."""

    name: str
    url: str
    pid: int
    api: Api
    headers: Mapping[str, str]
    database_pid: int | None = None


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Rate of requests: for ``seconds`` after a ``warm_up``, or a fixed number of ``requests``.

    Connections are opened evenly over the seconds of the ``ramp``. With a ``rate``, this many requests per second
    become due at random times, and each takes a free connection.
    """

    connections: int
    seconds: float = 0.0
    warm_up: float = 0.0
    requests: int | None = None
    ramp: float = 0.0
    rate: float = 0.0
    stamped: bool = False


class Spread(BaseModel):
    """Quantiles of one kind of time, in milliseconds."""

    model_config = ConfigDict(frozen=True)

    count: int
    p50: float
    p95: float
    p99: float
    max: float


class Answers(BaseModel):
    """Results of the driver. Times cover requests inside the window; the first four counts cover all requests.

    ``delta_age_ms`` is the time between the mock's send of a token and its arrival at the driver.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    connections: int
    started: int
    completed: int
    failed: int
    measured: int
    seconds: float
    per_second: float
    events_per_request: float
    driver_cpu_seconds: float
    total_ms: Spread | None
    first_event_ms: Spread | None
    first_delta_ms: Spread | None
    connect_ms: Spread | None
    delta_age_ms: Spread | None
    failures: dict[str, int]
    first_error: str


class Measurement(Answers):
    """Results with their cost. ``foreign_cores`` is the CPU use of other processes, which is noise."""

    cpu_ms_per_request: float
    database_ms_per_request: float | None
    statements_per_request: float | None = None
    rows_per_request: float | None = None
    resident_mb: float
    foreign_cores: float

    @classmethod
    def of_rounds(cls, rounds: Sequence[Self]) -> Self:
        """Combine rounds: sums of counts and failures, maximum of memory, medians of everything else."""
        return cls.model_validate(_combined([each.model_dump() for each in rounds]))


_TOTALS = {"started", "completed", "failed", "measured", "count", "seconds", "driver_cpu_seconds"}


def _combined(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    combined: dict[str, Any] = {}
    for name in rounds[0]:
        present = [each[name] for each in rounds if each[name] is not None]
        if not present:
            combined[name] = None
        elif name == "failures":
            combined[name] = {kind: sum(each[kind] for each in present) for kind in present[0]}
        elif isinstance(present[0], dict):
            combined[name] = _combined(present)
        elif isinstance(present[0], str):
            combined[name] = max(present, key=len)
        else:
            function = sum if name in _TOTALS else max if name in {"max", "resident_mb", "connections"} else median
            combined[name] = function(present)
    return combined


def measure(target: Target, *, body: Mapping[str, Any], pace: Pace, bystanders: Sequence[int] = ()) -> Measurement:
    """Apply a load to a target. The CPU time of ``bystanders`` does not count as foreign."""
    known = [target.pid, *([target.database_pid] if target.database_pid else []), *bystanders]
    before, busy, begun = {pid: cpu_seconds(pid) for pid in known}, _busy_seconds(), time.monotonic()
    answers = drive(target, body=body, pace=pace)
    elapsed, busy = time.monotonic() - begun, _busy_seconds() - busy
    spent = {pid: cpu_seconds(pid) - before[pid] for pid in known}
    ms_per_request = 1000 / max(1, answers.started)
    return Measurement(
        **dict(answers),
        cpu_ms_per_request=spent[target.pid] * ms_per_request,
        database_ms_per_request=spent[target.database_pid] * ms_per_request if target.database_pid else None,
        resident_mb=resident_mb(target.pid),
        foreign_cores=max(0.0, busy - sum(spent.values()) - answers.driver_cpu_seconds) / elapsed,
    )


def drive(target: Target, *, body: Mapping[str, Any], pace: Pace) -> Answers:
    """Apply a load to a target."""
    path = "/v1/responses" if target.api == "responses" else "/v1/chat/completions"
    amount = {"requests": pace.requests} if pace.requests else {"seconds": pace.seconds, "warm-up": pace.warm_up}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(body, file)
        file.flush()
        options = {"url": target.url + path, "body-file": file.name, "connections": pace.connections, **amount}
        options |= {"ramp": pace.ramp, "rate": pace.rate}
        command = [str(program("drive")), "--timeout", str(TIMEOUT_SECONDS), *(["--stamped"] if pace.stamped else [])]
        command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
        command += [word for name, value in target.headers.items() for word in ("--header", f"{name}: {value}")]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Answers.model_validate_json(done.stdout)


# -- meters ------------------------------------------------------------------------------------------------------------


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process and its descendants, including ended ones."""
    total = 0.0
    for process in _family(pid):
        # A process that has ended is in its parent's times.
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process and its descendants in MiB. Shared pages count for each process."""
    total = 0
    for process in _family(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total / 2**20


def proportional_mb(pid: int) -> float:
    """Return the memory of a process and its descendants in MiB, with a share of the pages that processes share."""
    total = 0
    for process in _family(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total / 2**20


def _family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _busy_seconds() -> float:
    """Return the CPU time of the whole machine, including time stolen by the hypervisor."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)
