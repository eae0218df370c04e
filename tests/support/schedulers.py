"""The scheduler of periodic tasks as a process, as in production."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support import preloaded

_ACTIVE = "this scheduler is active"
_STANDS_BY = "another scheduler is active; this one stands by"


class Scheduler:
    """A running `manage.py beat`."""

    def __init__(self, **variables: str) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        environment = {**os.environ, **variables}
        self.process = preloaded.start(["beat"], environment=environment, output=self._output.fileno())

    @property
    def output(self) -> str:
        """Return its output so far."""
        return os.pread(self._output.fileno(), 1_000_000, 0).decode()

    @property
    def is_active(self) -> bool:
        """True if it sends tasks."""
        output = self.output
        return output.rfind(_ACTIVE) > output.rfind(_STANDS_BY)

    @property
    def stands_by(self) -> bool:
        """True if another one sends tasks."""
        output = self.output
        return output.rfind(_STANDS_BY) > output.rfind(_ACTIVE)


@contextmanager
def running_scheduler(**variables: str) -> Iterator[Scheduler]:
    """Run a scheduler with additional environment variables until the end of the block."""
    scheduler = Scheduler(**variables)
    try:
        yield scheduler
    finally:
        scheduler.process.kill()
        scheduler.process.wait()
