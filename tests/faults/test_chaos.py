"""Processes that run background responses are killed: no response is lost, and nothing is done twice."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.chaos.evaluation import Evaluation, Figure
from benchmarks.chaos.scenario import Plan, running_chaos

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PLAN = Plan(
    runs=100,
    kills=(0.1, 0.25, 0.4, 0.55, 0.7),
    valkey_restarts=(0.3,),
    postgres_restarts=(0.5,),
    concurrency=40,
    patience=200,
)


async def outcomes(directory: Path) -> list[Figure]:
    """Return the outcomes of the runs in the plan."""
    async with running_chaos(PLAN, directory=directory) as chaos_run:
        assert chaos_run.observations.disasters == {"worker": 5, "valkey": 1, "postgres": 1}
        return await asyncio.to_thread(lambda: Evaluation(chaos_run).figures())


def test_killed_processes_lose_and_repeat_nothing(tmp_path: Path) -> None:
    figures = asyncio.run(outcomes(tmp_path / "chaos"))
    values = {figure.name: figure.value for figure in figures}
    assert {figure.name: figure.faults for figure in figures if figure.faults} == {}
    assert values["responses"] >= PLAN.runs
    assert values["times a run was resumed"] > 0
    assert values["tool calls with a stored result"] > 3 * PLAN.runs
