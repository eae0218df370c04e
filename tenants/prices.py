"""Prices of models and tools, and the costs of calls.

A price list has an entry for each dimension of usage (input, cached input, output, a call of a tool and so on), and
further entries for conditions under which a dimension has another price: service tier, batch, long context.

A cost is computed exactly and stored with ten decimal places, which suffices for prices per million tokens with up to
four decimal places. With a finer price, the cost of each call is rounded once, half to even. So the cost of a response
is always the exact sum of the costs of its calls.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, time, timedelta
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal
from typing import Any

from django.db import models
from typing_extensions import override

from core.errors import CostUnbounded
from core.records import record

MILLION = 1_000_000
COST_PLACES = Decimal("1e-10")
CACHE_SECONDS = 300
"""Assumed seconds of a cache write if the upstream does not report its duration: the shortest that providers offer."""
STANDARD_TIERS = frozenset({"", "auto", "default", "standard", "standard_only", "on_demand"})
"""Names that upstreams use for the tier without a surcharge or discount."""

_NOTHING = Decimal(0)


class Dimension(models.TextChoices):
    """Quantity that has a price."""

    INPUT = "input", "Input"
    CACHED_INPUT = "cached_input", "Cached input"
    CACHE_WRITE = "cache_write", "Cache writes"
    OUTPUT = "output", "Output"
    REASONING = "reasoning", "Reasoning"
    AUDIO_INPUT = "audio_input", "Audio input"
    CACHED_AUDIO_INPUT = "cached_audio_input", "Cached audio input"
    AUDIO_OUTPUT = "audio_output", "Audio output"
    IMAGE_INPUT = "image_input", "Image input"
    CACHED_IMAGE_INPUT = "cached_image_input", "Cached image input"
    IMAGE_OUTPUT = "image_output", "Image output"
    AUDIO_SECOND = "audio_second", "Audio time"
    CHARACTER = "character", "Characters"
    CALL = "call", "Call"
    TOOL_CALL = "tool_call", "Tool call"
    CONTAINER_SECOND = "container_second", "Container time"
    SEARCH = "search", "Search"


# A kind of token without its own price has the price of the kind that contains it. A discount for cached tokens
# applies to cached audio and images only if the price list has it for them.
_FALLBACKS: Mapping[Dimension, tuple[Dimension, ...]] = {
    Dimension.CACHED_INPUT: (Dimension.INPUT,),
    Dimension.CACHE_WRITE: (Dimension.INPUT,),
    Dimension.AUDIO_INPUT: (Dimension.INPUT,),
    Dimension.CACHED_AUDIO_INPUT: (Dimension.AUDIO_INPUT, Dimension.CACHED_INPUT, Dimension.INPUT),
    Dimension.IMAGE_INPUT: (Dimension.INPUT,),
    Dimension.CACHED_IMAGE_INPUT: (Dimension.IMAGE_INPUT, Dimension.CACHED_INPUT, Dimension.INPUT),
    Dimension.REASONING: (Dimension.OUTPUT,),
    Dimension.AUDIO_OUTPUT: (Dimension.OUTPUT,),
    Dimension.IMAGE_OUTPUT: (Dimension.OUTPUT,),
}
_INPUT_KINDS = (
    Dimension.INPUT,
    Dimension.CACHED_INPUT,
    Dimension.CACHE_WRITE,
    Dimension.AUDIO_INPUT,
    Dimension.CACHED_AUDIO_INPUT,
    Dimension.IMAGE_INPUT,
    Dimension.CACHED_IMAGE_INPUT,
)
_OUTPUT_KINDS = (Dimension.OUTPUT, Dimension.REASONING, Dimension.AUDIO_OUTPUT, Dimension.IMAGE_OUTPUT)
TOKEN_DIMENSIONS = frozenset(dimension.value for dimension in (*_INPUT_KINDS, *_OUTPUT_KINDS))
"""The kinds of tokens, as opposed to calls, tools and time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceEntry:
    """`amount` US dollars for `per` units of a dimension, under conditions.

    - `service_tier`: only calls of this tier; empty means every tier without its own entry.
    - `batch`: only calls of the upstream's batch API.
    - `above_tokens`: only calls with more input tokens than this, but then for all their tokens.
    - `cache_seconds`: only cache writes of this duration; 0 means any duration.
    - `hours`: only calls that begin between two times of the day in UTC, such as 16:30-00:30; the second is excluded.
    - `tool`: only calls of this tool; empty means any tool.
    """

    dimension: str
    amount: Decimal
    per: int = MILLION
    tool: str = ""
    service_tier: str = ""
    batch: bool = False
    above_tokens: int = 0
    cache_seconds: int = 0
    hours: str = ""
    valid_from: datetime | None = None
    source: str = "entered"
    currency: str = "USD"

    def stored(self) -> dict[str, Any]:
        """Return the entry as JSON, without the values that are defaults."""
        return {"dimension": self.dimension, "amount": plain(self.amount), **self.conditions()}

    def conditions(self) -> dict[str, Any]:
        """Return the values other than dimension and amount that are not defaults, as JSON."""
        values = {attribute.name: getattr(self, attribute.name) for attribute in fields(self)[2:]}
        changed = {
            attribute.name: values[attribute.name]
            for attribute in fields(self)[2:]
            if values[attribute.name] != attribute.default
        }
        if self.valid_from is not None:
            changed["valid_from"] = self.valid_from.isoformat()
        return changed


