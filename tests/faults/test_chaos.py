"""Processes that run background responses are killed: no response is lost, and nothing is done twice.

`python -m benchmarks chaos` does the same with 1,000 responses.
"""

import asyncio
from pathlib import Path

import pytest

from benchmarks.chaos.evaluation import evaluated
from benchmarks.chaos.scenario import Plan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PLAN = Plan(
    runs=40,
    kills=(0.15, 0.6),
    valkey_restarts=(0.3,),
    postgres_restarts=(0.45,),
    concurrency=20,
    patience=400,
)


@pytest.mark.usefixtures("servers")
def test_killed_processes_lose_and_repeat_nothing(tmp_path: Path) -> None:
    figures = asyncio.run(evaluated(PLAN, directory=tmp_path / "chaos"))
    values = {figure.name: figure.value for figure in figures}
    assert {figure.name: figure.faults for figure in figures if figure.faults} == {}
    disasters = (values["workers killed"], values["Valkey restarts with loss of data"], values["PostgreSQL crashes"])
    assert disasters == (2, 1, 1)
    assert values["responses"] >= PLAN.runs
    assert values["times a run was resumed"] > 0
    assert values["tool calls with a stored result"] > 3 * PLAN.runs
