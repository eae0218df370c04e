"""Usage and cost tab: the usage records of a response."""

from decimal import Decimal
from typing import Any

from django.db.models import Count, Sum
from django.http import HttpRequest

from console.widgets import badge, duration, tone, when
from responses.models import Response
from tenants.admin.usage_records import OUTCOME_TONES
from tenants.models import UsageRecord
from tenants.prices import Prices, amount

# A run may have more turns than a page can list.
PAGE = 500
_TOKENS = ("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")


def usage(request: HttpRequest, response: Response) -> dict[str, Any]:
    """Return the usage records of this response, and their totals."""
    rows = UsageRecord.objects.filter(object_id=response.pk, team_id=response.team_id)
    lines = list(rows.order_by("occurred_at", "id")[:PAGE])
    sums = {name: Sum(name) for name in (*_TOKENS, "cost")}
    # Totals cover all records, also those beyond the page.
    total = rows.aggregate(lines=Count("id"), priced=Count("cost"), **sums)
    return {
        "lines": [_line(row) for row in lines],
        "sums": {name: f"{total[name] or 0:,}" for name in _TOKENS},
        "cost": amount(total["cost"]) if total["priced"] else "",
        "unpriced": total["lines"] - total["priced"],
        "left": max(0, total["lines"] - PAGE),
        "count": total["lines"],
    }


def _line(row: UsageRecord) -> dict[str, Any]:
    return {
        "row": row,
        "number": row.turn + 1,
        "outcome": tone(OUTCOME_TONES, row.outcome),
        "when": when(row.occurred_at),
        **{name: f"{getattr(row, name):,}" for name in _TOKENS},
        "estimated": badge("estimated", "warning", "The upstream reported no usage; counted by the platform.")
        if row.estimated
        else "",
        "took": duration(row.duration_ms),
        "cost": amount(row.cost),
        "prices": _prices(row),
    }


def _prices(row: UsageRecord) -> list[str]:
    # The prices at the time of the call: prices of the model may have changed since.
    prices = Prices.restored(row.prices)
    named: list[tuple[str, Decimal | None]] = [
        ("in", prices.input_price),
        ("cached", prices.cached_input_price),
        ("written", prices.cache_write_price),
        ("out", prices.output_price),
    ]
    return [f"{name} {amount(price)}" for name, price in named if price is not None]