@record
class Quantities:
    """Quantities of a call. Kinds of tokens are parts of `input_tokens` and `output_tokens`, as upstreams report them.

    `cache_write_1h_tokens` are a part of `cache_write_tokens`. `calls` is 0 for usage other than a model call.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    input_audio_tokens: int = 0
    cached_audio_tokens: int = 0
    input_image_tokens: int = 0
    cached_image_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    output_audio_tokens: int = 0
    output_image_tokens: int = 0
    audio_seconds: float = 0.0
    characters: int = 0
    calls: int = 0
    tool_calls: Mapping[str, int] = field(default_factory=dict)
    container_seconds: float = 0.0
    searches: int = 0


@dataclass(frozen=True, slots=True)
class Unbounded:
    """A quantity of a call that has no known maximum.

    `param` is the parameter that makes the quantity unbounded, `message` the error message if the call is refused.
    """

    param: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Maxima:
    """The largest quantities that a call can be billed for.

    If `output_tokens` is None, the call may generate as many tokens as its limits allow, and the upstream is sent this
    maximum. Seconds and characters are billed instead of tokens. With `is_billed_by_call`, calls are billed instead of
    all other quantities.
    """

    input_tokens: int | Unbounded = 0
    output_tokens: int | Unbounded | None = None
    audio_seconds: float | Unbounded = 0.0
    characters: int = 0
    calls: int = 1
    is_billed_by_call: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedPrice:
    """A price entry, the quantity that it was applied to, and the exact product."""

    entry: PriceEntry
    quantity: Decimal
    cost: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of a call in US dollars with ten decimal places, and the prices from which it was computed."""

    total: Decimal
    entries: tuple[AppliedPrice, ...]

    def stored(self) -> list[dict[str, Any]]:
        """Return the applied prices as the JSON of a usage record: dimension, amount, quantity, cost and conditions."""
        return [
            {**applied.entry.stored(), "quantity": plain(applied.quantity), "cost": plain(applied.cost)}
            for applied in self.entries
        ]


