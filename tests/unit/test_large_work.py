"""Large work in a thread leaves the interpreter to the event loop."""

import gc
import threading
import time
from collections.abc import Iterator

import orjson
import pytest

from core.json.large_work import Weight, in_thread, is_large, note, note_document, off_loop, pause, short_turns, weight


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


TEXT = "It was the best of times, it was the worst of times. "
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"input": "Hi"}, Weight.USUAL),
        ({"input": MESSAGES * 200}, Weight.USUAL),
        ({"input": MESSAGES * 2_500}, Weight.LARGE),
        ({"input": [{"role": "user", "content": TEXT * 4}] * 2_000}, Weight.LARGE),
        ({"input": TEXT * 1_000}, Weight.USUAL),
        ({"input": TEXT * 4_000}, Weight.LONG),
        ({"input": [{"role": "user", "content": TEXT * 20}] * 200}, Weight.LONG),
        ({"input": MESSAGES * 6_000}, Weight.LARGE),
        ({"input": [0] * 200_000}, Weight.LARGE),
        ({"input": TEXT * 20_000}, Weight.LARGE),
    ],
    ids=[
        "short",
        "messages",
        "2,500 messages",
        "2,000 longer messages",
        "54 KB of text",
        "text",
        "long messages",
        "many messages",
        "numbers",
        "long text",
    ],
)
async def test_the_weight_of_a_request_depends_on_its_size_and_structure(
    body: dict[str, object], expected: Weight
) -> None:
    note_document(orjson.dumps(body))
    assert weight() is expected


@pytest.mark.parametrize("noted", Weight)
async def test_only_work_on_large_requests_leaves_the_event_loop(noted: Weight) -> None:
    note(noted)
    is_in_thread = await off_loop(threading.current_thread) is not threading.current_thread()
    assert is_in_thread == is_large() == (noted is Weight.LARGE)
