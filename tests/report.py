"""Pytest plugin that reports where the time of a run went, and the command that repeats a failed test.

The time of a test includes its fixtures: those of a session or module count for the first test that needs them. A run
of a whole suite fails if its tests take longer together than the budget of the suite, so that its growth is noticed. As
machines and their load differ, the seconds of a slow or busy machine count less: see `tests.support.machine_clock`.
"""

import time
from collections import defaultdict
from collections.abc import Generator
from operator import itemgetter
from pathlib import Path
from shlex import quote
from typing import Any

import orjson
import pytest

pytest.register_assert_rewrite("tests.support")

from tests.support.machine_clock import machine_time  # noqa: E402 - the line above comes before the first such import

# In seconds of the machine clock, by the `-m` of a suite: three times what a run takes on two cores that are busy with
# it. That clock counts more seconds of tests that wait than of tests that compute.
_BUDGETS = {"not slow": 700.0, "slow": 4000.0}
_SHOWN = {"tests": 10, "files": 40, "fixtures": 10}
_FIXTURE = "fixture"
# Shorter fixtures are of no interest, and there are tens of thousands.
_LEAST_SECONDS = 0.05


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the file with all times."""
    parser.addoption(
        "--times", type=Path, metavar="FILE", help="write the seconds of each test and its fixtures, as lines of JSON"
    )
    parser.addoption(
        "--budget",
        type=float,
        metavar="SECONDS",
        help="fail if all tests together take longer, in seconds of the machine clock; a whole suite has a budget",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect the times in the process that prints the result, which gets the reports of all others."""
    if not hasattr(config, "workerinput"):
        budget = config.getoption("--budget")
        is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.keyword
        if budget is None and is_whole:
            budget = _BUDGETS.get(config.option.markexpr)
        config.pluginmanager.register(Times(config.getoption("--times"), budget=budget))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(request: pytest.FixtureRequest) -> Generator[None, Any, Any]:
    """Measure a fixture without the fixtures it uses, which are set up before it."""
    began = time.perf_counter()
    try:
        return (yield)
    finally:
        seconds = time.perf_counter() - began
        if seconds >= _LEAST_SECONDS:
            item = request.node if isinstance(request.node, pytest.Item) else request._pyfuncitem
            item.user_properties.append((_FIXTURE, [request.fixturename, round(seconds, 3)]))


class Times:
    """The seconds of all tests of a run, of their files and of their fixtures."""

    def __init__(self, path: Path | None, *, budget: float | None) -> None:
        self._file = path.open("wb") if path is not None else None
        self._tests = defaultdict[str, float](float)
        self._fixtures = defaultdict[str, float](float)
        self._failed: list[str] = []
        self._budget = budget
        self._began = (time.monotonic(), machine_time()) if budget is not None else (0.0, 0.0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the time of the set-up, the call or the end of a test."""
        self._tests[report.nodeid] += report.duration
        if report.failed and report.nodeid not in self._failed:
            self._failed.append(report.nodeid)
        fixtures = defaultdict[str, float](float)
        # Each report repeats the properties of the earlier phases of its test.
        for name, value in report.user_properties if report.when == "setup" else ():
            if name == _FIXTURE and isinstance(value, list):
                fixtures[value[0]] += value[1]
                self._fixtures[value[0]] += value[1]
        if self._file is not None:
            line = {
                "test": report.nodeid,
                "phase": report.when,
                "outcome": report.outcome,
                "seconds": report.duration,
                "fixtures": fixtures,
            }
            self._file.write(orjson.dumps(line) + b"\n")
            self._file.flush()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the longest tests, files and fixtures, and the commands that run the failed tests again."""
        if len(self._tests) > _SHOWN["tests"]:
            files = defaultdict[str, float](float)
            for test, seconds in self._tests.items():
                files[test.partition("::")[0]] += seconds
            for title, times in (("tests", self._tests), ("files", files), ("fixtures", self._fixtures)):
                terminalreporter.section(f"slowest {title} of {sum(times.values()):.0f} s", sep="-")
                for name, seconds in sorted(times.items(), key=itemgetter(1), reverse=True)[: _SHOWN[title]]:
                    terminalreporter.line(f"{seconds:8.1f} s  {name}")
        if self._budget is not None:
            counted = self._counted_seconds
            terminalreporter.section("time of all tests", sep="-")
            terminalreporter.line(
                f"{self._seconds:.0f} s. The clock of the machine counted {counted:.0f} s; the budget is "
                f"{self._budget:g} s.",
                red=counted > self._budget,
            )
        if self._failed:
            terminalreporter.section("to run a failed test again", sep="-")
            for test in self._failed:
                terminalreporter.line(f"python3 manage.py test {quote(test)}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run whose tests took too long."""
        if self._budget is not None and self._counted_seconds > self._budget:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @property
    def _seconds(self) -> float:
        return sum(self._tests.values())

    @property
    def _counted_seconds(self) -> float:
        """The seconds of the tests, less what the clock of the machine did not count of the run."""
        wall, machine = self._began
        return self._seconds * min(1.0, (machine_time() - machine) / (time.monotonic() - wall))
