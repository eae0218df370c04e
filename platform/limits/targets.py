"""Limits of targets of models: requests and tokens per minute, and concurrent requests, of all processes together.

The script of the other limits makes the decisions. A concurrent request is a lease, which its process renews: if the
process dies, the lease expires.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from limits import script
from limits.plan import MINUTE
from tenants.directory import TargetLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Decision about a request to a target. A refused request has `refused_by`, the limit that was reached.

    `wait_seconds` is the time until a rate has room again; 0 if it is unknown. `tokens` were taken, at the time `at` in
    microseconds.
    """

    refused_by: str = ""
    wait_seconds: float = 0.0
    tokens: int = 0
    at: int = 0


async def reserve(limits: TargetLimits, *, lease_id: str, tokens: int) -> Admission:
    """Take a request, its tokens, and a lease, or nothing if one of the limits has no room. Raises `redis.RedisError`.

    With `tokens=0`, the tokens of the request were taken before.
    """
    rates = [
        ("requests_per_minute", limits.requests_per_minute, 1),
        ("tokens_per_minute", limits.tokens_per_minute, tokens),
    ]
    applying = [(name, limit, cost) for name, limit, cost in rates if limit is not None and cost]
    document: dict[str, Any] = {
        "op": "reserve",
        "id": lease_id,
        "stateful": False,
        "rates": [{"limit": limit, "period": MINUTE, "tick": 1, "cost": cost} for _, limit, cost in applying],
        "counts": [],
        "budgets": [],
        "want": 0,
        "least": 0,
    }
    keys = [_rate_key(limits, name) for name, *_ in applying]
    if limits.concurrent_requests is not None:
        document["lease"] = {**_lifetime(), "limit": limits.concurrent_requests}
        keys.append(_leases_key(limits))
    result, at, *rest = await script.arun(_scope(limits), keys, document)
    if result == "refused":
        kind, place, wait, *_ = rest
        name = applying[int(place) - 1][0] if kind == "rate" else "concurrent_requests"
        return Admission(refused_by=name, wait_seconds=int(wait) / 1_000_000)
    # After the epoch and the amount, each rate has three numbers, the first of which was taken.
    taken = dict(zip([name for name, *_ in applying], map(int, rest[2::3]), strict=True))
    return Admission(tokens=taken.get("tokens_per_minute", 0), at=int(at))


def settle_soon(limits: TargetLimits, admission: Admission, *, tokens: int) -> None:
    """Replace the tokens that were taken by those that were used, without waiting for the reply."""
    rate = {"limit": limits.tokens_per_minute, "period": MINUTE, "tick": 1, "taken": admission.tokens, "used": tokens}
    document = {"op": "settle", "stateful": False, "rates": [{**rate, "since": admission.at}]}
    script.send(_scope(limits), [_rate_key(limits, "tokens_per_minute")], document)


def release_soon(limits: TargetLimits, lease_id: str) -> None:
    """Release a lease, without waiting for the reply."""
    script.send(_scope(limits), [_leases_key(limits)], {"op": "release", "id": lease_id, "lease": _lifetime()})


def renew_soon(limits: TargetLimits, lease_ids: Sequence[str]) -> None:
    """Extend leases, without waiting for the reply."""
    script.send(_scope(limits), [_leases_key(limits)], {"op": "renew", "ids": [*lease_ids], "lease": _lifetime()})


def _lifetime() -> dict[str, int]:
    return {"lifetime": settings.LEASE_SECONDS * 1_000_000}


def _scope(limits: TargetLimits) -> str:
    return f"target:{limits.target_id}"


# The braces keep all keys of a target on one node of a cluster.
def _rate_key(limits: TargetLimits, name: str) -> str:
    return f"{{{_scope(limits)}}}:rate:{name}"


def _leases_key(limits: TargetLimits) -> str:
    return f"{{{_scope(limits)}}}:leases"
