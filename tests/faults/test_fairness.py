"""A few seconds of a team with a hundred times the load of others: only its requests are slowed down and refused.

`python -m benchmarks fairness` does the same for minutes, and compares the times.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sampling import SEED

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
ROOT = Path(__file__).parents[2]
# Without turns, the other teams waited 10 to 20 times as long beside the busy one, and most of their requests were
# refused. The margin is for other load on the machine.
MOST_RISE = 8.0


@pytest.mark.usefixtures("servers")
def test_teams_with_few_requests_are_served_beside_a_team_with_many() -> None:
    size = ["--seconds", "4", "--rounds", "1", "--teams", "3", "--seed", str(SEED)]
    command = [sys.executable, "-m", "benchmarks", "fairness", *size]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    assert "holds   errors and refusals of quiet teams: 0" in done.stdout, done.stdout
    rises = re.findall(
        r"^(?:holds  |MISSED ) (.+): p99 beside the loud team ÷ alone: ([\d.]+)", done.stdout, re.MULTILINE
    )
    assert len(rises) == 5, done.stdout
    assert all(float(rise) < MOST_RISE for _, rise in rises), done.stdout
