"""The choice among targets of the same priority: by weight, and the same for the same key."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tenants.directory import Route, UpstreamEndpoint, with_affinity

KEYS = [f"key {number}" for number in range(4000)]


def target(number: int, *, weight: int = 1, group: int = 0) -> Route:
    """Return a target at an upstream with this number."""
    upstream = UpstreamEndpoint(id=f"upst_{number}", base_url=f"http://127.0.0.1:{number}/v1", api_key="")
    return Route(model="m", upstream_model="m", upstream=upstream, weight=weight, group=group)


def firsts(targets: Sequence[Route]) -> list[str]:
    """Return the upstream that each key is sent to first."""
    return [with_affinity(Route.through(targets), key=key).upstream.id for key in KEYS]


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
