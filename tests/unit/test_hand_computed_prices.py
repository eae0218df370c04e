"""A hundred prices of calls, computed by hand from the prices that ten models' providers publish (November 2026).

`hand_computed_prices.txt` has one call a line: the model, what it used, its condition (service tier, batch, or the time
of the day in UTC), its cost in dollars, and the arithmetic in millionths of a dollar. Where the package genai-prices
computes another cost from its data, the line ends with that cost and the key of its explanation below.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, localcontext
from pathlib import Path

import pytest
from genai_prices import Usage, calc_price

from routing import price_catalog
from tenants.prices import Quantities

TABLE = Path(__file__).with_name("hand_computed_prices.txt")
DAY = datetime(2026, 11, 20, 12, tzinfo=UTC)
NO_PRICE = "No price"
DIFFERENCES = {
    "audio": "OpenAI charges 40 dollars for a million tokens of audio input and 80 for audio output. The package has "
    "only the prices of text for this model and applies them to audio.",
    "tier": "Prices of this model depend on the tier, and none is known for this one. The package takes the standard "
    "price; we report that there is none, as the real one may be twice or half of it.",
    "unclear cache": "The upstream does not say whether the cached tokens are text or images. The package refuses to "
    "compute a price; we take them for text unless they are said to be images.",
    "more cached": "The upstream reports more cached tokens than tokens. The package refuses to compute a price; we "
    "count no more cached tokens than there are, because the call is on the provider's invoice all the same.",
}
UPSTREAMS = {
    "gpt": ("openai", "https://api.openai.com/v1"),
    "o3": ("openai", "https://api.openai.com/v1"),
    "claude": ("anthropic", "https://api.anthropic.com/v1"),
    "gemini": ("google", "https://generativelanguage.googleapis.com/v1beta/openai"),
    "grok": ("x-ai", "https://api.x.ai/v1"),
    "deepseek": ("deepseek", "https://api.deepseek.com/v1"),
}
# Names in the table, in our usage and in the usage of the package.
NAMES = {
    "in": ("input_tokens", "input_tokens"),
    "cached": ("cached_tokens", "cache_read_tokens"),
    "written": ("cache_write_tokens", "cache_write_tokens"),
    "written 1h": ("cache_write_1h_tokens", "cache_write_1h_tokens"),
    "audio in": ("input_audio_tokens", "input_audio_tokens"),
    "cached audio": ("cached_audio_tokens", "cache_audio_read_tokens"),
    "image in": ("input_image_tokens", "input_image_tokens"),
    "cached image": ("cached_image_tokens", "cache_image_read_tokens"),
    "out": ("output_tokens", "output_tokens"),
    "reasoning": ("reasoning_tokens", "output_reasoning_tokens"),
    "audio out": ("output_audio_tokens", "output_audio_tokens"),
    "image out": ("output_image_tokens", "output_image_tokens"),
    "web_search": ("web_search", "web_searches"),
    "file_search": ("file_search", "storage_searches"),
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of the table. `listed` is the cost of the package if it differs, `reason` the key of its explanation."""

    model: str
    used: dict[str, int]
    tier: str
    at: datetime
    dollars: str
    arithmetic: str
    listed: str
    reason: str

    @property
    def family(self) -> str:
        """The beginning of the model's name, which tells the provider."""
        return self.model.partition("-")[0]


def read(text: str) -> Line:
    """Read a line of the table."""
    model, used, condition, dollars, arithmetic, *difference = (cell.strip() for cell in text.split("|"))
    quantities = {name: int(number) for number, name in (each.split(" ", 1) for each in used.split(", "))}
    hour = re.fullmatch(r"(\d\d):(\d\d)", condition)
    listed, _, reason = (difference[0] if difference else "").partition(": ")
    return Line(
        model=model,
        used=quantities,
        tier="" if hour else condition,
        at=DAY.replace(hour=int(hour[1]), minute=int(hour[2])) if hour else DAY,
        dollars=dollars,
        arithmetic=arithmetic,
        listed=listed,
        reason=reason,
    )


LINES = [read(text) for text in TABLE.read_text().splitlines()]
numbered = pytest.mark.parametrize("line", LINES, ids=[f"{index}-{line.model}" for index, line in enumerate(LINES, 1)])


def our_cost(line: Line) -> str:
    """Return the cost that the platform computes with the published prices."""
    _, url = UPSTREAMS[line.family]
    listed = price_catalog.find(url, line.model, at=DAY)
    assert listed is not None
    tokens = {NAMES[name][0]: number for name, number in line.used.items() if not name.endswith("_search")}
    tools = {name: number for name, number in line.used.items() if name.endswith("_search")}
    cost = listed.prices.cost(Quantities(**tokens, tool_calls=tools, calls=1), tier=line.tier, at=line.at)
    return NO_PRICE if cost is None else f"{cost.total.normalize():f}"


def listed_cost(line: Line) -> str:
    """Return the cost that the package computes, with the ten decimal places of ours."""
    provider, _ = UPSTREAMS[line.family]
    context = {"processing": "batch"} if line.tier == "batch" else {"service_tier": line.tier} if line.tier else None
    usage = Usage(**{NAMES[name][1]: number for name, number in line.used.items()})
    try:
        with localcontext(prec=50):
            found = calc_price(
                usage, line.model, provider_id=provider, genai_request_timestamp=line.at, price_context=context
            )
    except ValueError:
        return "Error"
    return f"{found.total_price.quantize(Decimal('1e-10')).normalize():f}"


def test_the_table_has_a_hundred_calls_of_ten_models() -> None:
    assert (len(LINES), len({line.model for line in LINES})) == (100, 10)
    assert len({(line.model, str(line.used), line.tier, line.at) for line in LINES}) == 100


@numbered
def test_the_arithmetic_of_the_table_is_right(line: Line) -> None:
    if line.dollars == NO_PRICE:
        return
    products = [each.split(" × ") for each in line.arithmetic.replace(",", "").split(" + ")]
    assert sum(Decimal(number) * Decimal(price) for number, price in products) == Decimal(line.dollars) * 1_000_000


@numbered
def test_the_platform_computes_the_price_of_the_table(line: Line) -> None:
    assert our_cost(line) == line.dollars


@numbered
def test_differences_from_genai_prices_are_explained(line: Line) -> None:
    assert listed_cost(line) == (line.listed or line.dollars)
    assert (line.reason in DIFFERENCES) == bool(line.listed)
