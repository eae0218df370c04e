"""Flush times of the event log: shared by all runs, and never too late."""

import pytest

from responses.runs.event_log import FOLLOWED_FLUSH_SECONDS, _flush_at


@pytest.mark.parametrize(("longest", "ticks"), [(FOLLOWED_FLUSH_SECONDS, 2), (10, 40)])
def test_runs_with_nearby_output_are_flushed_together(longest: float, ticks: int) -> None:
    tick = longest / ticks
    assert len({_flush_at(1000 + step / 1000 * tick, longest, ticks=ticks) for step in range(1000)}) <= 2


@pytest.mark.parametrize(("longest", "ticks"), [(FOLLOWED_FLUSH_SECONDS, 2), (10, 40)])
def test_no_run_waits_longer_than_the_maximum_delay(longest: float, ticks: int) -> None:
    times = [step * longest / 333 for step in range(1000)]
    waits = [_flush_at(at, longest, ticks=ticks) - at for at in times]
    assert min(waits) > 0
    assert max(waits) <= longest * 1.000001
    # Also the first run after a tick waits for most of the time.
    assert min(waits) >= longest * (1 - 1 / ticks) * 0.999999
