"""Setting prices by command, and comparing the prices of models with those that their providers publish."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from django.db import transaction

from routing import price_catalog
from routing.price_catalog import SOURCE, ListedModel
from tenants import scope, services
from tenants.models import Model, ModelVisibility
from tenants.prices import TOKEN_DIMENSIONS, PriceEntry, PriceList, same_price


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceComparison:
    """The prices of a model beside the published ones.

    `changed` has pairs of the present and the published price. `kept` are prices that people entered and that an update
    leaves as they are.
    """

    model: Model
    listed: ListedModel
    prices: PriceList
    added: tuple[PriceEntry, ...]
    changed: tuple[tuple[PriceEntry, PriceEntry], ...]
    removed: tuple[PriceEntry, ...]
    kept: tuple[PriceEntry, ...]

    @property
    def is_current(self) -> bool:
        """Return whether an update would change nothing."""
        return not (self.added or self.changed or self.removed)


def is_listed(entry: PriceEntry) -> bool:
    """Return whether an entry comes from the published prices, not from a person."""
    return entry.source.partition(" ")[0] == SOURCE


def compare(model: Model, *, at: datetime) -> PriceComparison | None:
    """Compare the prices of a model with the published ones; None if its provider or the model is not known."""
    listed = price_catalog.find(model.upstream.base_url, model.upstream_model or model.name, at=at)
    if listed is None:
        return None
    present = model.prices().entries
    kept = tuple(entry for entry in present if not is_listed(entry))
    taken = {_condition(entry) for entry in kept}
    # Where people entered all prices of tokens, published ones for some tiers would contradict them.
    tokens = [entry for entry in present if entry.dimension in TOKEN_DIMENSIONS]
    leaves_tokens = bool(tokens) and not any(map(is_listed, tokens))
    published = {
        _condition(entry): entry
        for entry in listed.prices.entries
        if _condition(entry) not in taken and not (leaves_tokens and entry.dimension in TOKEN_DIMENSIONS)
    }
    old = {_condition(entry): entry for entry in present if is_listed(entry)}
    return PriceComparison(
        model=model,
        listed=listed,
        prices=PriceList([*published.values(), *kept]),
        added=tuple(entry for key, entry in published.items() if key not in old),
        changed=tuple((old[key], entry) for key, entry in published.items() if key in old and _differ(old[key], entry)),
        removed=tuple(entry for key, entry in old.items() if key not in published),
        kept=kept,
    )


def apply(comparison: PriceComparison, *, actor: str = "system") -> None:
    """Apply the published prices to a model, without touching prices that people entered."""
    services.set_prices(comparison.model, comparison.prices.entries, actor=actor)


def add_listed_prices(model: Model, *, at: datetime, actor: str = "system") -> bool:
    """Give a new model the published prices. Return whether there are any."""
    comparison = compare(model, at=at)
    if comparison is None or comparison.is_current:
        return False
    apply(comparison, actor=actor)
    return True


@transaction.atomic
def set_token_prices(model: Model, prices: PriceList, *, actor: str = "system") -> None:
    """Replace all prices of a model's tokens, under any condition. Prices of calls, tools and time remain."""
    others = [entry for entry in model.prices().entries if entry.dimension not in TOKEN_DIMENSIONS]
    services.set_prices(model, [*prices.entries, *others], actor=actor)


def model_of_wildcard(wildcard: Model, name: str) -> Model:
    """Create the model of a name that the route `*` serves, with the same upstream, capabilities and teams."""
    with transaction.atomic(), scope.every_team():
        teams = list(wildcard.teams.values_list("pk", flat=True))
        made = Model.objects.get(pk=wildcard.pk)
        made.pk, made.name = None, name
        made._state.adding = True  # noqa: SLF001 - Django's documented way to copy a row
        made.save()
        ModelVisibility.objects.bulk_create(ModelVisibility(model=made, team_id=team) for team in teams)
    return made


def models(names: Iterable[str] = (), *, upstream: str = "") -> list[Model]:
    """Return the models of these names, or all, with their upstreams and prices."""
    found = Model.objects.select_related("upstream").defer("upstream__api_key").prefetch_related("price_entries")
    if names:
        found = found.filter(name__in=list(names))
    if upstream:
        found = found.filter(upstream__name=upstream)
    with scope.every_team():
        return list(found.order_by("name", "upstream__name"))


def _condition(entry: PriceEntry) -> PriceEntry:
    return replace(same_price(entry), valid_from=entry.valid_from)


def _differ(one: PriceEntry, other: PriceEntry) -> bool:
    return one.amount * Decimal(other.per) != other.amount * Decimal(one.per)
