"""When a run's log is written: at moments that all runs share, and never too late."""

from responses.runs.recorder import FLUSH_SECONDS, _flush_at


def test_runs_that_speak_a_little_apart_are_written_together() -> None:
    assert len({_flush_at(1000 + step / 1000, FLUSH_SECONDS) for step in range(125)}) <= 2


def test_nobody_waits_longer_than_it_may_be() -> None:
    waits = [_flush_at(step / 1000, FLUSH_SECONDS) - step / 1000 for step in range(1000)]
    assert min(waits) > 0
    assert max(waits) <= FLUSH_SECONDS
