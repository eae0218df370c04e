"""Changes of limits and budgets. Each is one transaction that includes its audit line."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from django.core.exceptions import ValidationError

from tenants import scope
from tenants.audit import audit
from tenants.models import ApiKey, Budget, LimitSet, Period, Team
from tenants.models.limits import LIMITS


def find_limit_set(*, team: Team, api_key: ApiKey | None = None, end_user: str = "") -> LimitSet | None:
    """Return the limits of a team, a key or an end user (`*`: each one without limits of its own), or None."""
    with scope.team(team.pk):
        found = LimitSet.objects.filter(team=team, api_key=api_key, end_user=end_user)
        return found.prefetch_related("budgets").first()


def set_limits(
    *,
    team: Team,
    values: Mapping[str, int | None],
    api_key: ApiKey | None = None,
    end_user: str = "",
    actor: str = "system",
) -> LimitSet:
    """Change some limits of a team, a key or an end user. None removes a limit; limits without a value do not change.

    Takes effect in every process within two seconds. Raises `ValidationError` for unknown names and invalid values.
    """
    if unknown := sorted(set(values) - set(LIMITS)):
        raise ValidationError(f"Unknown limits: {', '.join(unknown)}.")
    with scope.team(team.pk):
        found = _locked(team, api_key, end_user)
        before = {name: getattr(found, name) for name in values}
        changed = {name: value for name, value in values.items() if value != before[name]}
        for name, value in changed.items():
            setattr(found, name, value)
        found.clean_fields(exclude={field.name for field in LimitSet._meta.fields} - set(changed))  # noqa: SLF001 - documented
        if changed:
            found.save(update_fields=list(changed))
            audit(
                team_id=team.pk,
                actor=actor,
                action="limits.updated",
                target=_target(found),
                before={name: before[name] for name in changed},
                after=changed,
            )
    return found


def set_budget(
    *,
    team: Team,
    period: str,
    amount: Decimal | None,
    is_hard: bool = True,
    alert_percents: Sequence[int] | None = None,
    allow_unknown_prices: bool | None = None,
    api_key: ApiKey | None = None,
    end_user: str = "",
    actor: str = "system",
) -> Budget | None:
    """Set the hard or the soft budget of a subject for a period; None as the amount removes it.

    `alert_percents` and `allow_unknown_prices` do not change if they are None. Takes effect in every process within
    two seconds. Raises `ValidationError` for invalid values.
    """
    given = {
        "amount": amount,
        "alert_percents": None if alert_percents is None else sorted(set(alert_percents)),
        "allow_unknown_prices": allow_unknown_prices,
    }
    values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    with scope.team(team.pk):
        limit_set = _locked(team, api_key, end_user)
        found = Budget.objects.filter(limit_set=limit_set, period=period, is_hard=is_hard).first()
        before = _described(found) if found is not None else {}
        if amount is None:
            if found is not None:
                found.delete()
                audit(team_id=team.pk, actor=actor, action="budget.deleted", target=_target(limit_set), before=before)
            return None
        budget = found or Budget(team=team, limit_set=limit_set, period=Period(period), is_hard=is_hard)
        for name, value in values.items():
            setattr(budget, name, value)
        budget.full_clean(exclude=["team", "limit_set"])
        if any(not 0 < percent <= 1000 for percent in budget.alert_percents):
            raise ValidationError({"alert_percents": "Percentages are whole numbers from 1 to 1000."})
        budget.save()
        after = _described(budget)
        if after != before:
            action = "budget.updated" if before else "budget.created"
            audit(team_id=team.pk, actor=actor, action=action, target=_target(limit_set), before=before, after=after)
        return budget


def _locked(team: Team, api_key: ApiKey | None, end_user: str) -> LimitSet:
    """Return the limit set of a subject, locked; creates it without limits if there is none."""
    if api_key is not None and (end_user or api_key.team_id != team.pk):
        raise ValidationError("A limit applies to a team, to one of its API keys, or to an end user.")
    LimitSet.objects.get_or_create(team=team, api_key=api_key, end_user=end_user)
    return LimitSet.objects.select_for_update().get(team=team, api_key=api_key, end_user=end_user)


def _target(limit_set: LimitSet) -> str:
    return limit_set.api_key_id or (f"end_user:{limit_set.end_user}"[:120] if limit_set.end_user else limit_set.team_id)


def _described(budget: Budget) -> dict[str, Any]:
    return {
        "period": budget.period,
        "amount": f"{budget.amount.normalize():f}",
        "hard": budget.is_hard,
        "alert_percents": list(budget.alert_percents),
        "allow_unknown_prices": budget.allow_unknown_prices,
    }
