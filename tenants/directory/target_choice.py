"""Choice among the targets of a model that have the same priority, by weight and affinity.

Requests with the same key go to the same target, so that they find their prefix in its prompt cache. With weighted
rendezvous hashing, only keys of a target that leaves move, and keys move only to a target that joins.
"""

import random
from hashlib import blake2b
from itertools import groupby
from math import log

from tenants.directory.routes import Route

_RANDOM_BITS = 64
# Bits of a hash that a float can hold together with the half that is added to them.
_HASH_BITS = 52


def with_affinity(route: Route, *, key: str, upstream_id: str = "") -> Route:
    """Return the route with its targets in the order in which a request tries them.

    The order within a group depends on the key and the weights. Without a key, it is random. A target at the upstream
    `upstream_id`, which has the context of the request in its cache, comes first in its group.
    """
    if not route.others:
        return route
    key = key or str(random.getrandbits(_RANDOM_BITS))
    ordered: list[Route] = []
    for _, group in groupby(route.targets, key=lambda target: target.group):
        ordered += sorted(group, key=lambda target: (target.upstream.id != upstream_id, -_score(target, key)))
    return Route.through(ordered)


def _score(target: Route, key: str) -> float:
    name = "\n".join((target.upstream.id, target.upstream_model, key))
    digest = blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()
    # In the open interval from 0 to 1. The target with the highest score is chosen in proportion to its weight.
    share = ((int.from_bytes(digest) >> (64 - _HASH_BITS)) + 0.5) / 2.0**_HASH_BITS
    return -target.weight / log(share)
