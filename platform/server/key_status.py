"""Permissions, remaining limits and remaining budgets of a key, for `GET /v1/me`."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import orjson
from django.db.models import Sum
from pydantic import WithJsonSchema
from typing_extensions import TypedDict

import limits
from conversations.files.storage import count_files, count_stored_bytes
from core.clock import now, unix
from core.http.objects import UnixTime, one_of
from core.periods import bounds
from gateway.batches.services import count_open_batches
from limits import BudgetUse, LimitUse
from responses.rollups.queries import RollupQuery, fetch_rows
from responses.rollups.sources import CALLS
from responses.rollups.spending import end_of_sums
from tenants import scope
from tenants.models import AdminKey, ApiKey, Period, Team, UsageRecord
from tenants.principal import BudgetLimit, Principal, SubjectKind, SubjectLimits

Subject = Annotated[str, one_of("team", "key", "end_user")]
Dollars = Annotated[Any, WithJsonSchema({"type": "number"})]
_COUNTED = {"files": count_files, "stored_bytes": count_stored_bytes, "open_batches": count_open_batches}
# Limits of each single request, which are never used up.
_PER_REQUEST = ("max_output_tokens", "max_tool_calls")


class MeKey(TypedDict):
    """An API key."""

    id: str
    name: str
    prefix: str
    last_four: str
    created_at: UnixTime
    expires_at: int | None


class MeTeam(TypedDict):
    """The team of a key."""

    id: str
    name: str
    time_zone: str


class MeLimit(TypedDict):
    """A limit of the team, the key or the end user."""

    subject: Subject
    subject_id: str
    limit: str
    value: int
    remaining: int | None
    reset_seconds: float | None


class MeBudget(TypedDict):
    """A budget of the team, the key or the end user in its current period."""

    subject: Subject
    subject_id: str
    period: Annotated[str, one_of("day", "week", "month")]
    is_hard: bool
    amount: Dollars
    spent: Dollars
    reserved: Dollars
    remaining: Dollars
    currency: Literal["usd"]
    period_start: int
    period_end: int


class MeSpend(TypedDict):
    """The cost of the requests of the team or the key in the current period, with or without a budget."""

    subject: Annotated[str, one_of("team", "key")]
    subject_id: str
    period: Annotated[str, one_of("day", "week", "month")]
    spent: Dollars
    currency: Literal["usd"]
    period_start: int
    period_end: int


class Me(TypedDict):
    """The key of the request."""

    object: Literal["me"]
    key: MeKey
    team: MeTeam | None
    scopes: list[str]
    allowed_models: list[str] | None
    denied_models: list[str]
    allowed_tools: list[str]
    limits: list[MeLimit]
    budgets: list[MeBudget]
    spend: list[MeSpend]


def key_status(principal: Principal, *, end_user: str = "") -> Me:
    """Return the key, its team, permissions, limits and budgets. With `end_user`, also the limits of that end user.

    Raises `LimitsUnavailable` without Redis.
    """
    if principal.is_admin:
        with scope.every_team():
            admin_key = AdminKey.objects.get(pk=principal.key_id)
        return _status(principal, admin_key, team=None, used=[], budgets=[], spend=[])
    state = limits.status_sync(principal, end_user)
    applying = limits.applying_sync(principal, end_user)
    with scope.team(principal.team_id):
        key = ApiKey.objects.select_related("team").get(pk=principal.key_id)
        used = [_limit(use) for use in state.limits] + [*_other_limits(principal, applying)]
        budgets = [*state.budgets, *_soft_budgets(principal, applying)]
        subjects: tuple[tuple[SubjectKind, str], ...] = (("team", principal.team_id), ("key", principal.key_id))
        spend = [
            _spend(principal, kind, subject_id, period) for kind, subject_id in subjects for period in Period.values
        ]
        shown = [_budget(use) for use in budgets]
        return _status(principal, key, team=key.team, used=used, budgets=shown, spend=spend)


def _status(
    principal: Principal,
    key: ApiKey | AdminKey,
    *,
    team: Team | None,
    used: list[MeLimit],
    budgets: list[MeBudget],
    spend: list[MeSpend],
) -> Me:
    models = principal.allowed_models
    return {
        "object": "me",
        "key": {
            "id": key.pk,
            "name": key.name,
            "prefix": key.prefix,
            "last_four": key.last_four,
            "created_at": unix(key.created_at),
            "expires_at": None if key.expires_at is None else unix(key.expires_at),
        },
        "team": None if team is None else {"id": team.pk, "name": team.name, "time_zone": team.time_zone},
        "scopes": sorted(principal.scopes),
        "allowed_models": None if models is None else sorted(models),
        "denied_models": sorted(principal.denied_models),
        "allowed_tools": sorted(principal.tools),
        "limits": used,
        "budgets": budgets,
        "spend": spend,
    }


def _limit(use: LimitUse) -> MeLimit:
    return {
        "subject": use.subject,
        "subject_id": use.subject_id,
        "limit": use.limit,
        "value": use.value,
        "remaining": use.remaining,
        "reset_seconds": round(use.reset_seconds, 3),
    }


def _other_limits(principal: Principal, applying: Sequence[SubjectLimits]) -> Iterator[MeLimit]:
    """Yield the limits that are not kept in Redis."""
    for subject in applying:
        for name in (*_PER_REQUEST, *_COUNTED):
            if name in subject.values:
                value, left = subject.values[name], None
                if name in _COUNTED and subject.kind != "end_user":
                    existing = _COUNTED[name](principal, principal.key_id if subject.kind == "key" else None)
                    left = max(0, value - existing)
                yield {
                    "subject": subject.kind,
                    "subject_id": subject.id,
                    "limit": name,
                    "value": value,
                    "remaining": left,
                    "reset_seconds": None,
                }


def _soft_budgets(principal: Principal, applying: Sequence[SubjectLimits]) -> Iterator[BudgetUse]:
    """Yield the budgets that only alert, for which nothing is reserved."""
    for subject in applying:
        for budget in subject.budgets:
            if not budget.is_hard:
                yield _soft_budget(principal, subject, budget)


def _soft_budget(principal: Principal, subject: SubjectLimits, budget: BudgetLimit) -> BudgetUse:
    since, until = bounds(budget.period, now(), principal.time_zone)
    return BudgetUse(
        subject=subject.kind,
        subject_id=subject.id,
        period=budget.period,
        amount=budget.amount,
        is_hard=False,
        spent=_spent(principal, subject.kind, subject.id, since=since, until=until),
        reserved=Decimal(0),
        since=since,
        until=until,
    )


def _spent(principal: Principal, kind: SubjectKind, subject_id: str, *, since: datetime, until: datetime) -> Decimal:
    """Return the cost of the requests of a subject from `since` to now."""
    at, teams = now(), [principal.team_id]
    if kind == "end_user":
        records = UsageRecord.objects.filter(team__in=teams, end_user=subject_id, occurred_at__range=(since, at))
        total: Decimal | None = records.aggregate(total=Sum("cost"))["total"]
        return total or Decimal(0)
    rows = fetch_rows(
        RollupQuery(
            source=CALLS,
            since=since,
            until=min(until, end_of_sums(at)),
            measures=["cost"],
            teams=teams,
            only={"api_key_id": [subject_id]} if kind == "key" else {},
        )
    )
    return (rows[0].values["cost"] if rows else None) or Decimal(0)


def _spend(principal: Principal, kind: SubjectKind, subject_id: str, period: str) -> MeSpend:
    since, until = bounds(period, now(), principal.time_zone)
    return {
        "subject": kind,
        "subject_id": subject_id,
        "period": period,
        "spent": _dollars(_spent(principal, kind, subject_id, since=since, until=until)),
        "currency": "usd",
        "period_start": unix(since),
        "period_end": unix(until),
    }


def _budget(use: BudgetUse) -> MeBudget:
    return {
        "subject": use.subject,
        "subject_id": use.subject_id,
        "period": use.period,
        "is_hard": use.is_hard,
        "amount": _dollars(use.amount),
        "spent": _dollars(use.spent),
        "reserved": _dollars(use.reserved),
        "remaining": _dollars(use.remaining),
        "currency": "usd",
        "period_start": unix(use.since),
        "period_end": unix(use.until),
    }


def _dollars(amount: Decimal) -> orjson.Fragment:
    # Written as decimal digits, because a float could change the last ones.
    return orjson.Fragment(f"{amount.normalize():f}")
