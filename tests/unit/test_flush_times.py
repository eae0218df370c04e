"""Flush times of the event log: shared by all runs, and never too late."""

from responses.runs.recorder import FLUSH_SECONDS, _flush_at


def test_runs_with_nearby_output_are_flushed_together() -> None:
    assert len({_flush_at(1000 + step / 1000, FLUSH_SECONDS) for step in range(125)}) <= 2


def test_no_run_waits_longer_than_the_maximum_delay() -> None:
    waits = [_flush_at(step / 1000, FLUSH_SECONDS) - step / 1000 for step in range(1000)]
    assert min(waits) > 0
    assert max(waits) <= FLUSH_SECONDS
