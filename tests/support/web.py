"""The platform's web process, as it runs in production."""

import os
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from launcher.address import any_free_port
from launcher.processes import wait_for_start
from tests.support import preloaded

ROOT = Path(__file__).resolve().parents[2]
_STOP_SECONDS = 60.0
RUNNING: "list[WebProcess]" = []
"""The web processes that are ready. Their output is attached to failures."""


class WebProcess:
    """A `manage.py web` process on a free port. `url` is its root, and `prefix` are the words that run its command."""

    def __init__(
        self, *, server: str = "uvicorn", processes: str = "1", prefix: Sequence[str] = (), **variables: str
    ) -> None:
        port = any_free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        options = ["--port", str(port), "--server", server, "--processes", processes]
        self._process = preloaded.start(
            ["web", *options], prefix=prefix, environment={**os.environ, **variables}, output=self._output.fileno()
        )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def written(self) -> int:
        """Number of bytes written to its output."""
        return os.fstat(self._output.fileno()).st_size

    def output(self, *, since: int = 0) -> str:
        """Return its output after a number of bytes."""
        return os.pread(self._output.fileno(), self.written - since, since).decode(errors="replace")

    def wait_until_ready(self) -> None:
        """Wait until `/readyz` returns 200."""
        is_started = wait_for_start(self._process, ready=self._is_ready, written=lambda: self.written)
        assert is_started, f"the web process did not become ready:\n{self.output()}"

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Stop the process and return its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(how)
        try:
            return self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False


@contextmanager
def running_web(
    *, server: str = "uvicorn", processes: str = "1", prefix: Sequence[str] = (), **variables: str
) -> Iterator[WebProcess]:
    """Run a web process with additional environment variables until the end of the block."""
    process = WebProcess(server=server, processes=processes, prefix=prefix, **variables)
    try:
        process.wait_until_ready()
        RUNNING.append(process)
        yield process
    finally:
        if process in RUNNING:
            RUNNING.remove(process)
        process.stop()


def web_fixture(*, scope: Literal["session", "module"] = "session", **options: str) -> Any:
    """Return a fixture of a web process that takes the arguments of `running_web` and routes to the upstream."""

    @pytest.fixture(scope=scope)
    def process(upstream: object) -> Iterator[WebProcess]:
        with running_web(**options) as process:
            yield process

    return process