class PriceList:
    """The prices of a model or of tools. Immutable; equal to a list with the same entries in the same order."""

    __slots__ = ("_by_dimension", "_tiers", "entries")

    def __init__(self, entries: Iterable[PriceEntry] = ()) -> None:
        self.entries = tuple(entries)
        self._tiers = frozenset(entry.service_tier for entry in self.entries if entry.service_tier)
        # Entries with the most specific conditions come first: the first entry that applies is the price.
        self._by_dimension: dict[str, list[PriceEntry]] = {}
        for entry in sorted(self.entries, key=_specificity, reverse=True):
            self._by_dimension.setdefault(entry.dimension, []).append(entry)

    @classmethod
    def simple(
        cls,
        *,
        input: Decimal | str | None = None,  # noqa: A002 - as in the usage of OpenAI's API
        output: Decimal | str | None = None,
        cached_input: Decimal | str | None = None,
        cache_write: Decimal | str | None = None,
        source: str = "entered",
    ) -> "PriceList":
        """Return a list without conditions, from US dollars per million tokens."""
        amounts = {
            Dimension.INPUT: input,
            Dimension.CACHED_INPUT: cached_input,
            Dimension.CACHE_WRITE: cache_write,
            Dimension.OUTPUT: output,
        }
        return cls(
            PriceEntry(dimension=name.value, amount=Decimal(amount), source=source)
            for name, amount in amounts.items()
            if amount is not None
        )

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, PriceList) and self.entries == other.entries

    @override
    def __hash__(self) -> int:
        return hash(self.entries)

    def __bool__(self) -> bool:
        return bool(self.entries)

    @override
    def __repr__(self) -> str:
        return f"PriceList({[entry.stored() for entry in self.entries]!r})"

    def cost(
        self, quantities: Quantities, *, tier: str | None = None, batch: bool = False, at: datetime | None = None
    ) -> Cost | None:
        """Return the cost of a call, or None if any part of the call has no price.

        `tier` is the service tier that the upstream reported. If the tier has no price for a dimension, the price
        without a tier applies. If the list has prices for other tiers but none for this tier, the cost is unknown. `at`
        is the time of the call, which excludes prices that were not valid yet.
        """
        if not self.entries:
            return None
        named = (tier or "").lower()
        if named == "batch":
            named, batch = "", True
        if named not in STANDARD_TIERS and named not in self._tiers and self._tiers:
            return None
        applied: dict[PriceEntry, Decimal] = {}
        for dimension, quantity, detail in _parts(quantities):
            entry = self._entry(dimension, named, batch, quantities.input_tokens, at, detail)
            if entry is None:
                if dimension == Dimension.CALL:  # most models have no price per call
                    continue
                return None
            applied[entry] = applied.get(entry, _NOTHING) + quantity
        parts = tuple(
            AppliedPrice(entry=entry, quantity=quantity, cost=quantity * entry.amount / entry.per)
            for entry, quantity in applied.items()
        )
        total = sum((part.cost for part in parts), _NOTHING)
        return Cost(total=total.quantize(COST_PLACES, ROUND_HALF_EVEN), entries=parts)

    def worst_cost(
        self, most: Maxima, *, tiers: Collection[str] | None = None, at: datetime | None = None
    ) -> Decimal | None:
        """Return the highest cost of a call with at most these quantities, rounded up; None if it has no price.

        `tiers` are the service tiers with which the call may be served; None means all of them. Each token is counted
        as the most expensive kind that has a price. Raises `CostUnbounded` if a quantity with a price has no maximum.
        """
        allowed = (
            None if tiers is None else {("" if tier.lower() in STANDARD_TIERS else tier.lower()) for tier in tiers}
        )
        context = None if isinstance(most.input_tokens, Unbounded) else most.input_tokens

        def highest(kinds: Iterable[Dimension]) -> Decimal:
            amounts = [
                entry.amount / entry.per
                for kind in kinds
                for entry in self._by_dimension.get(kind, ())
                if (context is None or entry.above_tokens <= context)
                and (allowed is None or not entry.service_tier or entry.service_tier in allowed)
                and (at is None or entry.valid_from is None or entry.valid_from <= at)
            ]
            return max(amounts, default=_NOTHING)

        def total(*parts: tuple[Sequence[Dimension], float | Unbounded | None]) -> Decimal | None:
            costs = [_NOTHING]
            for kinds, quantity in parts:
                if not quantity:
                    continue
                # If the plain kind has no price, the call may have tokens without any price.
                if kinds[0] not in self._by_dimension:
                    return None
                price = highest(kinds)
                if not isinstance(quantity, Unbounded):
                    costs.append(Decimal(str(quantity)) * price)
                elif price:
                    raise CostUnbounded(quantity.message, param=quantity.param)
            return sum(costs, _NOTHING)

        by_tokens = ((_INPUT_KINDS, most.input_tokens), (_OUTPUT_KINDS, most.output_tokens))
        by_length = (((Dimension.AUDIO_SECOND,), most.audio_seconds), ((Dimension.CHARACTER,), most.characters))
        # A call without any quantity costs only its price per call.
        ways = [parts for parts in (by_tokens, by_length) if any(quantity for _, quantity in parts)]
        costs = [cost for cost in (total(*parts) for parts in ways) if cost is not None]
        if ways and not costs and not (most.is_billed_by_call and Dimension.CALL in self._by_dimension):
            return None
        cost = max(costs, default=_NOTHING) + most.calls * highest([Dimension.CALL])
        return cost.quantize(COST_PLACES, ROUND_CEILING)

    def worst_cost_of_call(self, tool: str) -> Decimal | None:
        """Return the highest cost of a call of a hosted tool; None if the list has no price for it."""
        entries = self._by_dimension.get(Dimension.TOOL_CALL, ())
        found = [entry.amount / entry.per for entry in entries if entry.tool in {"", tool}]
        return max(found).quantize(COST_PLACES, ROUND_CEILING) if found else None

    def usual(self, dimension: Dimension) -> Decimal | None:
        """Return the price of a million units without any condition, or None."""
        entry = next((entry for entry in self._by_dimension.get(dimension, ()) if not _conditions(entry)), None)
        return None if entry is None else entry.amount * MILLION / entry.per

    def at(self, moment: datetime) -> "PriceList":
        """Return the prices that are valid at a moment, without earlier prices that were replaced and future prices."""
        latest: dict[PriceEntry, PriceEntry] = {}
        for entry in self.entries:
            if entry.valid_from is not None and entry.valid_from > moment:
                continue
            key = same_price(entry)
            known = latest.get(key)
            if known is None or _time(known) <= _time(entry):
                latest[key] = entry
        # Each request asks for the current prices, which are usually the whole list.
        return self if (*latest.values(),) == self.entries else PriceList(latest.values())

    def changes(self, *, after: datetime, until: datetime) -> Collection[datetime]:
        """Return the times between two moments at which a price becomes valid, or its hours begin or end."""
        found = {entry.valid_from for entry in self.entries if entry.valid_from is not None}
        edges = {time.fromisoformat(edge) for entry in self.entries if entry.hours for edge in entry.hours.split("-")}
        first = after.astimezone(UTC).date()
        days = range((until.astimezone(UTC).date() - first).days + 1)
        found |= {datetime.combine(first + timedelta(days=day), edge, UTC) for day in days for edge in edges}
        return [moment for moment in found if after < moment <= until]

    def _entry(
        self,
        dimension: Dimension,
        tier: str,
        batch: bool,  # noqa: FBT001
        context: int,
        at: datetime | None,
        detail: str | int,
    ) -> PriceEntry | None:
        for kind in (dimension, *_FALLBACKS.get(dimension, ())):
            entries = self._by_dimension.get(kind, ())
            for entry in entries:
                if (
                    (not entry.service_tier or entry.service_tier == tier)
                    and (batch or not entry.batch)
                    and (not entry.above_tokens or context > entry.above_tokens)
                    and (at is None or entry.valid_from is None or entry.valid_from <= at)
                    and (not entry.hours or _is_in_hours(entry.hours, at))
                    and (not entry.cache_seconds or entry.cache_seconds == detail)
                    and (not entry.tool or entry.tool == detail)
                ):
                    return entry
            if kind == Dimension.CACHE_WRITE and any(entry.cache_seconds for entry in entries):
                # Cache writes of other durations have prices, so this one has an unknown surcharge.
                return None
        return None

    def stored(self) -> list[dict[str, Any]] | None:
        """Return the entries as JSON, or None if there are none."""
        return [entry.stored() for entry in self.entries] or None

    @classmethod
    def restored(cls, stored: Sequence[Mapping[str, Any]] | None) -> "PriceList":
        """Return the list from its JSON."""
        return cls(
            PriceEntry(
                **{
                    **row,
                    "amount": Decimal(row["amount"]),
                    "valid_from": datetime.fromisoformat(row["valid_from"]) if row.get("valid_from") else None,
                }
            )
            for row in stored or ()
        )


