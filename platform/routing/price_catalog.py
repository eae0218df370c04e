"""The prices that providers publish, from the data of the package genai-prices. No network.

Only prices of models whose provider is certain are used: the upstream must have the address of the provider. The
package is imported when it is needed, as its data takes half a second and 70 MB.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from decimal import Decimal
from functools import lru_cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from tenants.prices import Dimension, PriceEntry, PriceList

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice

SOURCE = "genai-prices"
# Providers whose model names do not identify a model (names of deployments), or whose listed prices belong to another
# product at the same address.
_UNCERTAIN = frozenset({"azure", "databricks", "modal", "github-copilot", "cursor", "openai-decisions"})
_HOUR = 3600
# Prices of the package by name: dimension, units, duration of cache writes, and tool.
_KEYS: Mapping[str, tuple[Dimension, int, int, str]] = {
    "input_mtok": (Dimension.INPUT, 1_000_000, 0, ""),
    "cache_read_mtok": (Dimension.CACHED_INPUT, 1_000_000, 0, ""),
    "cache_write_mtok": (Dimension.CACHE_WRITE, 1_000_000, 0, ""),
    "cache_write_5m_mtok": (Dimension.CACHE_WRITE, 1_000_000, 300, ""),
    "cache_write_1h_mtok": (Dimension.CACHE_WRITE, 1_000_000, _HOUR, ""),
    "output_mtok": (Dimension.OUTPUT, 1_000_000, 0, ""),
    "output_reasoning_mtok": (Dimension.REASONING, 1_000_000, 0, ""),
    "input_audio_mtok": (Dimension.AUDIO_INPUT, 1_000_000, 0, ""),
    "cache_audio_read_mtok": (Dimension.CACHED_AUDIO_INPUT, 1_000_000, 0, ""),
    "output_audio_mtok": (Dimension.AUDIO_OUTPUT, 1_000_000, 0, ""),
    "input_image_mtok": (Dimension.IMAGE_INPUT, 1_000_000, 0, ""),
    "cache_image_read_mtok": (Dimension.CACHED_IMAGE_INPUT, 1_000_000, 0, ""),
    "output_image_mtok": (Dimension.IMAGE_OUTPUT, 1_000_000, 0, ""),
    "input_audio_hours": (Dimension.AUDIO_SECOND, _HOUR, 0, ""),
    "input_mchars": (Dimension.CHARACTER, 1_000_000, 0, ""),
    "requests_kcount": (Dimension.CALL, 1000, 0, ""),
    "web_searches_kcount": (Dimension.TOOL_CALL, 1000, 0, "web_search"),
    "storage_searches_kcount": (Dimension.TOOL_CALL, 1000, 0, "file_search"),
}
# Names of prices that only repeat another price, for usage that is neither input nor output.
_REPEATED = frozenset({"audio_hours"})
# Prices that are missing in the package's data, by the beginning of the model's name: OpenAI bills the audio of these
# models at its own prices, not as text.
_MISSING: Mapping[str, Sequence[tuple[Dimension, str]]] = {
    "gpt-4o-audio-preview-2024-10-01": ((Dimension.AUDIO_INPUT, "100"), (Dimension.AUDIO_OUTPUT, "200")),
    "gpt-4o-audio-preview": ((Dimension.AUDIO_INPUT, "40"), (Dimension.AUDIO_OUTPUT, "80")),
    "gpt-4o-mini-audio-preview": ((Dimension.AUDIO_INPUT, "10"), (Dimension.AUDIO_OUTPUT, "20")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """A model of a provider, its prices, and remarks about published prices that a price list cannot express."""

    provider: str
    name: str
    prices: PriceList
    remarks: tuple[str, ...] = ()


def source() -> str:
    """Return the source of listed prices, with the version of the package."""
    return f"{SOURCE} {version(SOURCE)}"


def find(base_url: str, model: str, *, at: datetime) -> ListedModel | None:
    """Return the published prices of the model of an upstream, or None if its provider is unknown or uncertain."""
    if not re.match(r"https://[^/]*[a-z]", base_url) or model == "*":
        return None
    # Prices begin at midnight, so the results of a day are the same.
    return _find(base_url, model, at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0))


@lru_cache(maxsize=1000)
def _find(base_url: str, model: str, at: datetime) -> ListedModel | None:
    from genai_prices.data import providers

    for provider in providers:
        found = re.match(provider.api_pattern, base_url)
        if found is None or provider.id in _UNCERTAIN:
            continue
        if not _is_whole_host(provider.api_pattern, base_url, found.end()):
            continue
        # The package's fallbacks to other providers are not used: their prices are not the prices of this provider.
        if listed := provider.find_model(model):
            prices, remarks = _converted(listed, model, at)
            return ListedModel(provider=provider.name, name=listed.id, prices=prices, remarks=remarks)
    return None


def _is_whole_host(pattern: str, url: str, end: int) -> bool:
    """Return whether a match ends with the host: api.openai.com.example.org is not the address of OpenAI."""
    return pattern.endswith(r"\.") or end == len(url) or url[end] in "/:" or url[end - 1] == "/"


def _converted(model: "ModelInfo", name: str, at: datetime) -> tuple[PriceList, tuple[str, ...]]:
    from genai_prices.types import StartDateConstraint, TimeOfDateConstraint

    entries: list[PriceEntry] = []
    remarks: list[str] = []
    prices = model.prices
    if not isinstance(prices, list):
        entries += _entries(prices, remarks)
    else:
        # The last one that is valid replaces those before it; hours of the day come after it.
        started = [price for price in prices if not isinstance(price.constraint, TimeOfDateConstraint)]
        valid = [price for price in started if price.constraint is None or price.constraint.active(at)]
        if valid:
            entries += _entries(valid[-1].prices, remarks)
        for price in started:
            if isinstance(price.constraint, StartDateConstraint) and not price.constraint.active(at):
                entries += _entries(price.prices, remarks, valid_from=_midnight(price.constraint))
        for price in prices:
            if isinstance(price.constraint, TimeOfDateConstraint):
                hours = f"{_clock(price.constraint.start_time)}-{_clock(price.constraint.end_time)}"
                entries += _entries(price.prices, remarks, hours=hours)
    for variant in model.price_variants or ():
        conditions = dict(variant.when)
        tier, processing = conditions.pop("service_tier", ""), conditions.pop("processing", "")
        if conditions or processing not in {"", "batch"} or isinstance(variant.constraint, TimeOfDateConstraint):
            words = ", ".join(f"{key} {value}" for key, value in variant.when.items())
            remarks.append(f"The prices for {words} are not included.")
            continue
        start = variant.constraint
        valid_from = None if start is None or start.active(at) else _midnight(start)
        entries += _entries(
            variant.prices,
            remarks,
            service_tier="" if tier == "default" else tier,
            batch=processing == "batch",
            valid_from=valid_from,
        )
    known = {entry.dimension for entry in entries}
    missing = next((prices for start, prices in _MISSING.items() if name.startswith(start)), ())
    entries += [
        PriceEntry(dimension=dimension.value, amount=Decimal(amount), source=source())
        for dimension, amount in missing
        if dimension.value not in known
    ]
    # Of several variants with the same conditions, the first one applies.
    unique: dict[PriceEntry, PriceEntry] = {}
    for entry in entries:
        unique.setdefault(_identity(entry), entry)
    return PriceList(unique.values()), tuple(dict.fromkeys(remarks))


def _entries(prices: "ModelPrice", remarks: list[str], **conditions: Any) -> Iterable[PriceEntry]:
    for key, value in vars(prices).items():
        if value is None or key in _REPEATED:
            continue
        if key not in _KEYS:
            remarks.append(f"The price {key} is not included.")
            continue
        dimension, per, cache_seconds, tool = _KEYS[key]
        is_plain = isinstance(value, Decimal)
        tiers = [(0, value)] if is_plain else [(0, value.base), *((tier.start, tier.price) for tier in value.tiers)]
        for above_tokens, amount in tiers:
            yield PriceEntry(
                dimension=dimension.value,
                amount=amount,
                per=per,
                tool=tool,
                cache_seconds=cache_seconds,
                above_tokens=above_tokens,
                source=source(),
                **conditions,
            )


def _identity(entry: PriceEntry) -> PriceEntry:
    return replace(entry, amount=Decimal(0), per=1, source="")


def _midnight(constraint: Any) -> datetime:
    return datetime.combine(constraint.start_date, time(), UTC)


def _clock(moment: time) -> str:
    return f"{moment.replace(tzinfo=None):%H:%M}"
