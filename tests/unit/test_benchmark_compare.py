"""The comparison with other servers: its interpreters, the ladder, large prompts and the limits."""

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compare import interpreters, limits, report
from benchmarks.compare.interpreters import Python
from benchmarks.compare.large_prompt import SIZE, large_prompt
from benchmarks.compare.measurements import (
    CONCURRENCY,
    KINDS,
    LARGE,
    LARGE_CONCURRENCY,
    PER_CORE,
    PLATFORM,
    Contender,
    rate_under,
)
from benchmarks.load import Target
from core.interpreter import Interpreter

# Requests per second; all have a CPU time of 1 ms per request.
RATES = {"proxy": 1000.0, PLATFORM: 200.0, PER_CORE: 400.0, "agentic-api": 300.0}


def python(version: str, *, is_optimised: bool) -> Python:
    build = Interpreter(
        implementation="CPython", version=version, is_profile_guided=is_optimised, is_link_time_optimised=False
    )
    return Python(path=Path(f"/opt/{version}/bin/python3"), build=build)


SLOW_11, SLOW_12 = python("3.11.7", is_optimised=False), python("3.12.1", is_optimised=False)
FAST_11, FAST_13, FAST_14 = (python(version, is_optimised=True) for version in ("3.11.2", "3.13.1", "3.14.0"))


def cell(kind: str, connections: int, server: str, *, rate: float) -> dict[str, Any]:
    times = {"p50": 1.5, "p95": 2.0, "p99": 3.0}
    cost = {"cpu_ms_per_request": 0.5, "resident_mb": 40.0, "failed": 0}
    spreads = {"total_ms": times, "first_event_ms": times}
    return {"kind": kind, "connections": connections, "server": server, "per_second": rate, **spreads, **cost}


def step(connections: int, server: str, *, rate: float, p99: float | None, failed: int = 0) -> dict[str, Any]:
    loop = {"kind": "stream", "connections": connections, "server": server}
    return {**loop, "per_second": rate, "p99_ms": p99, "failed": failed}


def comparison(**rates: float) -> dict[str, Any]:
    """Return the content of a comparison with the given rates instead of the usual ones."""
    loads = [(kind, connections) for kind in KINDS for connections in CONCURRENCY]
    loads += [(LARGE, connections) for connections in LARGE_CONCURRENCY]
    cells = [
        cell(kind, connections, server, rate=rate)
        for kind, connections in loads
        for server, rate in {**RATES, **rates}.items()
    ]
    # JSON may take a tenth more than agentic-api's CPU, streams only three quarters.
    for result in cells:
        if result["server"] == "agentic-api":
            result["cpu_ms_per_request"] = 0.7 if result["kind"] == "stream" else 0.46
    ladder = [
        step(1, PLATFORM, rate=100.0, p99=4.0),
        step(2, PLATFORM, rate=180.0, p99=9.9),
        step(4, PLATFORM, rate=170.0, p99=40.0),
        step(8, PLATFORM, rate=190.0, p99=101.0),
    ]
    return {
        "conditions": {
            "cores": 2,
            "python": "3.11.2",
            "interpreter": "CPython 3.11.2, built with profile-guided optimisation",
            "date": "2026-11-30",
        },
        "versions": {"agentic-api": "0.9.0"},
        "interpreters": {"OGX": "CPython 3.12.1, built without profile-guided optimisation"},
        "missing": [],
        "rounds": 3,
        "not_stored": 0,
        "results": cells,
        "ladder": ladder,
    }


def missed(content: dict[str, Any]) -> list[str]:
    return [floor.name for floor in limits.floors(content, speed=True) if not floor.holds]


# -- interpreters ------------------------------------------------------------------------------------------------------


def test_an_optimised_interpreter_is_not_replaced() -> None:
    assert interpreters.preferred([FAST_14, SLOW_11], current=FAST_11) == FAST_11


def test_a_slow_interpreter_is_replaced_by_an_optimised_one_of_its_series() -> None:
    assert interpreters.preferred([SLOW_12, FAST_14, FAST_11, FAST_13], current=SLOW_11) == FAST_11
    assert interpreters.preferred([SLOW_11, FAST_13, FAST_14], current=SLOW_12) == FAST_14
    assert interpreters.preferred([SLOW_11, SLOW_12], current=SLOW_11) == SLOW_11


