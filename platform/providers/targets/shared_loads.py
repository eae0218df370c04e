"""Requests in flight to targets, summed over all processes, for the console.

While a process has requests in flight to models with several targets, it writes their numbers to Redis once a second.
The numbers of a process that has died expire.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import orjson
import redis
from django.conf import settings

from core.clock import shared_now
from core.process_name import process_name
from core.work.notifications import blocking_client
from tenants.directory import target_loads

# The names of the processes, sorted by the time of their last report, and a key for each report.
_PROCESSES, _REPORT = "platform:target-processes", "platform:target-load:"
_EXPIRY_SECONDS = 5


class LoadReporter:
    """Reports the requests in flight of this process. Event loops of the same process report the same numbers."""

    def __init__(self) -> None:
        self._has_reported = False

    async def report(self, client: Any) -> None:
        """Write the present numbers. Without requests in flight, nothing is written after the first time."""
        in_flight = target_loads.all_in_flight()
        if not in_flight and not self._has_reported:
            return
        name, at = process_name(), shared_now().timestamp()
        pipeline = client.pipeline(transaction=False)
        if in_flight:
            numbers = [[upstream_id, model, number] for (upstream_id, model), number in in_flight.items()]
            pipeline.set(_REPORT + name, orjson.dumps(numbers), ex=_EXPIRY_SECONDS)
            pipeline.zadd(_PROCESSES, {name: at})
            pipeline.expire(_PROCESSES, _EXPIRY_SECONDS)
        else:
            pipeline.delete(_REPORT + name)
            pipeline.zrem(_PROCESSES, name)
        pipeline.zremrangebyscore(_PROCESSES, "-inf", at - _EXPIRY_SECONDS)
        await pipeline.execute()
        self._has_reported = bool(in_flight)


def shared_in_flight() -> Mapping[tuple[str, str], int] | None:
    """Return the requests in flight by upstream id and its model; None if Redis cannot be reached."""
    found: Counter[tuple[str, str]] = Counter()
    try:
        with blocking_client(settings.REDIS_URL) as client:
            names = cast("list[bytes]", client.zrange(_PROCESSES, 0, -1))
            reports: Any = client.mget([_REPORT.encode() + name for name in names]) if names else []
    except redis.RedisError:
        return None
    for report in filter(None, reports):
        for upstream_id, model, number in orjson.loads(report):
            found[upstream_id, model] += number
    return found
