"""Models that have taken long to answer requests of this process."""

import time
from collections.abc import Callable

from tenants.directory import Route

# Many proxies close a connection on which nothing was sent for a minute.
_LONG_SECONDS = 30.0
_REMEMBERED_SECONDS = 600.0
_MAX_MODELS = 1000


class LongAnswers:
    """Models whose answers took long in the last minutes. They are asked to stream, so that no connection is silent."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until: dict[tuple[str, str], float] = {}

    def observe(self, route: Route, seconds: float) -> None:
        """Record the duration of an answer that was not streamed, or of a failed attempt to get such an answer."""
        if seconds >= _LONG_SECONDS:
            # Bounds the memory: a wildcard route may serve any number of models.
            if len(self._until) >= _MAX_MODELS:
                self._until.clear()
            self._until[route.upstream.id, route.upstream_model] = self._now() + _REMEMBERED_SECONDS

    def come_from(self, route: Route) -> bool:
        """Return True if the model's next answer may take long."""
        return self._until.get((route.upstream.id, route.upstream_model), 0.0) > self._now()


long_answers = LongAnswers()
