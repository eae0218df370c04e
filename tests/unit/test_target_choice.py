"""The choice among targets of the same priority: by weight, load, and the same for the same key."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tenants.directory import Route, TargetLoads, UpstreamEndpoint, with_affinity
from tests.support.moved_clock import MovedClock

KEYS = [f"key {number}" for number in range(4000)]


def target(number: int, *, weight: int = 1, group: int = 0) -> Route:
    """Return a target at an upstream with this number."""
    upstream = UpstreamEndpoint(id=f"upst_{number}", base_url=f"http://127.0.0.1:{number}/v1", api_key="")
    return Route(model="m", upstream_model="m", upstream=upstream, weight=weight, group=group)


@pytest.fixture
def clock() -> MovedClock:
    """A clock for `loads`."""
    return MovedClock()


@pytest.fixture
def loads(clock: MovedClock) -> TargetLoads:
    """Loads without any requests."""
    return TargetLoads(clock)


def firsts(targets: Sequence[Route]) -> list[str]:
    """Return the upstream that each key is sent to first."""
    return [with_affinity(Route.through(targets), key=key).upstream.id for key in KEYS]


def share(targets: Sequence[Route], loads: TargetLoads, number: int) -> float:
    """Return the share of requests without a key that the target with this number gets."""
    route = Route.through(targets)
    return sum(with_affinity(route, key="", loads=loads).upstream.id == f"upst_{number}" for _ in KEYS) / len(KEYS)


def send(loads: TargetLoads, target: Route, *, requests: int) -> None:
    """Add requests in flight."""
    for _ in range(requests):
        loads.begin(target)


def answer(loads: TargetLoads, clock: MovedClock, target: Route, *, seconds: float) -> None:
    """Record an answer that took this long."""
    began = loads.begin(target)
    clock.seconds += seconds
    loads.end(target, began, is_complete=True)


def test_requests_are_distributed_by_weight() -> None:
    counts = Counter(firsts([target(1), target(2, weight=3)]))
    assert counts["upst_2"] / len(KEYS) == pytest.approx(0.75, abs=0.03)


def test_requests_without_a_key_are_distributed_at_random() -> None:
    route = Route.through([target(1), target(2)])
    counts = Counter(with_affinity(route, key="").upstream.id for _ in KEYS)
    assert counts["upst_1"] / len(KEYS) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(("before", "after"), [(8, 9), (8, 7)], ids=["joins", "leaves"])
def test_few_keys_move_when_a_target_joins_or_leaves(before: int, after: int) -> None:
    old, new = (firsts([target(number) for number in range(count)]) for count in (before, after))
    assert sum(a != b for a, b in zip(old, new, strict=True)) / len(KEYS) < 0.15


def test_a_key_keeps_its_target_and_its_substitute() -> None:
    route = Route.through([target(number) for number in range(8)])
    orders = {tuple(t.upstream.id for t in with_affinity(route, key="a").targets) for _ in range(3)}
    assert len(orders) == 1


def test_groups_keep_their_order() -> None:
    route = Route.through([target(1), target(2), target(3, group=1), target(4, group=1)])
    for key in KEYS[:100]:
        assert [t.group for t in with_affinity(route, key=key).targets] == [0, 0, 1, 1]


def test_the_upstream_of_the_predecessor_comes_first_in_its_group() -> None:
    route = Route.through([target(1), target(2), target(3, group=1), target(4, group=1)])
    for key in KEYS[:20]:
        assert with_affinity(route, key=key, upstream_id="upst_2").upstream.id == "upst_2"
        assert with_affinity(route, key=key, upstream_id="upst_4").targets[2].upstream.id == "upst_4"


def test_a_single_target_is_returned_unchanged() -> None:
    only = replace(target(1), others=())
    assert with_affinity(only, key="a") is only


def test_a_request_without_a_key_goes_to_the_target_with_fewer_in_flight(loads: TargetLoads) -> None:
    busy, idle = target(1), target(2)
    send(loads, busy, requests=1)
    assert share([busy, idle], loads, 2) == 1


def test_in_flight_requests_are_compared_by_weight(loads: TargetLoads) -> None:
    heavy, light = target(1, weight=3), target(2)
    send(loads, heavy, requests=2)
    send(loads, light, requests=1)
    assert share([heavy, light], loads, 1) == 1


def test_a_request_without_a_key_goes_to_the_faster_target(loads: TargetLoads, clock: MovedClock) -> None:
    fast, slow = target(1), target(2)
    answer(loads, clock, slow, seconds=3)
    answer(loads, clock, fast, seconds=1)
    # As many as it may have before its answers are expected to take longer.
    send(loads, fast, requests=3)
    assert share([fast, slow], loads, 1) == 1


def test_a_crowded_target_loses_requests_to_a_slower_one(loads: TargetLoads, clock: MovedClock) -> None:
    fast, slow = target(1), target(2)
    answer(loads, clock, slow, seconds=3)
    answer(loads, clock, fast, seconds=1)
    send(loads, fast, requests=20)
    assert share([fast, slow], loads, 2) == 1


def test_targets_of_similar_speed_share_requests_by_weight(loads: TargetLoads, clock: MovedClock) -> None:
    heavy, light = target(1, weight=3), target(2)
    answer(loads, clock, heavy, seconds=1.1)
    answer(loads, clock, light, seconds=1.0)
    assert share([heavy, light], loads, 1) == pytest.approx(0.75, abs=0.03)


def test_the_worst_of_three_targets_gets_no_requests(loads: TargetLoads) -> None:
    targets = [target(number) for number in range(3)]
    send(loads, targets[0], requests=5)
    assert share(targets, loads, 0) == 0
    # The better one of two targets, and not the best one of all.
    send(loads, targets[1], requests=2)
    assert share(targets, loads, 1) == pytest.approx(1 / 3, abs=0.03)


def spill(loads: TargetLoads, targets: Sequence[Route], *, key: str) -> int:
    """Send requests with the same key until one goes to the key's second target. Return how many did not."""
    route = Route.through(targets)
    first, second, *_ = with_affinity(route, key=key, loads=loads).targets
    sent = 0
    while (best := with_affinity(route, key=key, loads=loads)).upstream == first.upstream:
        loads.begin(best)
        sent += 1
    assert best.upstream == second.upstream
    return sent


