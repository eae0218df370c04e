"""Limits of targets as this process alone observes them. They decide while Redis cannot be reached."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from limits.targets import Admission
from tenants.directory import TargetLimits

_MINUTE = 60.0
_MAX_TARGETS = 10_000


@dataclass(slots=True)
class _Bucket:
    """A leaky bucket: a minute drains as much as the limit allows in a minute."""

    level: float = 0.0
    at: float = 0.0

    def drain(self, limit: int, at: float) -> None:
        self.level = max(0.0, self.level - (at - self.at) * limit / _MINUTE)
        self.at = at

    def seconds_until(self, amount: int, limit: int) -> float:
        # An estimate that is larger than the limit takes all of it, as in the script.
        return max(0.0, self.level + min(amount, limit) - limit) * _MINUTE / limit


@dataclass(slots=True)
class _Use:
    requests: _Bucket = field(default_factory=_Bucket)
    tokens: _Bucket = field(default_factory=_Bucket)
    leases: set[str] = field(default_factory=set)


class LocalLimits:
    """The use of limits by this process. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._uses: OrderedDict[int, _Use] = OrderedDict()

    def reserve(self, limits: TargetLimits, *, lease_id: str, tokens: int) -> Admission:
        """Take a request, its tokens and a lease, or nothing if one of the limits has no room."""
        use, waits = self._current(limits), dict[str, float]()
        if limits.requests_per_minute is not None:
            waits["requests_per_minute"] = use.requests.seconds_until(1, limits.requests_per_minute)
        if limits.tokens_per_minute is not None:
            waits["tokens_per_minute"] = use.tokens.seconds_until(tokens, limits.tokens_per_minute)
        name = max(waits, key=lambda limit: waits[limit], default="")
        if name and waits[name] > 0:
            return Admission(refused_by=name, wait_seconds=waits[name])
        is_new = lease_id not in use.leases
        if limits.concurrent_requests is not None and is_new and len(use.leases) >= limits.concurrent_requests:
            return Admission(refused_by="concurrent_requests")
        self.note(limits, lease_id=lease_id, tokens=tokens)
        return Admission(tokens=min(tokens, limits.tokens_per_minute or 0))

    def note(self, limits: TargetLimits, *, lease_id: str, tokens: int) -> None:
        """Count a request that was admitted."""
        use = self._current(limits)
        use.requests.level += 1
        use.tokens.level += min(tokens, limits.tokens_per_minute or 0)
        use.leases.add(lease_id)

    def settle(self, limits: TargetLimits, *, taken: int, used: int) -> None:
        """Replace the tokens that were taken by those that were used."""
        bucket = self._current(limits).tokens
        bucket.level = max(0.0, bucket.level + used - taken)

    def release(self, limits: TargetLimits, lease_id: str) -> None:
        """Release a lease."""
        if (use := self._uses.get(limits.target_id)) is not None:
            use.leases.discard(lease_id)

    def _current(self, limits: TargetLimits) -> _Use:
        use = self._uses.get(limits.target_id)
        if use is None:
            use = self._uses[limits.target_id] = _Use()
            if len(self._uses) > _MAX_TARGETS:
                self._uses.popitem(last=False)
        at = self._clock()
        use.requests.drain(limits.requests_per_minute or 0, at)
        use.tokens.drain(limits.tokens_per_minute or 0, at)
        return use
