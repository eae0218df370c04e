"""Comparison of the results with the failover policy, and the report."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.failover.cases import APIS, EMBEDDINGS, Cell, Expected, Outcome
from benchmarks.failover.clients import Result
from benchmarks.failover.upstream import Attempt

MOST_PROBES_PER_SECOND = 0.25
"""Attempts at a dead target per second. The pause between two of them grows to 20 seconds."""
RECOVERY_SECONDS = 25.0
"""Seconds after which a target that has returned is used again: the longest pause, and some time for a request."""
_SETTLING_SECONDS = 10.0
_SHOWN = 2
# Anthropic's errors have no codes.
_REJECTED = "invalid_request_error"


@dataclass(frozen=True, kw_only=True)
class Outage:
    """The time in which the primary was dead, in monotonic seconds."""

    began: float
    ended: float

    @property
    def settled(self) -> float:
        """Return the time from which only probes may reach the primary: every process knows that it is dead."""
        return self.began + min(_SETTLING_SECONDS, (self.ended - self.began) / 3)


@dataclass(kw_only=True)
class Verified:
    """The results of a cell with the most attempts per request by target, and the faults by kind."""

    cell: Cell
    results: Sequence[Result]
    attempts: Counter[str] = field(default_factory=Counter)
    faults: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, faults: Iterable[str]) -> None:
        """Add faults of a kind."""
        if added := list(faults):
            self.faults.setdefault(kind, []).extend(added)

    def text(self) -> str:
        """Return outcomes, attempts at the primary and the replica, and the longest time."""
        outcomes = Counter(
            f"{result.outcome} ({result.reply.error})" if result.outcome is Outcome.ERROR else result.outcome.value
            for result in self.results
        )
        counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
        primary, replica = self.attempts["primary"], self.attempts["replica"]
        slowest = max((result.seconds for result in self.results), default=0.0)
        return f"{counts}; at most {primary} + {replica} attempts, {slowest:.1f} s"


def verified(cell: Cell, results: Sequence[Result], attempts: Iterable[Attempt]) -> Verified:
    """Compare the results of a cell with the policy."""
    times = defaultdict[tuple[str, str], list[float]](list)
    for attempt in attempts:
        if attempt.cell == cell.name:
            times[attempt.run, attempt.target].append(attempt.began)
    found = Verified(cell=cell, results=results)
    for result in results:
        found.add("outcome", _result_faults(result))
        for target, most in (("primary", cell.expected.primary), ("replica", cell.expected.replica)):
            count = len(times[result.name, target])
            found.attempts[target] = max(found.attempts[target], count)
            if count > most:
                found.add("attempts", [f"{result.name}: {count} at the {target}, at most {most} are allowed"])
        primary, replica = times[result.name, "primary"], times[result.name, "replica"]
        wait = min(replica) - min(primary) if primary and replica else 0.0
        if cell.expected.wait is not None and wait > cell.expected.wait:
            late = f"the replica was asked after {wait:.1f} s, at most {cell.expected.wait:g} are allowed"
            found.add("wait", [f"{result.name}: {late}"])
    return found


def _result_faults(result: Result) -> Iterator[str]:
    expected, reply = result.cell.expected, result.reply
    # The breaker may have opened: then the request goes to the replica alone.
    is_better = result.outcome is Outcome.WHOLE and expected.outcome is Outcome.FAILED
    if result.outcome is not expected.outcome and not is_better:
        reported = f", error {reply.error!r}" if reply.error else ""
        yield (
            f"{result.name}: {result.outcome} instead of {expected.outcome} after {result.seconds:.1f} s"
            f"{reported}: {reply.text[-60:]!r}"
        )
    elif (code := _code(expected, result.cell.api)) and reply.error != code:
        yield f"{result.name}: error {reply.error!r} instead of {code!r}"


def _code(expected: Expected, api: str) -> str:
    return _REJECTED if expected.code and api == "messages" else expected.code


def outage_faults(outage: Outage, attempts: Sequence[Attempt]) -> Iterator[str]:
    """Yield the faults of a cell whose primary was dead for some time: too many probes, or no return."""
    at_primary = [attempt.began for attempt in attempts if attempt.target == "primary"]
    probes = [began for began in at_primary if outage.settled <= began < outage.ended]
    most = 1 + int(MOST_PROBES_PER_SECOND * (outage.ended - outage.settled))
    if len(probes) > most:
        seconds = outage.ended - outage.settled
        yield f"{len(probes)} attempts at the dead primary in {seconds:.0f} s, at most {most} are allowed"
    back = min((began for began in at_primary if began >= outage.ended), default=None)
    if back is None or back > outage.ended + RECOVERY_SECONDS:
        yield f"the primary was not used within {RECOVERY_SECONDS:.0f} s after its return"


def report(found: Sequence[Verified]) -> Iterator[str]:
    """Yield a line per case and API, and the first faults of each kind."""
    for name in dict.fromkeys(cell.cell.case.name for cell in found):
        for api in (*APIS, EMBEDDINGS):
            pair = [cell for cell in found if (cell.cell.case.name, cell.cell.api) == (name, api)]
            if not pair:
                continue
            texts = [f"{_mode(cell)}: {cell.text()}" for cell in pair]
            is_missed = any(cell.faults for cell in pair)
            yield f"{'MISSED' if is_missed else 'holds':7} {name:17}{api:10} {' | '.join(texts)}"
            for cell in pair:
                for kind, faults in cell.faults.items():
                    yield from (f"            {_mode(cell)}, {kind}: {fault}" for fault in faults[:_SHOWN])
                    if len(faults) > _SHOWN:
                        yield f"            {_mode(cell)}, {kind}: … and {len(faults) - _SHOWN} more"


def _mode(found: Verified) -> str:
    return "stream" if found.cell.streamed else "JSON"
