"""The sweeper of limits: finds states in Redis that differ from the reservations in PostgreSQL, and rebuilds them.

They differ after a process was killed between a reservation and its insertion, or between a commit and its settlement.
Until the rebuild, Redis counts too much and never too little.
"""

import logging
import time
from collections.abc import Iterable
from datetime import timedelta

import redis

from core.clock import now
from core.periods import microseconds
from limits import guard, script
from limits.rebuild import open_reservations
from tenants import scope
from tenants.models import Budget, LimitEpoch

logger = logging.getLogger(__name__)
# Longer than it takes to store a reservation, or to settle it after its commit.
_SETTLED_AFTER = 30_000_000
# The state is rebuilt after this time, for spending that was recorded without a reservation (by a process that was
# allowed to run without Redis, for example) and for periods that have begun.
_REFRESH_AFTER = 24 * 3_600_000_000
# Calls that began before there was a budget have no reservation, so their cost is missing in Redis.
_NEW_BUDGET = timedelta(days=1)
_NEW_BUDGET_REFRESH_AFTER = 60_000_000
_SECONDS = 20.0
_PAGE = 1000


def sweep(team_ids: Iterable[str] | None = None) -> int:
    """Compare the states of teams (by default of all) and rebuild those that differ. Return how many were rebuilt."""
    stops_at, rebuilt = time.monotonic() + _SECONDS, 0
    if team_ids is None:
        with scope.every_team():
            team_ids = list(LimitEpoch.objects.order_by("?").values_list("team_id", flat=True))
    for team_id in team_ids:
        if time.monotonic() > stops_at:
            # The order of teams is random, so that later calls reach the others.
            break
        try:
            if _differs(team_id):
                guard.rebuild_sync(team_id)
                rebuilt += 1
        except redis.RedisError as error:
            logger.warning("limits could not be swept: %s", error)
            break
    return rebuilt


def _differs(team_id: str) -> bool:
    """Return true if a team's state in Redis is old, or differs from PostgreSQL in reservations that are not recent."""
    client, state = script.client(), script.state_keys(team_id)[0]
    epoch, loaded = client.hmget(state, "epoch", "loaded")
    if epoch is None:
        # The next request builds the state.
        return False
    present = microseconds(now())
    if present - int(loaded) > _REFRESH_AFTER:
        return True
    if present - int(loaded) > _NEW_BUDGET_REFRESH_AFTER:
        with scope.team(team_id):
            if Budget.objects.filter(team=team_id, is_hard=True, created_at__gte=now() - _NEW_BUDGET).exists():
                return True
    # Redis is read first: a reservation that is settled in between is then missing in PostgreSQL, and compared again.
    reserved = {name[2:].decode(): entry for name, entry in client.hscan_iter(state, match="r:*", count=_PAGE)}
    stored = open_reservations(team_id)
    lost = [name for name, at in stored.items() if name not in reserved and present - at > _SETTLED_AFTER]
    extra = [
        name
        for name, entry in reserved.items()
        if name not in stored and present - int(entry.split(b"\n")[0].split(b" ")[2]) > _SETTLED_AFTER
    ]
    if not (lost or extra):
        return False
    fields = [f"r:{name}" for name in (*lost, *extra)]
    found = client.hmget(state, *fields)
    again = open_reservations(team_id)
    return any((entry is None) == (name in again) for name, entry in zip((*lost, *extra), found, strict=True))
