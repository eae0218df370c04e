"""Large work in a thread leaves the interpreter to the event loop."""

import gc
import time
from collections.abc import Iterator

import pytest

from core.json.large_work import in_thread, pause, short_turns


@pytest.fixture
def usual_thresholds() -> Iterator[None]:
    """The settings of a web process."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 50, 50)
    yield
    gc.set_threshold(*before)


async def test_a_pause_is_as_long_as_the_work_before_it() -> None:
    def work() -> tuple[float, float]:
        began = time.perf_counter()
        while time.perf_counter() < began + 0.005:
            pass
        worked = time.perf_counter()
        pause()
        return worked - began, time.perf_counter() - worked

    worked, paused = await in_thread(work)
    assert paused >= min(worked, 0.015)


@pytest.mark.usefixtures("usual_thresholds")
async def test_garbage_of_large_work_is_collected_in_small_steps() -> None:
    with short_turns():
        assert await in_thread(gc.get_threshold) == (5_000, 500, 50)
    assert gc.get_threshold() == (50_000, 50, 50)
