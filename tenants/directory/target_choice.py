"""Choice among the targets of a model that have the same priority, by affinity, load and weight.

Requests with the same key go to the same target, so that they find their prefix in its prompt cache. With weighted
rendezvous hashing, only keys of a target that leaves move, and keys move only to a target that joins. While a target
has much more than its share of the requests in flight, they go to the next one (consistent hashing with bounded loads,
Mirrokni, Thorup and Zadimoghaddam 2018). Requests without a key go to the better one of two random targets (power of
two choices, Mitzenmacher 2001).
"""

import random
from hashlib import blake2b
from itertools import groupby
from math import log

from tenants.directory.routes import Route
from tenants.directory.target_load import TargetLoads, target_loads

# Bits of a hash that a float can hold together with the half that is added to them.
_HASH_BITS = 52
# A target that has the prompt in its cache may have this many times its share of the requests in flight, and a few
# more. Servers work on a few requests at once without delay, and another target would read the whole prompt again.
_MOST_SHARES, _FREE_REQUESTS = 1.25, 4
# Expected durations that differ by a smaller factor count as equal. They vary with the lengths of the answers, and the
# target that is faster by chance would get all requests while there are few, whatever the weights are.
_SIMILAR = 1.25
_random = random.Random()  # noqa: S311


def with_affinity(
    route: Route, *, key: str, upstream_id: str = "", loads: TargetLoads = target_loads, dice: random.Random = _random
) -> Route:
    """Return the route with its targets in the order in which a request tries them.

    The order within a group depends on the key, the weights and the requests in flight. Without a key, it is random,
    except that the better one of the first two targets comes first. A target at the upstream `upstream_id`, which has
    the context of the request in its cache, comes first in its group unless it has too many requests in flight.
    """
    if not route.others:
        return route
    ordered: list[Route] = []
    for _, members in groupby(route.targets, key=lambda target: target.group):
        group = list(members)
        if len(group) > 1:
            if key:
                group.sort(key=lambda target: -_score(target, key))
            else:
                # Each target is drawn by weight from those that are left.
                group.sort(key=lambda target: dice.expovariate(target.weight))
                _put_better_first(group, loads)
            group.sort(key=lambda target: target.upstream.id != upstream_id)
            if key or group[0].upstream.id == upstream_id:
                _put_overloaded_last(group, loads)
        ordered += group
    return Route.through(ordered)


def _score(target: Route, key: str) -> float:
    name = "\n".join((target.upstream.id, target.upstream_model, key))
    digest = blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()
    # In the open interval from 0 to 1. The target with the highest score is chosen in proportion to its weight.
    share = ((int.from_bytes(digest) >> (64 - _HASH_BITS)) + 0.5) / 2.0**_HASH_BITS
    return -target.weight / log(share)


def _put_better_first(group: list[Route], loads: TargetLoads) -> None:
    """Exchange the first two targets if the second one is faster, or else as fast with fewer requests in flight."""
    first, second = loads.expected_seconds(group)[:2]
    if first <= second * _SIMILAR:
        if second > first * _SIMILAR:
            return
        first, second = (loads.in_flight(target) / target.weight for target in group[:2])
    if second < first:
        group[:2] = group[1], group[0]


def _put_overloaded_last(group: list[Route], loads: TargetLoads) -> None:
    """Put the targets last that have much more than their share of the requests in flight, including this one."""
    in_flight = [loads.in_flight(target) for target in group]
    requests, weights = sum(in_flight) + 1, sum(target.weight for target in group)
    most = [_MOST_SHARES * requests * target.weight / weights + _FREE_REQUESTS for target in group]
    order = sorted(range(len(group)), key=lambda place: in_flight[place] >= most[place])
    group[:] = [group[place] for place in order]
