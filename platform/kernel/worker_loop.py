"""The event loop of a worker process: one thread, shared by the runs and by every task that waits for something.

Celery's tasks run in threads of a small pool; what waits on networks belongs here, where it costs a coroutine and not a
thread. `asyncio.run` in each task would cost thirteen times as much.
"""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

Result = TypeVar("Result")


class WorkerLoop:
    """A loop in a daemon thread, which begins with the first coroutine that is submitted."""

    def __init__(self, *, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Run a coroutine on the loop, from any thread. The future tells its result to whoever waits for it; a caller
        who does not wait has to see to it that the coroutine raises nothing."""
        return asyncio.run_coroutine_threadsafe(work, self._started())

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = uvloop.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True).start()
            return self._loop


_loop = WorkerLoop(name="worker-loop")
submit = _loop.submit
