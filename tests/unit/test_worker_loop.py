"""The worker's loop: one thread for every coroutine, whoever submits it."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernel.worker_loop import WorkerLoop


async def thread() -> int:
    """The thread that runs this."""
    return threading.get_ident()


def test_whatever_is_submitted_runs_in_one_thread() -> None:
    loop = WorkerLoop(name="test")
    with ThreadPoolExecutor(8) as pool:
        idents = set(pool.map(lambda _: loop.submit(thread()).result(5), range(32)))
    assert len(idents) == 1
    assert idents != {threading.get_ident()}


def test_coroutines_wait_beside_each_other() -> None:
    loop, met = WorkerLoop(name="test"), asyncio.Event()

    async def meet() -> bool:
        met.set()
        return True

    waiting = loop.submit(met.wait())
    assert loop.submit(meet()).result(5)
    assert waiting.result(5)


def test_an_error_is_told_to_whoever_waits() -> None:
    async def fail() -> None:
        message = "no"
        raise ValueError(message)

    with pytest.raises(ValueError, match="no"):
        WorkerLoop(name="test").submit(fail()).result(5)
