"""Event loop of a worker: one thread for all coroutines."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from core.work.worker_loop import WorkerLoop


async def thread() -> int:
    """Return the current thread."""
    return threading.get_ident()


def test_all_coroutines_run_in_one_thread() -> None:
    loop = WorkerLoop(name="test")
    with ThreadPoolExecutor(8) as pool:
        idents = set(pool.map(lambda _: loop.submit(thread()).result(60), range(32)))
    assert len(idents) == 1
    assert idents != {threading.get_ident()}


def test_coroutines_wait_concurrently() -> None:
    loop, met = WorkerLoop(name="test"), asyncio.Event()

    async def meet() -> bool:
        met.set()
        return True

    waiting = loop.submit(met.wait())
    assert loop.submit(meet()).result(60)
    assert waiting.result(60)


def test_closing_cancels_unfinished_work_and_ends_the_thread() -> None:
    loop = WorkerLoop(name="closed by a test")
    loop.submit(thread()).result(60)
    unfinished = loop.submit(asyncio.sleep(60))
    loop.close()
    assert "closed by a test" not in {one.name for one in threading.enumerate()}
    assert unfinished.cancelled()


def test_an_error_is_raised_in_the_waiting_thread() -> None:
    async def fail() -> None:
        message = "no"
        raise ValueError(message)

    with pytest.raises(ValueError, match="no"):
        WorkerLoop(name="test").submit(fail()).result(60)
