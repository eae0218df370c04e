"""Detection of dead processes: those whose connection was there and has been missing several times."""

from datetime import UTC, datetime, timedelta
from time import monotonic

from kernel import clock
from kernel.presence import Watch


def test_a_process_that_stays_away_is_dead_once() -> None:
    watch = Watch()
    watch.note(["one", "two"])
    assert [watch.note(["one"]) for _ in range(4)] == [[], [], ["two"], []]


def test_a_process_that_reconnects_in_time_lives() -> None:
    watch = Watch()
    watch.note(["one", "two"])
    assert [watch.note(present) for present in (["one"], ["one"], ["one", "two"], ["one"], ["one"])] == [[]] * 5


def test_a_process_that_was_never_present_is_not_dead() -> None:
    """Behind a pooler it cannot be seen."""
    assert [Watch().note(["one"]) for _ in range(4)] == [[]] * 4


def test_the_shared_clock_is_that_of_the_database() -> None:
    before = clock.shared_now()
    try:
        clock.set_shared(datetime(2020, 1, 1, tzinfo=UTC), at=monotonic())
        assert timedelta(0) <= clock.shared_now() - datetime(2020, 1, 1, tzinfo=UTC) < timedelta(minutes=1)
    finally:
        clock.set_shared(before, at=monotonic())
