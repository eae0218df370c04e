"""Processes that run background responses are killed: no response is lost, and nothing is done twice.

`python -m benchmarks chaos --runs 10000` does the same with 10,000 responses, `--minutes 30` causes all faults.
"""

import asyncio
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.chaos.availability import measured
from benchmarks.chaos.evaluation import evaluated
from benchmarks.chaos.scenario import Plan
from tests.support.sampling import SEED

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
PLAN = Plan(
    runs=40,
    kills=(0.15, 0.6),
    web_kills=(0.5,),
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
    assert (values["workers killed"], values["web processes killed"]) == (2, 1)
    assert (values["Valkey restarts with loss of data"], values["PostgreSQL crashes"]) == (1, 1)
    assert values["responses"] >= PLAN.runs
    assert values["tool calls with a stored result"] > 3 * PLAN.runs


@pytest.mark.usefixtures("servers")
def test_faults_under_mixed_load_cause_no_wrong_answer(tmp_path: Path) -> None:
    """The number of failed requests depends on the machine. No request may be answered wrongly, lost or stuck."""
    options = Namespace(
        minutes=0.4,
        load=1.0,
        rate=6.0,
        seed=SEED,
        teams=4,
        pause=0.1,
        batch_lines=20,
        only=["worker killed", "database sessions ended", "upstream cuts"],
    )
    outcome = asyncio.run(measured(options, directory=tmp_path / "chaos", log=lambda _: None))
    assert (list(outcome.wrong), list(outcome.stuck), list(outcome.book_faults)) == ([], [], [])
    assert set(outcome.acknowledged) == {"retrieved", "files"}
    assert outcome.effects
    assert outcome.requests > 20
