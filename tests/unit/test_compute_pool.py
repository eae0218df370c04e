"""The pool of computations on untrusted input: limits, turns of teams, and processes that are killed."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from core.compute.pool import ComputationFailed, TooCostly, compute, of_team
from core.errors import Overloaded
from tests.support.computations import computation
from tests.support.machine_clock import machine_time
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]


async def sleep(team: str, seconds: float, *, waits: bool = False) -> float:
    """Wait in a process of the pool for a team; returns the time of the end."""
    with of_team(team):
        await compute(computation("sleep", seconds=60), seconds, waits=waits)
    return time.monotonic()


async def test_a_computation_returns_its_result() -> None:
    assert await compute(computation("echo"), "Äpfel") == "Äpfel".encode()


async def test_long_arguments_and_results_are_transferred_completely() -> None:
    text = "0123456789" * 800_000
    assert await compute(computation("echo", result=len(text)), text) == text.encode()


async def test_the_process_has_limits_and_no_secrets() -> None:
    # Python itself sets LC_CTYPE where the environment names no locale.
    expected = [0, 0, 0, min(os.nice(0) + 10, 19), {"LC_CTYPE": "C.UTF-8"}]
    assert await compute(computation("limits")) == repr(expected).encode()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "is_slow"), [("spin", True), ("grow", False), ("crash", False), ("kill", False)])
async def test_a_computation_beyond_its_limits_is_ended(name: str, is_slow: bool) -> None:
    with pytest.raises(TooCostly) as raised:
        # On a busy machine, a computation could otherwise be too slow before it is too large.
        await compute(computation(name) if is_slow else computation(name, cpu_seconds=30, seconds=60))
    assert raised.value.is_slow == is_slow


@pytest.mark.slow
async def test_a_computation_that_only_waits_is_ended() -> None:
    began = machine_time()
    with pytest.raises(TooCostly) as raised:
        await compute(computation("sleep", seconds=0.5), 60.0)
    assert raised.value.is_slow
    assert machine_time() - began < 10


async def test_a_result_beyond_its_limit_is_refused() -> None:
    with pytest.raises(TooCostly):
        await compute(computation("write_much", result=1000), 1001)


async def test_an_exception_is_reported_by_its_type() -> None:
    with pytest.raises(ComputationFailed, match="ZeroDivisionError"):
        await compute(computation("fail"))


async def test_a_computation_whose_process_is_killed_is_repeated(tmp_path: Path) -> None:
    (mark := tmp_path / "first").touch()
    assert await compute(computation("kill_once"), str(mark)) == b"second"


async def test_a_computation_ends_when_its_caller_is_cancelled(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pid")
    waiting = asyncio.create_task(compute(computation("process_id", seconds=60), str(pipe)))
    pid = int(await asyncio.to_thread(pipe.read_text))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.to_thread(eventually, lambda: not Path(f"/proc/{pid}").exists())


async def test_a_team_that_floods_the_pool_leaves_slots_for_others() -> None:
    flood = [asyncio.create_task(sleep("loud", 30.0)) for _ in range(20)]
    await asyncio.sleep(0)
    await sleep("quiet", 0.0)
    # No computation of the first team had to end for it.
    assert not any(task.done() for task in flood)
    for task in flood:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)


@pytest.mark.slow
async def test_teams_take_turns() -> None:
    first = [asyncio.create_task(sleep("first", 0.05)) for _ in range(30)]
    second = [asyncio.create_task(sleep("second", 0.05)) for _ in range(3)]
    ends = sorted(await asyncio.gather(*first))
    # The requests of the second team came last.
    assert max(await asyncio.gather(*second)) < ends[len(ends) // 2]


@pytest.mark.slow
async def test_a_full_queue_refuses_requests_but_not_runs_or_other_teams() -> None:
    flood = [asyncio.create_task(sleep("full", 0.01)) for _ in range(80)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as refused:
        await sleep("full", 0.0)
    assert (refused.value.status, int(refused.value.headers["retry-after"]) > 0) == (503, True)
    await asyncio.gather(sleep("full", 0.0, waits=True), sleep("empty", 0.0))
    outcomes = await asyncio.gather(*flood, return_exceptions=True)
    assert sum(isinstance(outcome, Overloaded) for outcome in outcomes) == 80 - 32 - 2


@pytest.mark.slow
def test_the_pool_ends_with_its_process(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pid")
    code = (
        "import asyncio\nfrom core.compute.pool import compute\nfrom tests.support.computations import computation\n"
        f"asyncio.run(compute(computation('process_id', cpu_seconds=60, seconds=60), {str(pipe)!r}))"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}"}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as process:
        pid = pipe.read_text()
        parent = Path(f"/proc/{pid}/stat").read_text().split()[3]
        process.kill()
    eventually(lambda: not Path(f"/proc/{pid}").exists() and not Path(f"/proc/{parent}").exists())
