"""A few streams at one event per second: none fails, and every delta is measured.

`python -m benchmarks slow-streams` does the same with thousands.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("servers")
def test_slow_streams_get_every_event() -> None:
    size = ["--streams", "40", "--processes", "1", "--seconds", "4"]
    command = [sys.executable, "-m", "benchmarks", "slow-streams", *size]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    assert "holds   40 streams on 1 process: failed: 0" in done.stdout, done.stdout
    late = re.search(r"^40 streams, 1 web: p50 ([\d.]+), p99 [\d.]+, max \d+ ms late", done.stdout, re.MULTILINE)
    assert late is not None, done.stdout
    # Generous, because other tests use the cores; a stream that is delivered in pieces would be seconds late.
    assert float(late[1]) < 500
