"""What a model's tokens cost, as its operator says, and what one call of it comes to.

Prices are US dollars for a million tokens, with four decimal places; a cost has ten, so that it is never rounded and
the costs of a response's calls add up to that of the response. A call notes the prices that it was counted with: they
may be others by the time somebody looks.
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
    """US dollars for a million tokens. None: no price is known; of the cache's, that of other input holds."""

    input_price: Decimal | None = None
    cached_input_price: Decimal | None = None
    cache_write_price: Decimal | None = None
    output_price: Decimal | None = None

    def cost(
        self, *, input_tokens: int, cached_tokens: int = 0, cache_write_tokens: int = 0, output_tokens: int = 0
    ) -> Decimal | None:
        """What these tokens cost; None where those of one kind have no price, or there is none at all.

        `input_tokens` includes what was read from the cache and written into it.
        """
        if self == UNKNOWN:
            return None
        cached = min(cached_tokens, input_tokens)
        written = min(cache_write_tokens, input_tokens - cached)
        parts = (
            (input_tokens - cached - written, self.input_price),
            (cached, self.input_price if self.cached_input_price is None else self.cached_input_price),
            (written, self.input_price if self.cache_write_price is None else self.cache_write_price),
            (output_tokens, self.output_price),
        )
        total = _NOTHING
        for tokens, price in parts:
            if tokens and price is None:
                return None
            total += tokens * (price or _NOTHING)
        return total / _MILLION

    def noted(self) -> dict[str, str] | None:
        """The prices that there are, for JSON; None: there are none."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: f"{value:f}" for name, value in values.items() if value is not None} or None

    @classmethod
    def restored(cls, noted: Mapping[str, str] | None) -> "Prices":
        """The prices that were noted."""
        return cls(**{name: Decimal(value) for name, value in (noted or {}).items()})


UNKNOWN = Prices()


def added(one: Decimal | None, other: Decimal | None) -> Decimal | None:
    """The sum of two costs; what has no price counts for nothing, and two of those have none."""
    if one is None or other is None:
        return other if one is None else one
    return one + other


def amount(value: Decimal | None) -> str:
    """A price or a cost for people: at least two decimal places, and no zeros beyond them."""
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
    """The columns of `Prices`."""

    input_price = _price("input", "US dollars for a million tokens; empty: no price is known, and no cost is counted.")
    cached_input_price = _price("cached input", "What the upstream read from its cache; empty: as other input.")
    cache_write_price = _price("cache writes", "What it wrote into its cache; empty: as other input.")
    output_price = _price("output", "Reasoning included.")

    class Meta:
        abstract = True

    def prices(self) -> Prices:
        """The columns as one value."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(Prices)}
        return Prices(**values)


class CostField(models.DecimalField[Any, Any]):
    """US dollars, exact to the ten places that a token at a price of four may need; None: no price is known."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"max_digits": 20, "decimal_places": 10, "blank": True, **options})
