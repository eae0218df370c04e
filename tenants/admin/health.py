"""How models and upstreams fare: what their lists show beside each row. The app that counts calls says how to look."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from django.utils.safestring import SafeString

from console.widgets import compact, duration, two_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The calls of a span of time."""

    calls: int
    failed: int
    slow_ms: int | None

    @property
    def share(self) -> str:
        """How many succeeded; never rounded up to all of them."""
        percent = 100 * (self.calls - self.failed) / self.calls if self.calls else 0
        return f"{int(percent * 10) / 10:g} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallHealth:
    """This hour with the one before it, and 24 hours."""

    hour: Health | None = None
    day: Health | None = None


HealthSource = Callable[[], Mapping[tuple[str, str], CallHealth]]
_sources: list[HealthSource] = []


def register_health_source(look: HealthSource) -> HealthSource:
    """Register who knows: by upstream and model; an empty model is the whole upstream."""
    _sources[:] = [look]
    return look


def health_by_route() -> Mapping[tuple[str, str], CallHealth]:
    """How all fare that were called within a day."""
    return _sources[0]() if _sources else {}


def health_cell(found: CallHealth | None) -> SafeString | str:
    """Two lines: this hour, and the day."""
    if found is None or found.day is None:
        return "–"
    return two_lines(_summary(found.hour, "1 h"), _summary(found.day, "24 h"))


def _summary(health: Health | None, span: str) -> str:
    if health is None or not health.calls:
        return f"{span}: no call"
    slow = f", p95 {duration(health.slow_ms)}" if health.slow_ms is not None else ""
    return f"{span}: {health.share} of {compact(health.calls)}{slow}"
