"""Price lists: the right entry for each condition, exact costs, no double counting."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from tenants.prices import UNKNOWN, Dimension, Maxima, PriceEntry, PriceList, Quantities, amount, label, sum_costs

PRICES = PriceList.simple(input="0.4", cached_input="0.1", cache_write="0.5", output="1.6")
INPUT_ONLY = PriceList.simple(input="0.0201")
EARLY, LATE = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC)


def entry(dimension: Dimension, price: str, **conditions: Any) -> PriceEntry:
    """Return an entry."""
    return PriceEntry(dimension=dimension.value, amount=Decimal(price), **conditions)


TIERED = PriceList(
    [
        entry(Dimension.INPUT, "1"),
        entry(Dimension.INPUT, "2", above_tokens=100),
        entry(Dimension.INPUT, "4", above_tokens=1000),
        entry(Dimension.INPUT, "0.5", service_tier="flex"),
        entry(Dimension.INPUT, "0.25", batch=True),
        entry(Dimension.CACHED_INPUT, "0.1"),
        entry(Dimension.CACHE_WRITE, "1.25", cache_seconds=300),
        entry(Dimension.CACHE_WRITE, "2", cache_seconds=3600),
        entry(Dimension.OUTPUT, "10"),
        entry(Dimension.OUTPUT, "20", valid_from=LATE),
        entry(Dimension.OUTPUT, "5", hours="22:30-01:00", valid_from=LATE.replace(hour=1)),
        entry(Dimension.TOOL_CALL, "10", per=1000, tool="web_search"),
        entry(Dimension.CONTAINER_SECOND, "0.06", per=60),
    ]
)


def cost(prices: PriceList, **used: Any) -> Decimal | None:
    """Return the total cost of quantities, under the conditions among them."""
    conditions = {"at": EARLY, **{name: used.pop(name) for name in ("tier", "batch", "at") if name in used}}
    found = prices.cost(Quantities(**used), **conditions)
    return None if found is None else found.total


@pytest.mark.parametrize(
    ("prices", "used", "expected"),
    [
        (PRICES, {"input_tokens": 1_000_000}, "0.4"),
        (PRICES, {"input_tokens": 1_000_000, "cached_tokens": 1_000_000}, "0.1"),
        (PRICES, {"input_tokens": 11, "cached_tokens": 4, "cache_write_tokens": 3, "output_tokens": 5}, "0.0000115"),
        (PRICES, {"input_tokens": 3, "cached_tokens": 9, "cache_write_tokens": 9}, "0.0000003"),
        (PRICES, {"output_tokens": 5, "reasoning_tokens": 5}, "0.000008"),
        (PRICES, {"input_tokens": 0}, "0"),
        (INPUT_ONLY, {"input_tokens": 1}, "0.0000000201"),
        (INPUT_ONLY, {"input_tokens": 2, "cached_tokens": 1, "cache_write_tokens": 1}, "0.0000000402"),
        (INPUT_ONLY, {"input_tokens": 2, "input_audio_tokens": 1, "input_image_tokens": 1}, "0.0000000402"),
    ],
)
def test_costs_are_computed_from_token_counts(prices: PriceList, used: dict[str, int], expected: str) -> None:
    assert cost(prices, **used) == Decimal(expected)


@pytest.mark.parametrize(
    ("used", "conditions", "expected"),
    [
        ({"input_tokens": 100}, {}, "0.0001"),
        ({"input_tokens": 101}, {}, "0.000202"),
        ({"input_tokens": 1001}, {}, "0.004004"),
        ({"input_tokens": 101, "cached_tokens": 100}, {}, "0.000012"),
        ({"input_tokens": 100}, {"tier": "flex"}, "0.00005"),
        ({"input_tokens": 1001}, {"tier": "Flex"}, "0.0005005"),
        ({"input_tokens": 100}, {"tier": "default"}, "0.0001"),
        ({"input_tokens": 100}, {"batch": True}, "0.000025"),
        ({"input_tokens": 100}, {"tier": "batch"}, "0.000025"),
        ({"input_tokens": 10, "cache_write_tokens": 10}, {}, "0.0000125"),
        ({"input_tokens": 10, "cache_write_tokens": 10, "cache_write_1h_tokens": 4}, {}, "0.0000155"),
        ({"output_tokens": 1}, {}, "0.00001"),
        ({"output_tokens": 1}, {"at": LATE}, "0.00002"),
        ({"output_tokens": 1}, {"at": LATE.replace(hour=23)}, "0.000005"),
        ({"output_tokens": 1}, {"at": LATE.replace(hour=1)}, "0.00002"),
        ({"tool_calls": {"web_search": 3}}, {}, "0.03"),
        ({"container_seconds": 90}, {}, "0.09"),
    ],
)
def test_conditions_select_the_price(used: dict[str, Any], conditions: dict[str, Any], expected: str) -> None:
    assert cost(TIERED, **conditions, **used) == Decimal(expected)


def test_usage_without_a_price_has_no_cost() -> None:
    assert cost(UNKNOWN, input_tokens=0) is None
    assert cost(INPUT_ONLY, input_tokens=5, output_tokens=1) is None
    assert cost(PRICES, audio_seconds=1.5) is None
    assert cost(TIERED, tool_calls={"file_search": 1}) is None


def test_an_unlisted_tier_has_no_cost_only_if_prices_depend_on_the_tier() -> None:
    assert cost(TIERED, tier="priority", input_tokens=1) is None
    assert cost(PRICES, tier="priority", input_tokens=1) == Decimal("0.0000004")


def test_a_cache_write_of_an_unlisted_duration_has_no_cost() -> None:
    prices = PriceList([entry(Dimension.INPUT, "1"), entry(Dimension.CACHE_WRITE, "1.25", cache_seconds=300)])
    assert cost(prices, input_tokens=1, cache_write_tokens=1) == Decimal("0.00000125")
    assert cost(prices, input_tokens=1, cache_write_tokens=1, cache_write_1h_tokens=1) is None


def test_kinds_of_tokens_are_counted_once() -> None:
    kinds = (Dimension.INPUT, Dimension.AUDIO_INPUT, Dimension.CACHED_AUDIO_INPUT, Dimension.IMAGE_INPUT,
             Dimension.CACHED_INPUT, Dimension.OUTPUT, Dimension.AUDIO_OUTPUT, Dimension.REASONING)  # fmt: skip
    prices = PriceList(entry(kind, str(10**place), per=1) for place, kind in enumerate(kinds))
    used = {
        "input_tokens": 20, "cached_tokens": 5, "input_audio_tokens": 6, "cached_audio_tokens": 2,
        "input_image_tokens": 3, "output_tokens": 9, "output_audio_tokens": 4, "reasoning_tokens": 2,
    }  # fmt: skip
    # Input: 15 not cached, of which 4 audio and 3 images; 5 cached, of which 2 audio. Output: 4 audio, 2 reasoning.
    assert cost(prices, **used) == Decimal("24333248")


def test_a_price_with_more_than_four_decimal_places_is_rounded_once() -> None:
    # 3 × 0.00035 / 1,000,000 = 0.00000000105; half to even.
    assert cost(PriceList.simple(input="0.00035"), input_tokens=3) == Decimal("0.0000000010")
    assert cost(PriceList.simple(input="0.00035"), input_tokens=1_000_000) == Decimal("0.00035")


def test_the_worst_cost_is_never_below_the_cost() -> None:
    for tokens in (1, 100, 101, 2000):
        worst = TIERED.worst_cost(Maxima(input_tokens=tokens, output_tokens=7))
        assert worst is not None
        for tier in ("", "flex", "batch"):
            for written in (0, tokens):
                used = {"input_tokens": tokens, "cache_write_tokens": written, "cache_write_1h_tokens": written}
                actual = cost(TIERED, tier=tier, at=LATE, output_tokens=7, **used)
                assert actual is not None
                assert actual <= worst
    assert TIERED.worst_cost(Maxima(input_tokens=100), tiers=["default"], at=EARLY) == Decimal("0.0002")
    assert INPUT_ONLY.worst_cost(Maxima(input_tokens=1, output_tokens=1)) is None


def test_lists_are_stored_and_restored() -> None:
    assert INPUT_ONLY.stored() == [{"dimension": "input", "amount": "0.0201"}]
    assert [PriceList.restored(each.stored()) for each in (PRICES, TIERED, UNKNOWN)] == [PRICES, TIERED, UNKNOWN]


def test_the_prices_of_a_moment_are_selected() -> None:
    assert [each.amount for each in TIERED.at(EARLY).entries if each.dimension == "output"] == [Decimal(10)]
    assert [each.amount for each in TIERED.at(LATE).entries if each.dimension == "output"] == [Decimal(20)]


def test_a_cost_lists_the_applied_prices() -> None:
    found = TIERED.cost(Quantities(input_tokens=200, cached_tokens=50), at=EARLY)
    assert found is not None
    assert found.stored() == [
        {"dimension": "input", "amount": "2", "above_tokens": 100, "quantity": "150", "cost": "0.0003"},
        {"dimension": "cached_input", "amount": "0.1", "quantity": "50", "cost": "0.000005"},
    ]
    assert label(found.stored()[0]) == "Input $2.00 per million (above 100 tokens)"


def test_known_costs_are_added() -> None:
    one = Decimal(1)
    assert (sum_costs(None, None), sum_costs(None, one), sum_costs(one, None), sum_costs(one, one)) == (
        None,
        one,
        one,
        Decimal(2),
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [("0.4000", "$0.40"), ("1234.5", "$1,234.50"), ("0.0000115000", "$0.0000115"), ("2", "$2.00")],
)
def test_amounts_are_formatted_for_display(value: str, shown: str) -> None:
    assert (amount(Decimal(value)), amount(None)) == (shown, "–")
