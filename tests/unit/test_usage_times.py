"""The time of usage, which determines the budget period in which it counts."""

from datetime import timedelta

from core.clock import shared_now
from limits.values import Grant

_DAY = timedelta(days=1)


def _grant() -> Grant:
    return Grant(id="call_1", team_id="team_1", key_id="key_1", at=shared_now() - timedelta(minutes=1))


def test_usage_recorded_by_a_fast_clock_counts_now() -> None:
    grant = _grant()
    before = shared_now()
    assert before <= grant.occurred(shared_now() + _DAY) <= shared_now()


def test_usage_recorded_by_a_slow_clock_counts_at_its_reservation() -> None:
    grant = _grant()
    assert grant.occurred(shared_now() - _DAY) == grant.at


def test_usage_recorded_by_a_correct_clock_keeps_its_time() -> None:
    at = shared_now() - timedelta(seconds=30)
    assert _grant().occurred(at) == at
