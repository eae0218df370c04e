"""A sample of the console's pages with 100,000 responses: a small version of the benchmark with 5,000,000."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sampling import SEED

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1200)]
ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("servers")
def test_no_page_exceeds_its_time_limit_with_100_000_responses() -> None:
    arguments = ["--responses", "100000", "--check", "--brief", "--seed", str(SEED)]
    command = [sys.executable, "-m", "benchmarks", "admin", *arguments]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    outcome = re.search(r"^(\d+) pages, 0 of them above 450 ms", done.stdout, re.MULTILINE)
    assert outcome is not None, done.stdout
    assert int(outcome[1]) > 20
