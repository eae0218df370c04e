"""Costs of tokens: exact, and without double counting."""

from decimal import Decimal

import pytest

from tenants.prices import UNKNOWN, Prices, amount, sum_costs

PRICES = Prices(
    input_price=Decimal("0.4"),
    cached_input_price=Decimal("0.1"),
    cache_write_price=Decimal("0.5"),
    output_price=Decimal("1.6"),
)
INPUT_ONLY = Prices(input_price=Decimal("0.0201"))


@pytest.mark.parametrize(
    ("prices", "tokens", "cost"),
    [
        (PRICES, {"input_tokens": 1_000_000}, "0.4"),
        (PRICES, {"input_tokens": 1_000_000, "cached_tokens": 1_000_000}, "0.1"),
        (PRICES, {"input_tokens": 11, "cached_tokens": 4, "cache_write_tokens": 3, "output_tokens": 5}, "0.0000115"),
        (PRICES, {"input_tokens": 3, "cached_tokens": 9, "cache_write_tokens": 9}, "0.0000003"),
        (PRICES, {"input_tokens": 0}, "0"),
        (INPUT_ONLY, {"input_tokens": 1}, "0.0000000201"),
        (INPUT_ONLY, {"input_tokens": 2, "cached_tokens": 1, "cache_write_tokens": 1}, "0.0000000402"),
    ],
)
def test_costs_are_computed_from_token_counts(prices: Prices, tokens: dict[str, int], cost: str) -> None:
    assert prices.cost(**tokens) == Decimal(cost)


def test_tokens_without_a_price_have_no_cost() -> None:
    assert UNKNOWN.cost(input_tokens=0) is None
    assert INPUT_ONLY.cost(input_tokens=5, output_tokens=1) is None


def test_known_costs_are_added() -> None:
    one = Decimal(1)
    assert (sum_costs(None, None), sum_costs(None, one), sum_costs(one, None), sum_costs(one, one)) == (
        None,
        one,
        one,
        Decimal(2),
    )


def test_prices_are_stored_and_restored() -> None:
    assert INPUT_ONLY.noted() == {"input_price": "0.0201"}
    assert [Prices.restored(each.noted()) for each in (PRICES, INPUT_ONLY, UNKNOWN)] == [PRICES, INPUT_ONLY, UNKNOWN]


@pytest.mark.parametrize(
    ("value", "shown"),
    [("0.4000", "$0.40"), ("1234.5", "$1,234.50"), ("0.0000115000", "$0.0000115"), ("2", "$2.00")],
)
def test_amounts_are_formatted_for_display(value: str, shown: str) -> None:
    assert (amount(Decimal(value)), amount(None)) == (shown, "–")
