"""Periods of time zones for usage and budgets."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest

from core import periods
from responses.rollups.cells import is_stored_edge


@pytest.mark.slow
def test_the_sums_can_be_divided_at_each_midnight_of_every_time_zone() -> None:
    days = [date(2024, 1, 1) + timedelta(days=9 * number) for number in range(16 * 41)]
    for zone in map(ZoneInfo, available_timezones()):
        assert all(is_stored_edge(periods.start_of_day(day, zone)) for day in days), zone.key


@pytest.mark.parametrize(
    ("period", "zone", "hours"),
    [
        ("day", "Europe/Berlin", {23, 24, 25}),
        ("day", "Australia/Lord_Howe", {23.5, 24, 24.5}),
        # Clocks change at midnight.
        ("day", "America/Havana", {23, 24, 25}),
        ("day", "America/Santiago", {23, 24, 25}),
        ("day", "Asia/Beirut", {23, 24, 25}),
        ("week", "America/St_Johns", {167, 168, 169}),
        ("month", "Asia/Kathmandu", {28 * 24, 30 * 24, 31 * 24}),
        ("hour", "Asia/Kolkata", {1}),
    ],
)
def test_periods_follow_each_other_without_gaps(period: str, zone: str, hours: set[float]) -> None:
    local, since = ZoneInfo(zone), datetime(2026, 1, 1, 12, 34, 56, tzinfo=UTC)
    edges = periods.edges(since, since + timedelta(days=365), period, local)
    assert edges[0] <= since < edges[1]
    assert {(end - start) / timedelta(hours=1) for start, end in pairwise(edges)} == hours
    for start, end in pairwise(edges):
        for moment in (start, start + (end - start) / 2, end - timedelta(microseconds=1)):
            assert periods.start_of(moment, period, local) == start
