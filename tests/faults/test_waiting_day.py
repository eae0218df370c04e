"""Runs that wait for approvals for a day while every process is replaced: all continue or expire, and hold nothing.

`python -m benchmarks waiting-runs` does the same with 1,000 runs.
"""

import asyncio
from pathlib import Path

import pytest

from benchmarks.waiting.driver import Fate, Plan, measured
from tests.support.management import ForkedPrograms
from tests.support.sampling import SEED, sized

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("servers")
def test_waiting_runs_survive_a_day_and_the_replacement_of_all_processes(tmp_path: Path) -> None:
    runs = sized(20, full=200)
    plan = Plan(
        runs=runs,
        seed=SEED,
        workers=sized(1, full=2),
        # Few runs show no difference.
        idle_seconds=sized(0, full=30),
        # Other tests run at the same time.
        most_resume_seconds=sized(10, full=1),
    )
    running = measured(plan, directory=tmp_path / "waiting", log=lambda _: None, programs=ForkedPrograms())
    outcome = asyncio.run(running)
    assert outcome.faults == []
    assert [floor.text() for floor in outcome.floors if not floor.holds] == []
    assert (outcome.counts.total(), {*outcome.counts}) == (runs, {*Fate})
