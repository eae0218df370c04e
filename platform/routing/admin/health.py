"""Success rates of upstream calls from the hourly sums, shown in the lists of models and upstreams."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from django.utils.safestring import SafeString

from console.widgets import compact, duration, two_lines
from core.clock import now
from core.periods import end_of_hour
from responses.rollups import histograms
from responses.rollups.queries import RollupQuery, fetch_rows
from responses.rollups.sources import CALLS

_MEASURES = ("calls", "failed", "duration")


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
    """Upstream calls of the current and the previous hour, and of the last 24 hours."""

    hour: Health | None = None
    day: Health | None = None


def health_by_route() -> Mapping[tuple[str, str], CallHealth]:
    """Return the call health by (upstream id, model), and by (upstream id, "") for the whole upstream."""
    end = end_of_hour(now())

    def health_since(hours: int) -> dict[tuple[str, str], Health]:
        found = {}
        for by in (("upstream_id",), ("upstream_id", "model")):
            since = end - timedelta(hours=hours)
            for row in fetch_rows(RollupQuery(source=CALLS, since=since, until=end, measures=_MEASURES, by=by)):
                # Calls of hosted tools are recorded without an upstream.
                if row.key[0]:
                    slow = histograms.quantile(row.values["duration"], 0.95)
                    health = Health(calls=row.values["calls"], failed=row.values["failed"], slow_ms=slow)
                    found[row.key[0], row.key[1] if len(row.key) > 1 else ""] = health
        return found

    # "Last hour" reads two hours of sums, as the current one may have just begun.
    hour, day = health_since(2), health_since(24)
    return {key: CallHealth(hour=hour.get(key), day=health) for key, health in day.items()}


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
