"""The event loop of a worker process: one thread, shared by the runs and by every task that waits for a network.

Celery's tasks run in a small thread pool. Work that waits belongs on this loop, where it occupies a coroutine instead
of a thread. `asyncio.run` in each task would cost thirteen times as much.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

Result = TypeVar("Result")
_CLOSE_SECONDS = 1.0


class WorkerLoop:
    """An event loop in a daemon thread, started with the first submitted coroutine."""

    def __init__(self, *, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Run a coroutine on the loop; callable from any thread.

        Exceptions are only visible through the future: a caller that ignores it must pass a coroutine that handles its
        own errors.
        """
        return asyncio.run_coroutine_threadsafe(work, self._started())

    def _started(self) -> asyncio.AbstractEventLoop:
        # Started on first use: processes that only import the tasks need no loop.
        with self._lock:
            if self._loop is None:
                self._loop = uvloop.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            return self._loop

    def close(self) -> None:
        """Cancel all tasks and end the thread. For the end of the process."""
        # The loop runs compiled code, which crashes the process if it still runs while the interpreter is finalized.
        if self._loop is not None and self._thread is not None:
            concurrent.futures.wait([self.submit(_cancel_others())], timeout=_CLOSE_SECONDS)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CLOSE_SECONDS)


async def _cancel_others() -> None:
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.wait(others)


_loop = WorkerLoop(name="worker-loop")
submit = _loop.submit
close = _loop.close
