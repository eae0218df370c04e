# mypy: allow-subclassing-any
"""Forms of limits and budgets of a team, a key or an end user."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, cast

from django import forms
from typing_extensions import override
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget, UnfoldBooleanWidget

from limits import services
from tenants.models import ApiKey, Budget, LimitSet, Period, Team
from tenants.models.limits import LIMITS, MAX_BUDGET

KINDS = (("hard", True), ("soft", False))
_UNITS = {"stored_bytes": "bytes", "requests_per_minute": "60", "tokens_per_minute": "100000"}


def _limit_field(name: str) -> forms.IntegerField:
    column = cast("Any", LimitSet._meta.get_field(name))  # noqa: SLF001 - documented
    return forms.IntegerField(
        required=False,
        label=str(column.verbose_name).capitalize(),
        help_text=column.help_text,
        validators=column.validators,
        widget=UnfoldAdminTextInputWidget(
            attrs={"inputmode": "numeric", "placeholder": _UNITS.get(name, "no limit"), "autocomplete": "off"}
        ),
    )


def _amount_field(label: str, help_text: str = "") -> forms.DecimalField:
    return forms.DecimalField(
        required=False,
        min_value=Decimal(0),
        max_value=Decimal(MAX_BUDGET),
        decimal_places=10,
        label=label,
        help_text=help_text,
        widget=UnfoldAdminTextInputWidget(attrs={"inputmode": "decimal", "placeholder": "no budget"}),
    )


class NewLimitsForm(forms.Form):
    """Form of the limits and the budget that most new keys need. The page of a key's limits offers all of them."""

    requests_per_minute = _limit_field("requests_per_minute")
    tokens_per_minute = _limit_field("tokens_per_minute")
    concurrent_runs = _limit_field("concurrent_runs")
    budget = _amount_field("Budget (US dollars)", "Calls that could exceed it are refused.")
    budget_period = forms.ChoiceField(
        choices=[(value, f"per {label.lower()}") for value, label in Period.choices],
        required=False,
        initial=Period.MONTH.value,
        label="Budget period",
        widget=UnfoldAdminSelectWidget,
    )

    def save_limits(self, *, key: ApiKey, actor: str) -> None:
        """Store the limits of a new key. Runs in the transaction that creates it."""
        cleaned = self.cleaned_data
        values = {name: cleaned[name] for name in LIMITS if cleaned.get(name) is not None}
        if values:
            services.set_limits(team=key.team, api_key=key, values=values, actor=actor)
        if cleaned.get("budget") is not None:
            period = cleaned["budget_period"] or Period.MONTH.value
            services.set_budget(team=key.team, api_key=key, period=period, amount=cleaned["budget"], actor=actor)


