"""The end of a test run: the slowest tests, files and fixtures, and the commands that repeat failed tests."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.servers import ROOT

TESTS = """
import time

import pytest


@pytest.fixture(scope="session")
def house():
    time.sleep(0.3)


@pytest.fixture
def room(house):
    time.sleep(0.1)


@pytest.mark.parametrize("name", ["a b", *map(str, range(10))])
def test_it(name, room):
    assert name != "a b"
"""


def _run(
    directory: Path, *arguments: str, files: Sequence[str] = ("test_rooms.py",)
) -> "subprocess.CompletedProcess[str]":
    """Run the tests of files with the plugin."""
    options = ["-c", "/dev/null", "--rootdir", ".", "-p", "xdist", "-p", "tests.report", *arguments]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        cwd=directory,
        # The other plugins import Django and more in each process.
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_run_shows_its_slowest_parts_with_the_command_for_each_failure(tmp_path: Path, processes: str) -> None:
    (tmp_path / "test_rooms.py").write_text(TESTS)
    times = tmp_path / "times.jsonl"
    finished = _run(tmp_path, "-n", processes, "--times", str(times))
    lines = [line.split() for line in finished.stdout.splitlines()]
    assert ["python3", "manage.py", "test", "'test_rooms.py::test_it[a", "b]'"] in lines
    # The fixture of the session was set up once in each process, that of the test eleven times.
    shown = {line[-1]: float(line[0]) for line in lines if len(line) == 3 and line[1] == "s"}
    assert shown["room"] >= 1.1 > shown["house"] >= 0.3
    # Each figure is rounded to a tenth.
    assert shown["test_rooms.py"] > shown["room"] + shown["house"] - 0.2
    written = [json.loads(line) for line in times.read_text().splitlines()]
    assert [line["outcome"] for line in written if line["phase"] == "call"].count("failed") == 1
    assert len(written) == 33
    assert sum(line["fixtures"].get("room", 0) for line in written) > 1.09


@pytest.mark.slow
def test_a_run_fails_whose_tests_together_exceed_their_budget(tmp_path: Path) -> None:
    (tmp_path / "test_rooms.py").write_text(TESTS.replace("assert name", "name"))
    codes = []
    for budget in ("1000", "0.01"):
        finished = _run(tmp_path, f"--budget={budget}")
        codes.append(finished.returncode)
        assert f"the budget is {budget} s" in finished.stdout, finished.stdout
    assert codes == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize(("options", "is_whole"), [((), True), (("-k", "b"), False)])
def test_a_whole_suite_has_a_budget(tmp_path: Path, options: Sequence[str], *, is_whole: bool) -> None:
    (tmp_path / "test_rooms.py").write_text(TESTS.replace("assert name", "name"))
    finished = _run(tmp_path, "-o", "testpaths=test_rooms.py", "-m", "not slow", *options, files=())
    assert finished.returncode == 0, finished.stdout
    assert ("the budget is" in finished.stdout) == is_whole, finished.stdout
