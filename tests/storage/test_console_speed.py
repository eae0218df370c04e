"""Pages of the console with 200,000 responses: a small version of the benchmark with 5,000,000."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]


def test_no_page_exceeds_its_time_limit_with_200_000_responses() -> None:
    command = [sys.executable, "-m", "benchmarks", "admin", "--responses", "200000", "--check", "--brief"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    assert "list 30d, metadata, one" in done.stdout