def test_a_key_moves_on_while_its_target_has_much_more_than_its_share(loads: TargetLoads) -> None:
    targets = [target(number) for number in range(4)]
    # At most 4 and 1.25 quarters of all requests, including the next one: 6.5 after 7.
    assert spill(loads, targets, key="a") == 7


def test_a_key_keeps_its_target_while_all_targets_are_busy(loads: TargetLoads) -> None:
    targets = [target(number) for number in range(4)]
    for busy in targets:
        send(loads, busy, requests=100)
    # 142.75 after 143, of 444.
    assert spill(loads, targets, key="a") == 43


def test_a_key_returns_to_its_target(loads: TargetLoads) -> None:
    targets = [target(number) for number in range(4)]
    route = Route.through(targets)
    pinned = with_affinity(route, key="a", loads=loads)
    began = [loads.begin(pinned) for _ in range(10)]
    assert with_affinity(route, key="a", loads=loads).upstream != pinned.upstream
    for moment in began:
        loads.end(pinned, moment, is_complete=True)
    assert with_affinity(route, key="a", loads=loads).upstream == pinned.upstream


def test_a_key_ignores_the_speed_of_its_target(loads: TargetLoads, clock: MovedClock) -> None:
    targets = [target(1), target(2)]
    before = [with_affinity(Route.through(targets), key=key, loads=loads).upstream.id for key in KEYS[:100]]
    answer(loads, clock, targets[0], seconds=10)
    answer(loads, clock, targets[1], seconds=1)
    assert [with_affinity(Route.through(targets), key=key, loads=loads).upstream.id for key in KEYS[:100]] == before


def test_a_chain_moves_on_while_its_target_has_much_more_than_its_share(loads: TargetLoads) -> None:
    first, second = target(1), target(2)
    route = Route.through([first, second])
    send(loads, first, requests=12)
    # At most 4 and 1.25 halves of all requests, including the next one: 12.1 after 12, and 12.75 after 13.
    assert with_affinity(route, key="", upstream_id="upst_1", loads=loads).upstream.id == "upst_1"
    send(loads, first, requests=1)
    assert with_affinity(route, key="", upstream_id="upst_1", loads=loads).upstream.id == "upst_2"