def _specificity(entry: PriceEntry) -> tuple[Any, ...]:
    return (
        bool(entry.service_tier),
        entry.batch,
        bool(entry.hours),
        entry.above_tokens,
        bool(entry.tool),
        bool(entry.cache_seconds),
        _time(entry),
    )


def _conditions(entry: PriceEntry) -> tuple[Any, ...]:
    """Return the conditions of an entry that are set, except the start of its validity."""
    values = (entry.tool, entry.service_tier, entry.batch, entry.above_tokens, entry.cache_seconds, entry.hours)
    return tuple(filter(None, values))


def _is_in_hours(hours: str, at: datetime | None) -> bool:
    if at is None:
        return False
    first, _, last = hours.partition("-")
    clock = f"{at.astimezone(UTC):%H:%M}"
    return first <= clock < last if first <= last else clock >= first or clock < last


def _time(entry: PriceEntry) -> float:
    return entry.valid_from.timestamp() if entry.valid_from is not None else float("-inf")


def same_price(entry: PriceEntry) -> PriceEntry:
    """Return the entry without its amount and start of validity. Entries that replace each other become equal."""
    return PriceEntry(
        dimension=entry.dimension,
        amount=_NOTHING,
        tool=entry.tool,
        service_tier=entry.service_tier,
        batch=entry.batch,
        above_tokens=entry.above_tokens,
        cache_seconds=entry.cache_seconds,
        hours=entry.hours,
    )


