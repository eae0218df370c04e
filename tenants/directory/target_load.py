"""Load of the targets of models with several targets, as this process observes it.

These are the requests in flight and the durations of recent answers. A duration ends with the answer: servers send
their status line when they accept a request, with the first token or with the whole answer, so that the times until
answers begin cannot be compared.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log

from tenants.directory.routes import Route

# Share of the newest answer in the means.
_NEWEST = 0.05
# In seconds. Without new answers, a duration loses half of its effect, so that a target that was slow is tried again.
_HALF_LIFE = 60.0
# In seconds. Zero has no logarithm.
_SHORTEST = 0.001
# Added to numbers of requests before they are compared: each process sees only a part of them, which fluctuates.
_DAMPING = 4
_MAX_TARGETS = 10_000


@dataclass(slots=True)
class _Load:
    """The load of a target.

    `log_seconds` is the mean of the logarithms of durations, which a few long answers do not dominate, and `usual` the
    mean number of other requests in flight at the ends of these answers. Both are weighted exponentially.
    """

    in_flight: int = 0
    answers: int = 0
    log_seconds: float = 0.0
    usual: float = 0.0
    ended_at: float = 0.0


class TargetLoads:
    """Requests in flight and durations by upstream and its model. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._loads: OrderedDict[tuple[str, str], _Load] = OrderedDict()

    def begin(self, target: Route) -> float:
        """Count a request as in flight. Return its time, which `end` needs."""
        key = _key(target)
        self._loads.setdefault(key, _Load()).in_flight += 1
        self._loads.move_to_end(key)
        if len(self._loads) > _MAX_TARGETS:
            self._loads.popitem(last=False)
        return self._clock()

    def end(self, target: Route, began: float, *, is_complete: bool) -> None:
        """Count a request no longer. The duration of a complete answer is recorded."""
        load = self._loads.get(_key(target))
        if load is None:
            return
        # The entry may be newer than the request, if it was evicted meanwhile.
        load.in_flight = max(0, load.in_flight - 1)
        if not is_complete:
            return
        load.ended_at = self._clock()
        load.answers += 1
        share = max(_NEWEST, 1 / load.answers)
        load.log_seconds += (log(max(_SHORTEST, load.ended_at - began)) - load.log_seconds) * share
        load.usual += (load.in_flight - load.usual) * share

    def forget_durations(self, target: Route) -> None:
        """Forget the durations of a target that has failed: failures may be faster than answers."""
        if (load := self._loads.get(_key(target))) is not None:
            load.answers = 0

    def all_in_flight(self) -> dict[tuple[str, str], int]:
        """Return the numbers of requests in flight by upstream id and its model, without those that have none."""
        return {key: load.in_flight for key, load in self._loads.items() if load.in_flight}

    def in_flight(self, target: Route) -> int:
        """Return the number of requests in flight."""
        load = self._loads.get(_key(target))
        return 0 if load is None else load.in_flight

    def expected_seconds(self, targets: Sequence[Route]) -> list[float]:
        """Return the durations to expect of a further request to each target, in proportion to each other.

        Until a target has more requests in flight than usual, an answer is expected to take as long as recent ones,
        and then longer in proportion: a server works on many requests at once before they wait. A target without
        recent answers counts with the mean of the others.
        """
        at = self._clock()
        loads = [self._loads.get(_key(target)) for target in targets]
        known = [load if load is not None and load.answers else None for load in loads]
        # The effect of each duration, from 0 to 1.
        trusts = [0.0 if load is None else 0.5 ** ((at - load.ended_at) / _HALF_LIFE) for load in known]
        logs = [0.0 if load is None else load.log_seconds for load in known]
        total, weighted = sum(trusts), sum(trust * mean for trust, mean in zip(trusts, logs, strict=True))
        expected = []
        for load, trust, mean in zip(known, trusts, logs, strict=True):
            others = total - trust
            of_others = (weighted - trust * mean) / others if others > 0 else mean
            crowding = 1.0 if load is None else max(1.0, (load.in_flight + _DAMPING) / (load.usual + _DAMPING))
            expected.append(exp(trust * mean + (1 - trust) * of_others) * crowding)
        return expected


def _key(target: Route) -> tuple[str, str]:
    return target.upstream.id, target.upstream_model


target_loads = TargetLoads()
"""The loads of this process."""
