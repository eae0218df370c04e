"""Options of the commands that set limits: `create_key` and `set_limits`."""

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError

from limits import services
from tenants.models import ApiKey, Period, Team

_OPTIONS: Mapping[str, tuple[str, str]] = {
    "requests_per_minute": ("--requests-per-minute", "requests per minute"),
    "tokens_per_minute": ("--tokens-per-minute", "input and output tokens per minute"),
    "requests_per_day": ("--requests-per-day", "requests per day"),
    "concurrent_runs": ("--concurrent", "runs and calls in progress at the same time"),
    "queued_runs": ("--queued", "background responses that have not started"),
    "open_streams": ("--streams", "streams open at the same time"),
    "max_output_tokens": ("--max-output-tokens", "output tokens of one response"),
    "max_tool_calls": ("--max-tool-calls", "tool calls of one response"),
    "stored_bytes": ("--stored-bytes", "bytes of all files together"),
    "files": ("--files", "stored files"),
    "open_batches": ("--open-batches", "batches that have not ended"),
}
NONE = "none"


def add_limit_arguments(parser: ArgumentParser) -> None:
    """Add the options for limits and a budget."""
    limits = parser.add_argument_group("limits", f"A number, or '{NONE}' to remove the limit.")
    for name, (option, help_text) in _OPTIONS.items():
        limits.add_argument(option, dest=name, type=_number, metavar="N", help=help_text)
    budget = parser.add_argument_group("budget")
    budget.add_argument(
        "--budget-usd", type=_amount, metavar="X", help=f"US dollars per period, or '{NONE}' to remove the budget"
    )
    budget.add_argument("--budget-period", choices=Period.values, default=Period.MONTH.value, help="default: month")
    budget.add_argument("--soft", action="store_true", help="only alert when the budget is used up")
    budget.add_argument(
        "--alert-at", type=_percents, metavar="P,P", help="percentages at which to alert (default: 50,80,100)"
    )


def has_limits(options: Mapping[str, Any]) -> bool:
    """Return whether the options name any limit or budget."""
    return any(options[name] is not None for name in (*_OPTIONS, "budget_usd"))


def set_limits_from(
    options: Mapping[str, Any], *, team: Team, api_key: ApiKey | None = None, end_user: str = ""
) -> None:
    """Set the limits and the budget that the options name. Raises `CommandError` for invalid values."""
    values = {name: _value(options[name]) for name in _OPTIONS if options[name] is not None}
    if options["budget_usd"] is None and (options["soft"] or options["alert_at"] is not None):
        raise CommandError("--soft and --alert-at need --budget-usd.")
    try:
        if values:
            services.set_limits(team=team, api_key=api_key, end_user=end_user, values=values)
        if options["budget_usd"] is not None:
            services.set_budget(
                team=team,
                api_key=api_key,
                end_user=end_user,
                period=options["budget_period"],
                amount=_value(options["budget_usd"]),
                is_hard=not options["soft"],
                alert_percents=options["alert_at"],
            )
    except ValidationError as error:
        raise CommandError(_worded(error)) from error


def _worded(error: ValidationError) -> str:
    if not hasattr(error, "error_dict"):
        return " ".join(error.messages)
    names = {**{name: option for name, (option, _) in _OPTIONS.items()}, "amount": "--budget-usd"}
    return " ".join(f"{names.get(name, name)}: {' '.join(texts)}" for name, texts in error.message_dict.items())


def _value(given: Any) -> Any:
    return None if given == NONE else given


def _number(text: str) -> int | str:
    if text == NONE:
        return text
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"expected a whole number or '{NONE}', but got '{text}'") from None


def _amount(text: str) -> Decimal | str:
    if text == NONE:
        return text
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite():
        raise ArgumentTypeError(f"expected an amount such as 12.50, or '{NONE}', but got '{text}'")
    return amount


def _percents(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentTypeError(f"expected percentages such as 50,80,100, but got '{text}'") from None
