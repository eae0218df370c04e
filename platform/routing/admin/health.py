"""Success rates of upstream calls, shown in the lists of models and upstreams.

The app that stores call statistics depends on this one, so it reads them as the receiver of a signal.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.dispatch import Signal
from django.utils.safestring import SafeString

from console.widgets import compact, duration, two_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Upstream calls in a period. `slow_ms` is the 95th percentile of their duration."""

    calls: int
    failed: int
    slow_ms: int | None

    @property
    def share(self) -> str:
        """Share of successful calls, such as "99.9 %"."""
        percent = 100 * (self.calls - self.failed) / self.calls if self.calls else 0
        # Cut off and not rounded: 100 % must mean that no call failed.
        return f"{int(percent * 10) / 10:g} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallHealth:
    """Upstream calls of the current and the previous hour, and of 24 hours."""

    hour: Health | None = None
    day: Health | None = None


health_requested = Signal()
"""Receivers return call health by upstream id and model; an empty model is the whole upstream."""


def health_by_route() -> Mapping[tuple[str, str], CallHealth]:
    """Return the call health of all upstreams and models called within 24 hours."""
    answers: Any = health_requested.send(sender=None)
    return {route: health for _, answer in answers for route, health in answer.items()}


def health_cell(found: CallHealth | None) -> SafeString | str:
    """Format call health as a cell of two lines, the hour and the day."""
    if found is None or found.day is None:
        return "–"
    return two_lines(_summary(found.hour, "1 h"), _summary(found.day, "24 h"))


def _summary(health: Health | None, span: str) -> str:
    if health is None or not health.calls:
        return f"{span}: no calls"
    slow = f", p95 {duration(health.slow_ms)}" if health.slow_ms is not None else ""
    return f"{span}: {health.share} of {compact(health.calls)}{slow}"
