"""State machine of a circuit breaker. The caller passes the time, in seconds of a clock that all processes share.

A closed breaker opens after some consecutive failures, or at once if the upstream rejects the platform's credentials or
its quota is exhausted. An open one lets no request through. After a pause it is half-open: one request probes the
target. Its failure opens the breaker for twice as long, and any success closes it.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from core.records import record
from providers.targets.breaker.reasons import Reason

MAX_FAILURES = 3
"""Consecutive failures that open a breaker."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 20.0
"""Seconds for which a breaker is open at first, and at most."""
QUOTA_PAUSE = 600.0
"""Seconds for which a breaker is open after the upstream has reported an exhausted quota."""
PROBE_SECONDS = LONGEST_PAUSE
"""Seconds after which another probe may begin if the last one has not ended: its process may have died."""

_LEAST_STEP = 1e-6


class State(StrEnum):
    """State of a circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@record
class Snapshot:
    """The state that processes share.

    `openings` is the number of times that the breaker has opened since it was closed; 0 if it is closed. `open_until`
    is the end of the pause. `changed_at` orders the changes of all processes.
    """

    openings: int = 0
    open_until: float = 0.0
    reason: Reason | None = None
    changed_at: float = 0.0

    def state(self, at: float) -> State:
        """Return the state at a time."""
        if not self.openings:
            return State.CLOSED
        return State.OPEN if at < self.open_until else State.HALF_OPEN


@dataclass(slots=True)
class Breaker:
    """Circuit breaker of a target as one process sees it. `is_probing`: a request of this process probes the target."""

    shared: Snapshot = field(default_factory=Snapshot)
    failures: int = 0
    is_probing: bool = False
    # No other probe may begin before.
    _probe_until: float = 0.0

    def state(self, at: float) -> State:
        """Return the state at a time."""
        return self.shared.state(at)

    def seconds_until_probe(self, at: float) -> float:
        """Return the seconds until a probe may begin; 0 if it may begin now, or if the breaker is closed."""
        return max(0.0, max(self.shared.open_until, self._probe_until) - at) if self.shared.openings else 0.0

    def lets_through(self, at: float) -> bool:
        """Return whether the caller of a successful `begin_probe` may send its request."""
        state = self.state(at)
        return state is State.CLOSED or (state is State.HALF_OPEN and self.is_probing)

    def begin_probe(self, at: float) -> bool:
        """Begin a probe. Return false if none may begin."""
        if self.state(at) is not State.HALF_OPEN or at < self._probe_until:
            return False
        self.is_probing, self._probe_until = True, at + PROBE_SECONDS
        return True

    def leave_probe(self, at: float, *, seconds: float) -> None:
        """Leave the probe to another process, and begin none for some seconds."""
        self.is_probing, self._probe_until = False, at + seconds

    def failed(self, reason: Reason, at: float) -> bool:
        """Note a failure that speaks against the target. Return true if it opens the breaker, or for longer."""
        self.failures += 1
        match self.state(at):
            case State.CLOSED:
                opens = reason.needs_operator or self.failures >= MAX_FAILURES
            case State.HALF_OPEN:
                # Requests that were sent before the breaker opened may fail now. They are no probes.
                opens = reason.needs_operator or self.is_probing
            case State.OPEN:
                opens = reason is Reason.QUOTA and self.shared.reason is not Reason.QUOTA
        if opens:
            openings = self.shared.openings + 1
            pause = (
                min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (openings - 1)) if reason is not Reason.QUOTA else QUOTA_PAUSE
            )
            self._change(Snapshot(openings=openings, open_until=at + pause, reason=reason), at)
        return opens

    def refused(self, at: float) -> bool:
        """Note an error that does not speak against the target. Return true if it closes the breaker.

        If the probe gets such an error, the upstream works.
        """
        return self.is_probing and self.succeeded(at)

    def succeeded(self, at: float) -> bool:
        """Note a successful answer. Return true if it closes the breaker."""
        self.failures, self.is_probing, self._probe_until = 0, False, 0.0
        if not self.shared.openings:
            return False
        self._change(Snapshot(), at)
        return True

    def adopt(self, snapshot: Snapshot) -> bool:
        """Take over the state of another process. Return false if it is not newer."""
        if snapshot.changed_at <= self.shared.changed_at:
            return False
        self.shared, self.failures, self.is_probing, self._probe_until = snapshot, 0, False, 0.0
        return True

    def _change(self, snapshot: Snapshot, at: float) -> None:
        # Later than the replaced state even if the clock has been set back.
        changed_at = max(at, self.shared.changed_at + _LEAST_STEP)
        self.shared, self.is_probing, self._probe_until = replace(snapshot, changed_at=changed_at), False, 0.0