class LimitsForm(forms.Form):
    """All limits and budgets of one subject. An empty field means no limit.

    With `may_raise` false, limits that exist may only be lowered.
    """

    alert_percents = forms.CharField(
        required=False,
        initial="50, 80, 100",
        label="Alerts at (percent)",
        help_text="Separated by commas. Each percentage sends one alert per period.",
        widget=UnfoldAdminTextInputWidget(),
    )
    allow_unknown_prices = forms.BooleanField(
        required=False,
        label="Allow models without a price",
        help_text="Otherwise, a hard budget refuses the calls of these models.",
        widget=UnfoldBooleanWidget(),
    )

    def __init__(self, data: Any = None, *, found: LimitSet | None, may_raise: bool) -> None:
        rows = found.budgets.order_by("pk") if found is not None else ()
        budgets = {(budget.period, budget.is_hard): budget for budget in rows}
        self._stored: dict[str, Any] = {name: getattr(found, name, None) for name in LIMITS}
        for period in Period.values:
            for kind, is_hard in KINDS:
                budget = budgets.get((period, is_hard))
                self._stored[f"{kind}_{period}"] = budget.amount.normalize() if budget is not None else None
        # Calls without a price do not count, so allowing them loosens a hard budget.
        self._refuses_unknown_prices = any(
            is_hard and not budget.allow_unknown_prices for (_, is_hard), budget in budgets.items()
        )
        self._may_raise = may_raise
        initial = dict(self._stored)
        initial |= {name: f"{value:f}" for name, value in initial.items() if isinstance(value, Decimal)}
        if any_budget := next(iter(budgets.values()), None):
            initial["alert_percents"] = ", ".join(map(str, any_budget.alert_percents))
            initial["allow_unknown_prices"] = any_budget.allow_unknown_prices
        super().__init__(data, initial=initial)
        for name in LIMITS:
            self.fields[name] = _limit_field(name)
        for period, label in Period.choices:
            for kind, _ in KINDS:
                self.fields[f"{kind}_{period}"] = _amount_field(f"{kind.capitalize()} budget per {label.lower()}")

    def clean_alert_percents(self) -> list[int]:
        """Return the percentages as numbers."""
        parts = [part.strip() for part in self.cleaned_data["alert_percents"].split(",") if part.strip()]
        if not all(part.isdecimal() and len(part) <= 4 and 0 < int(part) <= 1000 for part in parts):
            raise forms.ValidationError("Enter whole numbers from 1 to 1000, separated by commas.")
        return sorted({int(part) for part in parts})

    @override
    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        if not self._may_raise:
            for name, before in self._stored.items():
                after = cleaned.get(name)
                if before is not None and name not in self.errors and (after is None or after > before):
                    shown = f"{before:f}" if isinstance(before, Decimal) else f"{before:,}"
                    self.add_error(name, f"You may not raise or remove this limit, which is {shown}.")
            if self._refuses_unknown_prices and cleaned.get("allow_unknown_prices"):
                self.add_error("allow_unknown_prices", "You may not allow these models.")
        return cleaned

    def save(self, *, team: Team, api_key: ApiKey | None, end_user: str, actor: str) -> None:
        """Store the limits and budgets that were changed."""
        subject: Mapping[str, Any] = {"team": team, "api_key": api_key, "end_user": end_user, "actor": actor}
        cleaned = self.cleaned_data
        services.set_limits(values={name: cleaned[name] for name in LIMITS}, **subject)
        for period in Period.values:
            for kind, is_hard in KINDS:
                name = f"{kind}_{period}"
                if cleaned[name] is None and self._stored[name] is None:
                    continue
                services.set_budget(
                    period=period,
                    amount=cleaned[name],
                    is_hard=is_hard,
                    # The form shows the options of the first budget; others keep theirs unless they were changed.
                    **{
                        option: cleaned[option]
                        for option in ("alert_percents", "allow_unknown_prices")
                        if option in self.changed_data or self._stored[name] is None
                    },
                    **subject,
                )

    @property
    def groups(self) -> list[tuple[str, list[Any]]]:
        """Titles and fields of the parts of the page."""
        budgets = [f"{kind}_{period}" for period in Period.values for kind, _ in KINDS]
        parts = (
            ("Rates", LIMITS[:3]),
            ("At the same time", LIMITS[3:6]),
            ("Each response", LIMITS[6:8]),
            ("Stored", LIMITS[8:]),
            ("Budgets (US dollars)", [*budgets, "alert_percents", "allow_unknown_prices"]),
        )
        return [(title, [self[name] for name in names]) for title, names in parts]


def described(found: LimitSet) -> list[str]:
    """Return the limits and budgets of a subject as short texts."""
    texts = []
    for name in LIMITS:
        if (value := getattr(found, name)) is not None:
            texts.append(f"{value:,} {limit_label(name)}")
    return [*texts, *map(budget_text, found.budgets.all())]


def budget_text(budget: Budget) -> str:
    """Return a budget as a short text."""
    return f"${budget.amount.normalize():f} per {budget.period}" + ("" if budget.is_hard else " (soft)")


def limit_label(name: str) -> str:
    """Return the label of a limit, or of a budget for names such as `budget_month`."""
    if name.startswith("budget_"):
        return f"budget per {name.removeprefix('budget_')}"
    return str(cast("Any", LimitSet._meta.get_field(name)).verbose_name) if name in LIMITS else name  # noqa: SLF001 - documented
