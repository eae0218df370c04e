"""Pytest plugin of recorded runs: measures the process that runs tests, and tells its servers the test file."""

import os
import time
from pathlib import Path

import pytest

from tests.recording import CONTEXT, DIRECTORY, measure

# Servers notice the next test file within this time.
_NOTICE_SECONDS = 0.2


class _Recorder:
    def __init__(self, directory: Path) -> None:
        self._path = directory / f"context-{os.getpid()}"
        self._file = ""
        os.environ[CONTEXT] = str(self._path)
        self._measured = measure(directory)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Switch to the file of the next test."""
        if (file := nodeid.partition("::")[0]) != self._file:
            self._file = file
            self._path.write_text(file)
            self._measured.switch_context(file)
            time.sleep(_NOTICE_SECONDS)


def pytest_configure(config: pytest.Config) -> None:
    """Measure the process, unless it only distributes tests to others."""
    if hasattr(config, "workerinput") or not config.option.numprocesses:
        config.pluginmanager.register(_Recorder(Path(os.environ[DIRECTORY])))
