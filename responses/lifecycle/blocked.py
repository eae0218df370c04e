"""Runs and lines of batches that a limit blocks for long, for example a spent budget: they wait until it leaves room.

Their row says until when the limit blocks them, and what they need of a budget. Until then they are not claimed, which
would repeat for every run for the rest of a month. Instead, one look at the limits of a key tells for which of its runs
there is room: after a new period, a changed limit or budget, corrected usage and released reservations alike.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from django.db.models import F, Q

from core.clock import now
from core.errors import ApiError, LimitReached, LimitsUnavailable
from responses.lifecycle import queue
from responses.models import RUNNING, Response
from responses.models.batches import BatchLine, BatchStatus, LineState
from tenants import directory, limits, scope
from tenants.limits.values import LimitStatus

# Shorter waits just pass.
_SHORT_SECONDS = 30.0
# Of a team's runs and lines, that one call looks at.
_MOST_ROWS = 10_000
_REQUEST_RATES = ("requests_per_minute", "requests_per_day")
_INFINITE = Decimal("Infinity")


class Pause(NamedTuple):
    """The time until a refused run is claimed again, and what it needs of a budget to be claimed before that.

    `needs` is None for a short pause, which just passes, and 0 for a limit that is no budget.
    """

    seconds: float
    needs: Decimal | None = None


def pause_after(error: ApiError, *, end_user_is_known: bool) -> Pause:
    """Return the pause after a refusal. Unless the end user is known, a limit of end users is asked again soon."""
    # Spread, so that those that wait for the same place do not ask for it at the same moment.
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
            found = _fitting(members, limits.status_sync(principal, end_user))
        except LimitsUnavailable:
            continue
        except ApiError:
            # The key was revoked, for example: the worker ends its runs.
            found = members
        ready += [blocked.row for blocked in found]
    with scope.every_team():
        for model in (Response, BatchLine):
            rows = model.objects.filter(pk__in=[row.pk for row in ready if isinstance(row, model)])
            rows.filter(lease_until=None).update(not_before=None, needs_budget=None)
    if ready:
        queue.notify_workers()
    return len(ready)


def _read() -> Iterable[_Blocked]:
    """Yield what is blocked, oldest first."""
    is_blocked = Q(not_before__gt=now(), needs_budget__isnull=False, lease_until=None)
    runs = Response.objects.filter(is_blocked, background=True, status__in=RUNNING)
    for run in runs.only("api_key_id", "end_user", "needs_budget").order_by("created_at")[:_MOST_ROWS]:
        yield _Blocked(run, run.api_key_id or "", run.end_user or "", run.needs_budget or Decimal(0))
    lines = BatchLine.objects.filter(is_blocked, state=LineState.QUEUED, batch__status=BatchStatus.IN_PROGRESS)
    lines = lines.annotate(key_id=F("batch__api_key_id"))
    for line in lines.only("needs_budget").order_by("batch__created_at", "position")[:_MOST_ROWS]:
        yield _Blocked(line, line.key_id, "", line.needs_budget or Decimal(0))


def _fitting(members: Sequence[_Blocked], status: LimitStatus) -> list[_Blocked]:
    """Return those for which the limits have room, all together: others would only be refused once more."""
    money = min((budget.remaining for budget in status.budgets), default=_INFINITE)
    rates = [limit.remaining for limit in status.limits if limit.limit in _REQUEST_RATES]
    requests = min(rates, default=len(members))
    fitting = []
    for blocked in members:
        if requests >= 1 and blocked.needs <= money:
            fitting.append(blocked)
            requests, money = requests - 1, money - blocked.needs
    return fitting
