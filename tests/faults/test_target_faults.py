"""A model with two targets, of which the first fails: clients get what the failover policy promises.

`python -m benchmarks failover` does the same with all faults.
"""

import asyncio
from pathlib import Path

import pytest

from benchmarks.failover.cases import CASES, cells
from benchmarks.failover.command import Plan, measured
from tests.support.management import ForkedPrograms
from tests.support.sampling import IS_FULL, SEED, sized

pytestmark = pytest.mark.slow
# Those without long pauses.
SAMPLE = {"reset", "429", "no-done", "too-long", "policy", "cut-continued"}


@pytest.mark.usefixtures("servers")
def test_clients_get_what_the_policy_promises_if_a_target_fails(tmp_path: Path) -> None:
    cases = [case for case in CASES if IS_FULL or case.name in SAMPLE]
    plan = Plan(cells=[*cells(cases)], requests=sized(2, full=6), seed=SEED)
    found = asyncio.run(measured(plan, directory=tmp_path / "failover", programs=ForkedPrograms()))
    assert {cell.cell.name: cell.faults for cell in found if cell.faults} == {}
    assert len(found) == 6 * len(cases)
    assert all(len(cell.results) >= plan.requests for cell in found)