def _parts(used: Quantities) -> Iterable[tuple[Dimension, Decimal, str | int]]:
    """Yield disjoint parts of the usage: dimension, quantity, and the tool or the seconds of a cache write."""
    # Upstreams sometimes report inconsistent numbers, so each part is limited to the whole.
    cached = min(used.cached_tokens, used.input_tokens)
    written = min(used.cache_write_tokens, used.input_tokens - cached)
    written_1h = min(used.cache_write_1h_tokens, written)
    cached_audio = min(used.cached_audio_tokens, cached, used.input_audio_tokens)
    cached_image = min(used.cached_image_tokens, cached - cached_audio, used.input_image_tokens)
    fresh = used.input_tokens - cached - written
    audio = min(used.input_audio_tokens - cached_audio, fresh)
    image = min(used.input_image_tokens - cached_image, fresh - audio)
    spoken = min(used.output_audio_tokens, used.output_tokens)
    drawn = min(used.output_image_tokens, used.output_tokens - spoken)
    reasoned = min(used.reasoning_tokens, used.output_tokens - spoken - drawn)
    # Tokens take precedence: some upstreams bill a call by its tokens and also report its seconds or characters.
    has_tokens = bool(used.input_tokens or used.output_tokens)
    parts: tuple[tuple[Dimension, float, str | int], ...] = (
        (Dimension.INPUT, fresh - audio - image, ""),
        (Dimension.CACHED_INPUT, cached - cached_audio - cached_image, ""),
        (Dimension.CACHE_WRITE, written - written_1h, CACHE_SECONDS),
        (Dimension.CACHE_WRITE, written_1h, 3600),
        (Dimension.AUDIO_INPUT, audio, ""),
        (Dimension.CACHED_AUDIO_INPUT, cached_audio, ""),
        (Dimension.IMAGE_INPUT, image, ""),
        (Dimension.CACHED_IMAGE_INPUT, cached_image, ""),
        (Dimension.OUTPUT, used.output_tokens - spoken - drawn - reasoned, ""),
        (Dimension.REASONING, reasoned, ""),
        (Dimension.AUDIO_OUTPUT, spoken, ""),
        (Dimension.IMAGE_OUTPUT, drawn, ""),
        (Dimension.AUDIO_SECOND, 0 if has_tokens else used.audio_seconds, ""),
        (Dimension.CHARACTER, 0 if has_tokens else used.characters, ""),
        (Dimension.CALL, used.calls, ""),
        *((Dimension.TOOL_CALL, calls, tool) for tool, calls in used.tool_calls.items()),
        (Dimension.CONTAINER_SECOND, used.container_seconds, ""),
        (Dimension.SEARCH, used.searches, ""),
    )
    for dimension, quantity, detail in parts:
        if quantity:
            # Converted from the text of the number: as a binary float, 0.1 s is not exactly 0.1.
            yield dimension, Decimal(str(quantity)), detail


