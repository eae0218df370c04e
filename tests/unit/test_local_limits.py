"""Limits of targets as one process observes them, which decide without Redis."""

import pytest

from providers.targets.local_limits import LocalLimits
from tenants.directory import TargetLimits
from tests.support.moved_clock import MovedClock


@pytest.fixture
def clock() -> MovedClock:
    """A clock for `local`."""
    return MovedClock()


@pytest.fixture
def local(clock: MovedClock) -> LocalLimits:
    """Limits without any requests."""
    return LocalLimits(clock)


def test_a_rate_has_room_again_as_time_passes(local: LocalLimits, clock: MovedClock) -> None:
    limits = TargetLimits(target_id=1, requests_per_minute=2)
    admissions = [local.reserve(limits, lease_id=f"lease_{number}", tokens=0) for number in range(3)]
    assert [admission.refused_by for admission in admissions] == ["", "", "requests_per_minute"]
    assert admissions[2].wait_seconds == pytest.approx(30.0)
    clock.seconds += 30.0
    assert not local.reserve(limits, lease_id="lease_3", tokens=0).refused_by
    assert local.reserve(limits, lease_id="lease_4", tokens=0).refused_by


def test_settled_tokens_replace_the_estimate(local: LocalLimits) -> None:
    limits = TargetLimits(target_id=1, tokens_per_minute=100)
    taken = local.reserve(limits, lease_id="lease_1", tokens=100).tokens
    assert local.reserve(limits, lease_id="lease_2", tokens=60).refused_by == "tokens_per_minute"
    local.settle(limits, taken=taken, used=40)
    assert not local.reserve(limits, lease_id="lease_2", tokens=60).refused_by


def test_an_estimate_above_the_limit_takes_all_of_it(local: LocalLimits) -> None:
    limits = TargetLimits(target_id=1, tokens_per_minute=10)
    assert local.reserve(limits, lease_id="lease_1", tokens=50).tokens == 10
    assert local.reserve(limits, lease_id="lease_2", tokens=1).wait_seconds == pytest.approx(6.0)


def test_a_released_lease_makes_room(local: LocalLimits) -> None:
    limits = TargetLimits(target_id=1, concurrent_requests=1)
    assert not local.reserve(limits, lease_id="lease_1", tokens=0).refused_by
    # A repeated request has its lease already.
    assert not local.reserve(limits, lease_id="lease_1", tokens=0).refused_by
    assert local.reserve(limits, lease_id="lease_2", tokens=0).refused_by == "concurrent_requests"
    local.release(limits, "lease_1")
    assert not local.reserve(limits, lease_id="lease_2", tokens=0).refused_by


def test_targets_do_not_share_their_limits(local: LocalLimits) -> None:
    first, second = (TargetLimits(target_id=number, requests_per_minute=1) for number in (1, 2))
    assert not local.reserve(first, lease_id="lease_1", tokens=0).refused_by
    assert not local.reserve(second, lease_id="lease_2", tokens=0).refused_by
