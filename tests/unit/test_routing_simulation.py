"""The simulation of the choice among targets keeps its limits.

`python -m benchmarks routing-simulation` does the same with 30,000 requests.
"""

import pytest

from benchmarks.routing.command import figures
from tests.support.sampling import SEED, sized


@pytest.mark.slow
def test_the_limits_of_the_simulation_hold() -> None:
    floors = list(figures(seed=SEED, requests=sized(4_000, full=30_000)))
    assert [floor.text() for floor in floors if not floor.holds] == []
    assert len(floors) == 9
