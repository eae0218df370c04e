"""The worker as a process, as in production."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import psutil

from launcher.processes import wait_for_start
from tests.support import preloaded
from tests.support.machine_clock import machine_time

_STOP_SECONDS = 60.0
_READY = "the worker claims background responses"
RUNNING: "list[WorkerProcess]" = []
"""The workers that are ready. Their output is attached to failures."""


class WorkerProcess:
    """A `manage.py worker` process that may connect to servers on this machine; `prefix` runs its command."""

    def __init__(self, *, concurrency: int = 200, prefix: Sequence[str] = (), **variables: str) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = preloaded.start(
            ["worker", "--concurrency", str(concurrency)],
            prefix=prefix,
            environment={**os.environ, "EGRESS_ALLOW": "127.0.0.1", "BATCH_RETRY_SECONDS": "0", **variables},
            output=self._output.fileno(),
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
        """Wait until it claims responses."""
        is_started = wait_for_start(
            self._process, ready=lambda: _READY in self.output(), written=lambda: self.written
        )  # fmt: skip
        assert is_started, f"the worker did not become ready:\n{self.output()}"

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Stop the process with SIGSTOP inside the block, so that it claims nothing."""
        self._process.send_signal(signal.SIGSTOP)
        # The worker cannot start processes any more. Processes with isolated runs claim more runs for ten seconds.
        children = psutil.Process(self.pid).children(recursive=True) if self._process.poll() is None else []
        for child in children:
            _signal(child, signal.SIGSTOP)
        try:
            yield
        finally:
            for child in children:
                _signal(child, signal.SIGCONT)
            self._process.send_signal(signal.SIGCONT)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> float:
        """Stop the process and return how many seconds of `machine_time` that took."""
        began = machine_time()
        if self._process.poll() is None:
            self._process.send_signal(how)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        return machine_time() - began


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


@contextmanager
def running_worker(*, concurrency: int = 200, prefix: Sequence[str] = (), **variables: str) -> Iterator[WorkerProcess]:
    """Run a worker with additional environment variables until the end of the block."""
    process = WorkerProcess(concurrency=concurrency, prefix=prefix, **variables)
    try:
        process.wait_until_ready()
        RUNNING.append(process)
        yield process
    finally:
        if process in RUNNING:
            RUNNING.remove(process)
        process.stop()


@contextmanager
def other_workers_suspended() -> Iterator[None]:
    """Stop the workers that run with SIGSTOP inside the block, so that only workers started in it claim work."""
    with ExitStack() as stack:
        for process in RUNNING:
            stack.enter_context(process.suspended())
        yield


MakeWorker = Callable[..., WorkerProcess]
