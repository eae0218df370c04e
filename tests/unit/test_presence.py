"""Detection of dead processes, whose presence connection was missing in several checks."""

from core.work.presence import Watch


def test_a_process_that_stays_disconnected_is_reported_dead_once() -> None:
    watch = Watch()
    watch.note(["one", "two"])
    assert [watch.note(["one"]) for _ in range(4)] == [[], [], ["two"], []]


def test_a_process_that_reconnects_in_time_is_alive() -> None:
    watch = Watch()
    watch.note(["one", "two"])
    assert [watch.note(present) for present in (["one"], ["one"], ["one", "two"], ["one"], ["one"])] == [[]] * 5


def test_a_process_that_was_never_connected_is_not_reported_dead() -> None:
    """Its connection cannot be seen behind a pooler."""
    assert [Watch().note(["one"]) for _ in range(4)] == [[]] * 4
