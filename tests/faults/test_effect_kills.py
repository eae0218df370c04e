"""Processes that are killed after a tool has acted: no effect is lost or repeated silently.

`python -m benchmarks effects` does the same with 1,000 kills.
"""

import asyncio
from pathlib import Path

import pytest

from benchmarks.effects.driver import measured
from tests.support.management import ForkedPrograms
from tests.support.sampling import SEED, sized

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("servers")
def test_no_effect_is_lost_or_repeated_if_its_process_is_killed(tmp_path: Path) -> None:
    kills = sized(4, full=100)
    running = measured(
        kills=kills, seed=SEED, directory=tmp_path / "effects", log=lambda _: None, programs=ForkedPrograms()
    )
    outcome = asyncio.run(running)
    assert outcome.faults == []
    assert outcome.figures["killed web processes"] + outcome.figures["killed workers"] == kills
    assert outcome.figures["calls with an unknown outcome"] > 0
    assert outcome.figures["calls that were repeated with the same effect id"] > 0
