"""Deep pages take about as long as the first page, measured with few rows."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.nightly
def test_a_page_at_row_30000_takes_at_most_twice_the_time_of_the_first() -> None:
    """`python -m benchmarks pages` measures it at row 1,000,000."""
    command = [sys.executable, "-m", "benchmarks", "pages", "--rows", "30000", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
