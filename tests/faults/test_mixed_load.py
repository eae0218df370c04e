"""A few seconds of mixed load: no request fails, however the teams combine them.

`python -m benchmarks mixed` does the same for an hour, with a thousand teams.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sampling import SEED

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("servers")
def test_no_kind_of_request_fails_beside_the_others() -> None:
    size = ["--minutes", "0.1", "--capacity-seconds", "3", "--teams", "20", "--processes", "1", "--workers", "1"]
    command = [sys.executable, "-m", "benchmarks", "mixed", *size, "--seed", str(SEED)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    assert "holds   errors other than 503: 0" in done.stdout, done.stdout
    actions = re.search(r"^capacity .*: ([\d,]+) actions$", done.stdout, re.MULTILINE)
    assert actions is not None, done.stdout
    assert int(actions[1].replace(",", "")) > 20
