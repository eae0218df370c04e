"""Connecting an upstream with its first models, in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from core.clock import now
from routing import price_updates
from tenants import services
from tenants.models import Upstream
from tenants.prices import PriceList


@dataclass(frozen=True, slots=True, kw_only=True)
class NewModel:
    """A model to add. `prices` None stands for the published ones, if its provider is certain.

    `capabilities` and `place` have the values of `services.add_model`.
    """

    name: str
    upstream_model: str
    capabilities: Mapping[str, Any]
    place: Mapping[str, Any]
    prices: PriceList | None


@transaction.atomic
def connect_upstream(
    *, name: str, base_url: str, api_key: str, wire_api: str, models: Sequence[NewModel], actor: str
) -> Upstream:
    """Add an upstream and its models with prices.

    Raises `services.NameTaken` for the name of an existing upstream, and `ValidationError` for invalid values.
    """
    upstream = services.create_upstream(name=name, base_url=base_url, api_key=api_key, wire_api=wire_api, actor=actor)
    for model in models:
        try:
            row = services.add_model(
                name=model.name,
                upstream=upstream,
                upstream_model=model.upstream_model if model.upstream_model != model.name else "",
                capabilities=model.capabilities,
                place=model.place,
                actor=actor,
            )
        except ValidationError as error:
            raise ValidationError(f"{model.upstream_model}: {' '.join(error.messages)}") from error
        if model.prices is None:
            price_updates.add_listed_prices(row, at=now(), actor=actor)
        elif model.prices:
            services.set_prices(row, model.prices.entries, actor=actor)
    return upstream
