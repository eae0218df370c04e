"""Models with several targets, some of which fail: clients get what the failover policy promises.

`python -m benchmarks failover` and `target-outages` do the same with all faults and with more streams.
"""

import asyncio
from pathlib import Path

import pytest

from benchmarks.failover import outages
from benchmarks.failover.cases import CASES, cells
from benchmarks.failover.command import Plan, measured
from benchmarks.failover.outage_targets import State
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
    assert len(found) == sum(len(case.modes) for case in cases)
    assert all(len(cell.results) >= plan.requests for cell in found)


@pytest.mark.usefixtures("servers")
def test_streams_are_answered_in_full_while_targets_fail_at_random_times(tmp_path: Path) -> None:
    # Whether a stream is open while its target fails depends on the machine.
    for attempt in range(5):
        running = outages.measured(
            streams=sized(90, full=1_000),
            seed=SEED + attempt,
            directory=tmp_path / f"outages-{attempt}",
            programs=ForkedPrograms(),
        )
        result = asyncio.run(running)
        assert result.faults == []
        assert {change.state for change in result.changes} == set(State)
        if any(request.state == "cut" for request in result.attempts):
            return
    pytest.fail("no stream was cut")
