"""Applies a load to a target and measures responses and cost."""

import json
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

from benchmarks import meters
from benchmarks.native import program

Api = Literal["chat", "responses"]
TIMEOUT_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Target:
    """A server to measure, with the processes whose CPU time is attributed to it."""

    name: str
    url: str
    pid: int
    api: Api
    headers: tuple[str, ...] = ()
    database_pid: int | None = None


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Rate of requests: for ``seconds`` after a ``warm_up``, or a fixed number of ``requests``."""

    connections: int
    seconds: float = 0.0
    warm_up: float = 0.0
    requests: int | None = None
    stamped: bool = False


class Spread(BaseModel):
    """Quantiles of one kind of time, in milliseconds."""

    model_config = ConfigDict(frozen=True)

    count: int
    p50: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of_rounds(cls, rounds: Sequence[Self]) -> Self:
        return cls(
            count=sum(spread.count for spread in rounds),
            p50=median(spread.p50 for spread in rounds),
            p95=median(spread.p95 for spread in rounds),
            p99=median(spread.p99 for spread in rounds),
            max=max(spread.max for spread in rounds),
        )


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
        """Combine rounds: medians of times, sums of counts and failures, maximum of memory."""
        first = rounds[0]
        return cls(
            connections=first.connections,
            **{name: sum(getattr(each, name) for each in rounds) for name in SUMS},
            **{name: median(getattr(each, name) for each in rounds) for name in MEDIANS},
            **{name: _median_spread([getattr(each, name) for each in rounds]) for name in SPREADS},
            **{name: _median_or_none([getattr(each, name) for each in rounds]) for name in DATABASE_MEDIANS},
            resident_mb=max(each.resident_mb for each in rounds),
            failures={kind: sum(each.failures[kind] for each in rounds) for kind in first.failures},
            first_error=next((each.first_error for each in rounds if each.first_error), ""),
        )


SUMS = ("started", "completed", "failed", "measured", "seconds", "driver_cpu_seconds")
MEDIANS = ("per_second", "events_per_request", "cpu_ms_per_request", "foreign_cores")
DATABASE_MEDIANS = ("database_ms_per_request", "statements_per_request", "rows_per_request")
SPREADS = ("total_ms", "first_event_ms", "first_delta_ms", "connect_ms", "delta_age_ms")


def measure(target: Target, *, body: Mapping[str, Any], pace: Pace, bystanders: Sequence[int] = ()) -> Measurement:
    """Apply a load to a target. The CPU time of ``bystanders`` does not count as foreign."""
    known = [target.pid, *([target.database_pid] if target.database_pid else []), *bystanders]
    before, busy, begun = {pid: meters.cpu_seconds(pid) for pid in known}, meters.busy_seconds(), time.monotonic()
    answers = _drive(target, body=body, pace=pace)
    elapsed, busy = time.monotonic() - begun, meters.busy_seconds() - busy
    spent = {pid: meters.cpu_seconds(pid) - before[pid] for pid in known}
    ms_per_request = 1000 / max(1, answers.started)
    return Measurement(
        **dict(answers),
        cpu_ms_per_request=spent[target.pid] * ms_per_request,
        database_ms_per_request=spent[target.database_pid] * ms_per_request if target.database_pid else None,
        resident_mb=meters.resident_mb(target.pid),
        foreign_cores=max(0.0, busy - sum(spent.values()) - answers.driver_cpu_seconds) / elapsed,
    )


def _drive(target: Target, *, body: Mapping[str, Any], pace: Pace) -> Answers:
    path = "/v1/responses" if target.api == "responses" else "/v1/chat/completions"
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(body, file)
        file.flush()
        command = [str(program("drive")), "--url", target.url + path, "--body-file", file.name, *_arguments(pace)]
        for header in target.headers:
            command += ["--header", header]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Answers.model_validate_json(done.stdout)


def _arguments(pace: Pace) -> list[str]:
    amount = (
        ["--requests", str(pace.requests)]
        if pace.requests
        else ["--seconds", str(pace.seconds), "--warm-up", str(pace.warm_up)]
    )
    stamped = ["--stamped"] if pace.stamped else []
    return ["--connections", str(pace.connections), "--timeout", str(TIMEOUT_SECONDS), *amount, *stamped]


def _median_spread(rounds: Sequence[Spread | None]) -> Spread | None:
    present = [spread for spread in rounds if spread is not None]
    return Spread.of_rounds(present) if present else None


def _median_or_none(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return median(present) if present else None
