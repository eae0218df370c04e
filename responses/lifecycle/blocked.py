"""Runs and batch lines that wait until a limit has room again, for example after their budget is used up.

The row of a blocked run or line stores the time until which the limit blocks it, and the amount that it needs of a
budget. Until then it is not claimed, because it would be claimed and refused again and again, possibly for the rest of
the month. Instead, `wake` reads the limits of each key once and finds the runs that have room now, because of a new
period, a changed limit or budget, corrected usage or released reservations.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from django.db.models import F, Q

import limits
from core.clock import now
from core.errors import ApiError, LimitReached, LimitsUnavailable
from limits.values import LimitStatus
from responses.lifecycle import queue
from responses.models import RUNNING, Response
from responses.models.batches import BatchLine, BatchStatus, LineState
from tenants import directory, scope

# Pauses up to this length are never ended early.
_SHORT_SECONDS = 30.0
# Maximum number of runs, and of lines, that one call of `wake` reads.
_MOST_ROWS = 10_000
_REQUEST_RATES = ("requests_per_minute", "requests_per_day")
_INFINITE = Decimal("Infinity")


class Pause(NamedTuple):
    """The pause until a refused run is claimed again. It ends earlier if the budget has `needs` US dollars left.

    `needs` is None for a short pause, which is never ended early, and 0 if the limit is not a budget.
    """

    seconds: float
    needs: Decimal | None = None


def pause_after(error: ApiError, *, end_user_is_known: bool) -> Pause:
    """Return the pause after a refusal. If a limit of an unknown end user has refused the run, the pause is short."""
    # A random spread, so that runs that wait for the same place do not try to reserve it at the same moment.
    spread = random.uniform(0.75, 1.25)  # noqa: S311 - no secret
    if isinstance(error, LimitReached) and (end_user_is_known or error.subject != "end_user"):
        wait = error.wait_seconds or 0.0
        if wait > _SHORT_SECONDS:
            return Pause(wait + spread, error.needed)
    seconds = float(error.headers.get("retry-after-ms", 1000 * _SHORT_SECONDS)) / 1000
    return Pause(min(seconds, _SHORT_SECONDS) * spread)


class _Blocked(NamedTuple):
    row: Any
    key_id: str
    end_user: str
    needs: Decimal


def wake() -> int:
    """Let the workers claim all blocked runs and lines whose limits have room now. Return their number."""
    groups: dict[tuple[str, str], list[_Blocked]] = defaultdict(list)
    with scope.every_team():
        for blocked in _read():
            groups[blocked.key_id, blocked.end_user].append(blocked)
    ready: list[Any] = []
    for (key_id, end_user), members in groups.items():
        try:
            principal = directory.principal_of_run(key_id)
            fitting = _fitting(members, limits.status_sync(principal, end_user))
        except LimitsUnavailable:
            continue
        except ApiError:
            # For example, the key was revoked. The worker that claims its runs ends them.
            fitting = members
        ready += [blocked.row for blocked in fitting]
    with scope.every_team():
        for model in (Response, BatchLine):
            rows = model.objects.filter(pk__in=[row.pk for row in ready if isinstance(row, model)])
            rows.filter(lease_until=None).update(not_before=None, needs_budget=None)
    if ready:
        queue.notify_workers()
    return len(ready)


def _read() -> Iterable[_Blocked]:
    """Yield the blocked runs and then the blocked lines, each oldest first."""
    is_blocked = Q(not_before__gt=now(), needs_budget__isnull=False, lease_until=None)
    runs = Response.objects.filter(is_blocked, background=True, status__in=RUNNING, waits_until=None)
    for run in runs.only("api_key_id", "end_user", "needs_budget").order_by("created_at")[:_MOST_ROWS]:
        yield _Blocked(run, run.api_key_id or "", run.end_user or "", run.needs_budget or Decimal(0))
    lines = BatchLine.objects.filter(is_blocked, state=LineState.QUEUED, batch__status=BatchStatus.IN_PROGRESS)
    lines = lines.annotate(key_id=F("batch__api_key_id"))
    for line in lines.only("needs_budget").order_by("batch__created_at", "position")[:_MOST_ROWS]:
        yield _Blocked(line, line.key_id, "", line.needs_budget or Decimal(0))


def _fitting(members: Sequence[_Blocked], status: LimitStatus) -> list[_Blocked]:
    """Return the first members that together fit into the limits. The others would only be refused again."""
    money = min((budget.remaining for budget in status.budgets), default=_INFINITE)
    rates = [limit.remaining for limit in status.limits if limit.limit in _REQUEST_RATES]
    requests = min(rates, default=len(members))
    fitting = []
    for blocked in members:
        if requests >= 1 and blocked.needs <= money:
            fitting.append(blocked)
            requests, money = requests - 1, money - blocked.needs
    return fitting
