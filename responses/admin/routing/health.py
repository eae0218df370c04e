"""Health of models and upstreams, computed from the hourly sums of the usage records."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.dispatch import receiver

from kernel.clock import now
from responses.admin.usage.query import end_of_hour
from responses.rollups import histograms
from responses.rollups.queries import RollupQuery, RollupRow, fetch_rows
from responses.rollups.sources import CALLS
from tenants.admin.health import CallHealth, Health, health_requested

_HOUR = timedelta(hours=1)
_MEASURES = ("calls", "failed", "duration")


@receiver(health_requested)
def health_by_route(**_: Any) -> Mapping[tuple[str, str], CallHealth]:
    """Return the call health by (upstream id, model), and by (upstream id, "") for the whole upstream."""
    # "Last hour" reads two hours of sums, as the current one may have just begun.
    end = end_of_hour(now())
    hour, day = _health_between(end - 2 * _HOUR, end), _health_between(end - 24 * _HOUR, end)
    return {key: CallHealth(hour=hour.get(key), day=health) for key, health in day.items()}


def _health_between(since: datetime, until: datetime) -> dict[tuple[str, str], Health]:
    found = {}
    for by in (("upstream_id",), ("upstream_id", "model")):
        for row in fetch_rows(RollupQuery(source=CALLS, since=since, until=until, measures=_MEASURES, by=by)):
            # Calls of hosted tools are recorded without an upstream.
            if row.key[0]:
                found[row.key[0], row.key[1] if len(row.key) > 1 else ""] = _health(row)
    return found


def _health(row: RollupRow) -> Health:
    slow = histograms.quantile(row.values["duration"], 0.95)
    return Health(calls=row.values["calls"], failed=row.values["failed"], slow_ms=slow)
