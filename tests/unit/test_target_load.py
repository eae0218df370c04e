"""The load of targets: requests in flight and the durations to expect."""

import pytest

from tenants.directory import Route, TargetLoads, UpstreamEndpoint
from tests.support.moved_clock import MovedClock


@pytest.fixture
def clock() -> MovedClock:
    """A clock for `loads`."""
    return MovedClock()


@pytest.fixture
def loads(clock: MovedClock) -> TargetLoads:
    """Loads without any requests."""
    return TargetLoads(clock)


def target(number: int) -> Route:
    """Return a target at an upstream with this number."""
    upstream = UpstreamEndpoint(id=f"upst_{number}", base_url="http://127.0.0.1:1/v1", api_key="")
    return Route(model="m", upstream_model="m", upstream=upstream)


FAST, SLOW, NEW = target(1), target(2), target(3)


def answer(loads: TargetLoads, clock: MovedClock, to: Route, seconds: float, *, is_complete: bool = True) -> None:
    """Record a request that ends after this time."""
    began = loads.begin(to)
    clock.seconds += seconds
    loads.end(to, began, is_complete=is_complete)


def test_requests_are_in_flight_until_they_end(loads: TargetLoads) -> None:
    began = [loads.begin(FAST) for _ in range(3)]
    loads.end(FAST, began[0], is_complete=True)
    loads.end(FAST, began[1], is_complete=False)
    assert (loads.in_flight(FAST), loads.in_flight(SLOW)) == (1, 0)


def test_a_target_without_answers_counts_with_the_mean_of_the_others(loads: TargetLoads, clock: MovedClock) -> None:
    answer(loads, clock, SLOW, 4)
    answer(loads, clock, FAST, 1)
    assert loads.expected_seconds([FAST, NEW, SLOW]) == pytest.approx([1, 2, 4], rel=0.1)


def test_targets_without_answers_are_equal(loads: TargetLoads) -> None:
    assert len(set(loads.expected_seconds([FAST, NEW, SLOW]))) == 1


def test_recent_answers_count_most(loads: TargetLoads, clock: MovedClock) -> None:
    for seconds in [*[4.0] * 100, *[1.0] * 100]:
        answer(loads, clock, FAST, seconds)
    assert loads.expected_seconds([FAST]) == pytest.approx([1], rel=0.05)


def test_a_long_answer_does_not_dominate(loads: TargetLoads, clock: MovedClock) -> None:
    for seconds in [*[1.0] * 20, 1000.0]:
        answer(loads, clock, FAST, seconds)
    assert loads.expected_seconds([FAST])[0] < 1.5


def test_an_incomplete_answer_is_not_recorded(loads: TargetLoads, clock: MovedClock) -> None:
    answer(loads, clock, FAST, 1)
    answer(loads, clock, SLOW, 4)
    answer(loads, clock, SLOW, 0.01, is_complete=False)
    assert loads.expected_seconds([FAST, SLOW]) == pytest.approx([1, 4], rel=0.1)


def test_a_slow_target_is_tried_again_after_a_while(loads: TargetLoads, clock: MovedClock) -> None:
    answer(loads, clock, SLOW, 60)
    clock.seconds += 900
    answer(loads, clock, FAST, 1)
    assert loads.expected_seconds([FAST, SLOW]) == pytest.approx([1, 1], rel=0.01)


def test_durations_are_forgotten(loads: TargetLoads, clock: MovedClock) -> None:
    answer(loads, clock, SLOW, 0.001)
    answer(loads, clock, FAST, 1)
    loads.forget_durations(SLOW)
    assert loads.expected_seconds([FAST, SLOW]) == pytest.approx([1, 1])
    answer(loads, clock, SLOW, 4)
    assert loads.expected_seconds([FAST, SLOW]) == pytest.approx([1, 4], rel=0.1)


def test_more_requests_than_usual_are_expected_to_take_longer(loads: TargetLoads, clock: MovedClock) -> None:
    began = [loads.begin(FAST) for _ in range(12)]
    clock.seconds += 1
    loads.end(FAST, began[0], is_complete=True)
    assert loads.expected_seconds([FAST]) == pytest.approx([1])
    for _ in range(15):
        loads.begin(FAST)
    # 26 in flight instead of 11, and 4 added to both.
    assert loads.expected_seconds([FAST]) == pytest.approx([2])


def test_few_requests_are_not_expected_to_be_faster(loads: TargetLoads, clock: MovedClock) -> None:
    began = [loads.begin(FAST) for _ in range(12)]
    clock.seconds += 1
    for moment in began:
        loads.end(FAST, moment, is_complete=True)
    assert loads.expected_seconds([FAST]) == pytest.approx([1])


def test_an_unused_target_is_evicted(loads: TargetLoads) -> None:
    began = loads.begin(FAST)
    for number in range(10, 10_010):
        loads.begin(target(number))
    assert loads.in_flight(FAST) == 0
    loads.end(FAST, began, is_complete=True)
    assert loads.in_flight(FAST) == 0
