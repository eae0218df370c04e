"""Completion windows: a background response may wait for the time within its window at which its model is cheapest."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import takewhile
from typing import NamedTuple

from django.conf import settings

from responses.schema import CreateResponse
from tenants.directory import Route
from tenants.prices import Quantities

_WINDOWS = {"2h": timedelta(hours=2), "8h": timedelta(hours=8)}
# At least this share of a window is left for the run: for its place in the queue, its turns and its tools.
_LEAST_SHARE_OF_RUN = 0.25
# A run starts this long after a price has changed, because the provider bills by its own clock.
_AFTER_CHANGE = timedelta(seconds=30)


class PlannedStart(NamedTuple):
    """The start of a run, or None if it starts at once, and its route, which begins with the cheapest target."""

    at: datetime | None
    route: Route


def plan_start(body: CreateResponse, route: Route, *, created_at: datetime, input_tokens: int) -> PlannedStart:
    """Return the cheapest start within the completion window of a request for which `may_wait` is true.

    The costs of the estimated input and of as many tokens of output, or `max_output_tokens` if this is lower, are
    compared at the times at which a price of a target with the first priority changes. Of equal costs, the earliest
    counts, and then the first target. If the first target has no price, the run starts at once.
    """
    output_tokens = min(input_tokens, body.max_output_tokens or input_tokens)
    quantities = Quantities(input_tokens=input_tokens, output_tokens=output_tokens, calls=1)
    targets = [*takewhile(lambda target: target.group == route.group, route.targets)]

    def cost(target: Route, at: datetime) -> Decimal | None:
        found = target.prices.cost(quantities, tier=body.service_tier, at=at)
        return None if found is None else found.total

    if cost(route, created_at) is None:
        return PlannedStart(None, route)
    latest = _latest_start(body, created_at)
    costs = [
        (known, at, place)
        for at in _times(targets, after=created_at, until=latest - _AFTER_CHANGE)
        for place, target in enumerate(targets)
        if (known := cost(target, at)) is not None
    ]
    _, at, place = min(costs)
    if place:
        chosen = targets[place]
        route = Route.through([chosen, *(target for target in route.targets if target is not chosen)])
    return PlannedStart(None if at == created_at else at + _AFTER_CHANGE, route)


def _latest_start(body: CreateResponse, created_at: datetime) -> datetime:
    """Return the last time at which the run may start, so that it can be expected to end within the window."""
    window = _WINDOWS[(body.background_options and body.background_options.completion_window) or ""]
    longest_answer = settings.UPSTREAM_ANSWER_TIMEOUT + settings.UPSTREAM_BACKGROUND_RETRY_SECONDS
    return created_at + window - max(_LEAST_SHARE_OF_RUN * window, timedelta(seconds=longest_answer))


def _times(targets: Sequence[Route], *, after: datetime, until: datetime) -> list[datetime]:
    """Return the first of these times, and those at which a price changes, earliest first."""
    return sorted({after}.union(*(target.prices.changes(after=after, until=until) for target in targets)))