UNKNOWN = PriceList()
NO_PRICE = "No price"
"""Shown instead of the cost of calls whose model had no price."""


def possible_tiers(requested: str | None) -> frozenset[str] | None:
    """Return the service tiers with which a call may be served; None means all of them.

    If the requested tier is busy, the call is served with the standard tier. "auto" leaves the choice to the upstream.
    """
    if requested is None or requested == "auto":
        return None
    return frozenset({"", requested})


def sum_costs(one: Decimal | None, other: Decimal | None) -> Decimal | None:
    """Return the sum of two costs. An unknown cost counts as zero; the sum of two unknown costs is unknown."""
    if one is None or other is None:
        return other if one is None else one
    return one + other


def plain(value: Decimal) -> str:
    """Return a number without an exponent and trailing zeros."""
    return f"{value.normalize():f}"


def amount(value: Decimal | None) -> str:
    """Format a price or cost for people, with at least two decimal places and no further trailing zeros."""
    if value is None:
        return "–"
    whole, _, places = f"{value:,f}".partition(".")
    return f"${whole}.{places.rstrip('0').ljust(2, '0')}"


def rounded_amount(value: Decimal) -> str:
    """Return an amount in cents, or with two significant digits below one dollar."""
    if value >= 1 or not value:
        return amount(round(value, 2))
    # Most responses cost less than a cent.
    return amount(round(value, 1 - value.adjusted()))


_UNITS = {1: "", 60: " a minute", 1000: " per 1,000", 3600: " an hour", MILLION: " per million"}


def label(stored: Mapping[str, Any]) -> str:
    """Describe the JSON of a price for people: "Input $2.50 per million (flex, above 200,000 tokens)"."""
    per = int(stored.get("per", MILLION))
    conditions = [
        str(stored.get("tool") or ""),
        str(stored.get("service_tier") or ""),
        "batch" if stored.get("batch") else "",
        f"above {stored['above_tokens']:,} tokens" if stored.get("above_tokens") else "",
        f"{stored['cache_seconds'] // 60} minutes" if stored.get("cache_seconds") else "",
        f"{stored['hours']} UTC" if stored.get("hours") else "",
        f"from {stored['valid_from'][:10]}" if stored.get("valid_from") else "",
    ]
    known = ", ".join(filter(None, conditions))
    name = dict(Dimension.choices).get(stored["dimension"], stored["dimension"])
    price = f"{name} {amount(Decimal(stored['amount']))}{_UNITS.get(per, f' per {per:,}')}"
    return f"{price} ({known})" if known else price


class CostField(models.DecimalField[Any, Any]):
    """An amount in US dollars with ten decimal places. None means unknown."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"max_digits": 20, "decimal_places": 10, "blank": True, **options})
