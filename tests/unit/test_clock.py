"""The shared clock of the processes, which is the database's, and steps of that clock."""

from datetime import UTC, datetime, timedelta

import pytest

from core.clock import SharedClock, uptime

_START = datetime(2020, 1, 1, tzinfo=UTC)
_HOUR = timedelta(hours=1)
_MOMENT = timedelta(seconds=1)


def _set_to(*moments: datetime) -> SharedClock:
    clock = SharedClock()
    for moment in moments:
        clock.set(moment, at=uptime())
    return clock


def test_the_shared_clock_is_the_clock_of_the_database() -> None:
    assert timedelta(0) <= _set_to(_START).now() - _START < timedelta(minutes=1)


def test_the_first_known_time_is_not_a_step() -> None:
    assert _set_to(_START).set_forward(within=30) == timedelta(0)


@pytest.mark.parametrize(
    ("moments", "forward"),
    [
        ([_START, _START + _HOUR], _HOUR),
        ([_START, _START + _HOUR, _START + 2 * _HOUR], 2 * _HOUR),
        ([_START, _START + _HOUR, _START], timedelta(0)),
        ([_START, _START - _HOUR], timedelta(0)),
        ([_START, _START + _MOMENT], timedelta(0)),
    ],
    ids=["forward", "twice", "there and back", "back", "slow answer"],
)
def test_a_step_forward_is_detected(moments: list[datetime], forward: timedelta) -> None:
    assert abs(_set_to(*moments).set_forward(within=30) - forward) < _MOMENT


def test_an_old_step_is_ignored() -> None:
    assert _set_to(_START, _START + _HOUR).set_forward(within=0) == timedelta(0)


def test_the_shared_clock_is_steady_despite_varying_latency() -> None:
    clock = _set_to(_START)
    known = clock.now()
    clock.set(_START - timedelta(milliseconds=300), at=uptime(), error=0.4)
    assert clock.now() >= known
    clock.set(_START - timedelta(milliseconds=300), at=uptime(), error=0.2)
    assert clock.now() < known
