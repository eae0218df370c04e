"""A few seconds of mixed load: no request fails, whatever other teams send at the same time.

`python -m benchmarks mixed` does the same for an hour, with a thousand teams.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.stack import running_servers
from launcher.processes import wait_until
from tests.support.management import ForkedPrograms
from tests.support.sampling import SEED

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
@pytest.mark.usefixtures("servers")
def test_no_kind_of_request_fails_under_mixed_load() -> None:
    # On a slow machine, too, both parts end only after enough actions.
    size = ["--minutes", "0.1", "--capacity-seconds", "3", "--teams", "20", "--processes", "1", "--workers", "1"]
    command = [sys.executable, "-m", "benchmarks", "mixed", *size, "--seed", str(SEED)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    assert "holds   errors other than 503: 0" in done.stdout, done.stdout
    actions = re.search(r"^capacity .*: ([\d,]+) actions$", done.stdout, re.MULTILINE)
    assert actions is not None, done.stdout
    assert int(actions[1].replace(",", "")) >= 50


@pytest.mark.usefixtures("servers")
def test_a_crashed_process_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    with running_servers(tmp_path / "servers", durable=False, programs=ForkedPrograms()) as started:
        started.start("web", sys.executable, "-c", "import time; time.sleep(600)")
        script = "import time; print('no memory left', flush=True); time.sleep(600)"
        worker = started.start("worker-1", sys.executable, "-c", script)
        assert wait_until(lambda: "no memory" in started.log("worker-1").read_text(), seconds=60)
        assert started.deaths() == []
        worker.process.kill()
        worker.process.wait()
        assert started.deaths() == ["worker-1 has ended (signal SIGKILL); the end of its log: no memory left"]