def test_other_servers_get_an_optimised_interpreter_that_their_lock_allows() -> None:
    assert interpreters.suitable([SLOW_11, SLOW_12, FAST_11, FAST_13, FAST_14], oldest=(3, 12)) == FAST_13
    assert interpreters.suitable([FAST_11, python("3.13.0", is_optimised=False), SLOW_12], oldest=(3, 12)) == SLOW_12
    assert interpreters.suitable([FAST_11], oldest=(3, 12)) is None


def test_an_interpreter_describes_itself(tmp_path: Path) -> None:
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    found = [interpreters.at(program) for program in (sys.executable, broken, tmp_path / "missing")]
    assert found == [interpreters.own(), None, None]
    assert interpreters.own() in interpreters.found()


# -- loads -------------------------------------------------------------------------------------------------------------


def test_a_large_prompt_is_sent_as_a_stream_of_different_words() -> None:
    target = Target(name="platform", url="http://127.0.0.1", pid=1, api="responses", headers={})
    body = Contender(target=target, model="mock").body(LARGE)
    assert (len(body["input"].encode()), body["stream"]) == (SIZE, True)
    assert len(set(large_prompt().split())) > 250


def test_the_rate_under_a_limit_is_the_highest_of_the_steps_below_it() -> None:
    content = comparison()
    rates = [rate_under(content, "stream", PLATFORM, p99_ms=limit) for limit in (1, 5, 10, 50, 100)]
    assert rates == [None, 100.0, 180.0, 180.0, 180.0]


def test_steps_with_failures_or_without_samples_do_not_count() -> None:
    steps = [step(1, PLATFORM, rate=10.0, p99=None), step(2, PLATFORM, rate=20.0, p99=1.0, failed=1)]
    assert rate_under({"ladder": steps}, "stream", PLATFORM, p99_ms=100) is None


# -- tables ------------------------------------------------------------------------------------------------------------


def test_the_ladder_and_large_prompts_have_tables() -> None:
    text = report.detailed(comparison())
    assert "| **this platform** | – | 100 | 180 | 180 | 180 | – | – | – | – | – |" in text
    assert "| 16 | **this platform**, a process per core | 400 | 2,000 | 1.50 |" in text


def test_the_conditions_name_the_interpreters() -> None:
    text = report.summary(comparison())
    assert "one server process, unless the row says otherwise" in text
    assert "CPython 3.11.2, built with profile-guided optimisation, 2026-11-30" in text
    assert "OGX runs on CPython 3.12.1, built without profile-guided optimisation." in text


def test_a_result_without_the_newer_loads_is_rendered() -> None:
    content = comparison()
    old = {name: content[name] for name in content if name not in {"ladder", "interpreters"}}
    old["results"] = [result for result in content["results"] if result["kind"] != LARGE]
    old["conditions"] = {name: value for name, value in content["conditions"].items() if name != "interpreter"}
    text = report.detailed(old)
    assert "Python 3.11.2, 2026-11-30" in text
    assert "Requests per second while" not in text
    assert "200 KB" not in text


# -- limits ------------------------------------------------------------------------------------------------------------

SLOWER_STREAMS = "stream at 64: pass-through ÷ platform"
SLOWER_JSON = "json at 64: pass-through ÷ platform"
PER_CORE_NAMES = [f"{kind} at 64: agentic-api ÷ a process per core" for kind in KINDS]


@pytest.mark.parametrize(
    ("rates", "names"),
    [
        ({}, []),
        ({PLATFORM: 199.0}, [SLOWER_STREAMS]),
        ({PLATFORM: 166.0}, [SLOWER_STREAMS, SLOWER_JSON]),
        ({PER_CORE: 299.0}, PER_CORE_NAMES),
    ],
)
def test_rates_below_those_of_others_are_missed(rates: dict[str, float], names: list[str]) -> None:
    assert missed(comparison(**rates)) == names


def test_a_limit_relative_to_a_missing_server_is_not_measured() -> None:
    content = comparison()
    content["results"] = [result for result in content["results"] if result["server"] != "agentic-api"]
    unmeasured = [floor for floor in limits.floors(content, speed=True) if floor.figure is None]
    assert [floor.name for floor in unmeasured if "agentic-api" in floor.name] == missed(content)
    assert len(unmeasured) == 5


def test_failures_of_both_deployments_count() -> None:
    content = comparison()
    for result in content["results"]:
        result["failed"] = int(result["server"] in {PER_CORE, "agentic-api"})
    assert missed(content) == ["failed requests of the platform"]
