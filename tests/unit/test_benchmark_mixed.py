"""Benchmarks on slow machines: rates, latencies and memory with few or no measurements."""

import asyncio
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import aiohttp
import psutil
import pytest
from typing_extensions import override

from benchmarks import fairness, idle_connections, sizing
from benchmarks.mixed import LEAST_ACTIONS, Load, Memory, arrivals, capacity
from launcher.processes import wait_until


class SlowLoad(Load):
    """Actions that take half a second each."""

    @override
    async def act(self) -> None:
        await asyncio.sleep(0.5)
        self.done["ask"] += 1


async def slow_load() -> SlowLoad:
    async with aiohttp.ClientSession() as session:
        return SlowLoad(session, [], seed=1, interval=1)


@pytest.mark.slow
async def test_capacity_is_measured_until_enough_actions_are_done() -> None:
    load = await slow_load()
    rate = await capacity(load, seconds=0.1)
    assert load.done.total() >= LEAST_ACTIONS
    assert 0 < rate <= 1000


@pytest.mark.slow
async def test_arrivals_continue_until_enough_actions_have_started() -> None:
    assert await arrivals(await slow_load(), rate=100, seconds=0.01, seed=1, least=20) == 20


@pytest.fixture
def child() -> Any:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def test_memory_is_sampled_despite_an_ended_process(child: "subprocess.Popen[bytes]") -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert not psutil.pid_exists(gone.pid)
    with Memory({"beat": gone.pid, "web": child.pid}, interval=0.01) as memory:
        assert wait_until(lambda: len(memory.samples[f"web {child.pid}"]) > 1, seconds=60)


def test_no_sample_is_taken_after_an_error_of_the_load(child: "subprocess.Popen[bytes]") -> None:
    memory = Memory({"web": child.pid}, interval=0.01)
    with pytest.raises(ZeroDivisionError), memory:
        raise ZeroDivisionError
    assert not memory.is_alive()


def test_latencies_without_a_sample_are_a_dash() -> None:
    rise = fairness.Rise(kind="json", alone=(0.0, 0.0), beside=(1.0, 2.0), samples=(0, 4))
    assert "| json | 0.00 | 0.00 | 1.00 | 2.00 | – |" in fairness.table(
        {"rises": [asdict(rise)], "conditions": {"cores": 2, "date": "2026-11-28"}}
    )


def test_the_increase_beside_idle_connections_needs_an_answer() -> None:
    side = {"failed": 0, "total_ms": None}
    run = {"connections": 10, "closed": 0, "kb_per_connection": 1.0, "beside": side, "without": side}
    assert [floor.name for floor in idle_connections.floors(run) if not floor.holds] == [
        "10 idle connections: rise of the p99 of requests"
    ]


def test_a_prediction_without_measured_cores_has_no_error() -> None:
    check = sizing.Check(streams=10, per_second=0.0, predicted=0.0, measured=0.0)
    assert not check.floor().holds
    assert "| 10 | 0.00 | 0.00 | 0.00 | – |" in sizing.accuracy({"checks": [check.model_dump()]})
