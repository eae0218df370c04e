"""Prices of models and costs of calls.

Prices are US dollars per million tokens with four decimal places. A cost has ten, so it is never rounded, and the costs
of a response's calls add up exactly to the cost of the response. Each usage record stores the prices of its time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Any

from django.core.validators import MinValueValidator
from django.db import models

_MILLION = Decimal(1_000_000)
_NOTHING = Decimal(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices in US dollars per million tokens. None means unknown; for cached tokens, the input price applies."""

    input_price: Decimal | None = None
    cached_input_price: Decimal | None = None
    cache_write_price: Decimal | None = None
    output_price: Decimal | None = None

    def cost(
        self, *, input_tokens: int, cached_tokens: int = 0, cache_write_tokens: int = 0, output_tokens: int = 0
    ) -> Decimal | None:
        """Return the cost of these tokens, or None if any of them has no known price.

        `input_tokens` includes the tokens read from and written to the cache.
        """
        if self == UNKNOWN:
            return None
        # Upstreams report inconsistent numbers now and then: no part may exceed the whole.
        cached = min(cached_tokens, input_tokens)
        written = min(cache_write_tokens, input_tokens - cached)
        parts = (
            (input_tokens - cached - written, self.input_price),
            (cached, self.input_price if self.cached_input_price is None else self.cached_input_price),
            (written, self.input_price if self.cache_write_price is None else self.cache_write_price),
            (output_tokens, self.output_price),
        )
        # An unknown price matters only if there are tokens of its kind.
        total = _NOTHING
        for tokens, price in parts:
            if tokens and price is None:
                return None
            total += tokens * (price or _NOTHING)
        return total / _MILLION

    def noted(self) -> dict[str, str] | None:
        """Return the known prices as JSON, or None if there are none."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: f"{value:f}" for name, value in values.items() if value is not None} or None

    @classmethod
    def restored(cls, noted: Mapping[str, str] | None) -> "Prices":
        """Return the prices from the JSON of a usage record."""
        return cls(**{name: Decimal(value) for name, value in (noted or {}).items()})


UNKNOWN = Prices()
NO_PRICE = "No price"
"""Shown instead of the cost of calls whose model had no price."""


def sum_costs(one: Decimal | None, other: Decimal | None) -> Decimal | None:
    """Return the sum of two costs. An unknown cost counts as zero; the sum of two unknown costs is unknown."""
    if one is None or other is None:
        return other if one is None else one
    return one + other


def amount(value: Decimal | None) -> str:
    """Format a price or cost for people, with at least two decimal places and no further trailing zeros."""
    if value is None:
        return "–"
    whole, _, places = f"{value:,f}".partition(".")
    return f"${whole}.{places.rstrip('0').ljust(2, '0')}"


def _price(label: str, help_text: str = "") -> "models.DecimalField[Any, Any]":
    return models.DecimalField(
        label,
        max_digits=10,
        decimal_places=4,
        null=True,
        blank=True,
        help_text=help_text,
        validators=[MinValueValidator(0)],
    )


class PriceColumns(models.Model):
    """Abstract model with the columns of `Prices`."""

    input_price = _price("input", "US dollars per million tokens. If empty, costs are not calculated.")
    cached_input_price = _price("cached input", "Tokens read from the cache. If empty, the input price applies.")
    cache_write_price = _price("cache writes", "Tokens written to the cache. If empty, the input price applies.")
    output_price = _price("output", "Includes reasoning tokens.")

    class Meta:
        abstract = True

    def prices(self) -> Prices:
        """Return the columns as one value."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(Prices)}
        return Prices(**values)


class CostField(models.DecimalField[Any, Any]):
    """An exact amount in US dollars: a token at a price of four decimal places needs ten. None means unknown."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"max_digits": 20, "decimal_places": 10, "blank": True, **options})
