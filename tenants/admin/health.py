"""Success rates of upstream calls, shown in the lists of models and upstreams.

The app that stores call statistics depends on this one, so it registers the function that reads them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

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


HealthSource = Callable[[], Mapping[tuple[str, str], CallHealth]]
_sources: list[HealthSource] = []


def register_health_source(source: HealthSource) -> HealthSource:
    """Register the function that returns call health by upstream id and model; an empty model is the whole upstream."""
    # One source only: registering again replaces it.
    _sources[:] = [source]
    return source


def health_by_route() -> Mapping[tuple[str, str], CallHealth]:
    """Return the call health of all upstreams and models called within 24 hours."""
    return _sources[0]() if _sources else {}


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
