"""Routes: the upstream and its model behind a model name, for each team."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from django.db.models import Q
from typing_extensions import override

from core import clock
from core.basic_auth import split_credentials
from core.crypto import InvalidToken
from core.errors import (
    ModelNotFound,
)
from core.redaction import secrets_of_url
from core.telemetry import metrics
from tenants import models, scope
from tenants.capabilities import Capabilities
from tenants.directory.cache import CachedLookup
from tenants.models import (
    Model,
    WireApi,
)
from tenants.prices import UNKNOWN, PriceEntry, PriceList
from tenants.principal import Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamEndpoint:
    """Address, credentials and name of an upstream. `base_url` ends in /v1; `api_key` is plain text: never log it.

    For basic authentication, `api_key` is the value of the `Authorization` header instead of a key.
    """

    id: str
    base_url: str
    api_key: str
    wire_api: str = WireApi.CHAT_COMPLETIONS.value
    name: str = ""

    @override
    def __repr__(self) -> str:
        return f"UpstreamEndpoint({self.id!r})"

    @property
    def speaks_responses(self) -> bool:
        """True if the upstream serves the Responses API, false if it serves chat completions."""
        return self.wire_api == WireApi.RESPONSES

    @property
    def secrets(self) -> list[str]:
        """The credentials that requests to the upstream contain."""
        return [self.api_key, *secrets_of_url(self.base_url)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The upstream, its model, the capabilities and the prices behind a public model name."""

    model: str
    upstream_model: str
    upstream: UpstreamEndpoint
    capabilities: Capabilities = field(default_factory=Capabilities)
    prices: PriceList = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Wildcard:
    """The route `*` of a team: the upstream that receives every model name without its own row.

    If `upstream_model` is set, all these names stand for that model.
    """

    upstream: UpstreamEndpoint
    owner: str
    created: datetime
    upstream_model: str


def visible_to(team_id: str) -> Q:
    """Return the query condition that selects the models, connectors or search engines that a team may use."""
    return Q(teams__isnull=True) | Q(teams=team_id)


@CachedLookup
def private_names(team_id: str) -> frozenset[str]:
    """Return the names of the models that are restricted to some teams including this one."""
    with scope.every_team():
        return frozenset(Model.objects.filter(teams=team_id, enabled=True).values_list("name", flat=True))


@CachedLookup
def _shared_route(name: str) -> Route | None:
    """Return the route of a name for all teams that have no restricted model of this name."""
    return _best_route(name, Q(teams__isnull=True), for_team=Q(pk__isnull=True))


@CachedLookup
def _own_route(team_id: str, name: str) -> Route | None:
    return _best_route(name, visible_to(team_id), for_team=Q(teams=team_id))


def _best_route(name: str, visible: Q, *, for_team: Q) -> Route | None:
    # Not `scope.team`: row-level security would hide the rows that restrict a model to other teams, and the model would
    # look as if every team could use it.
    with scope.every_team():
        candidates = list(
            Model.objects.filter(visible, name__in=[name, "*"], enabled=True)
            .select_related("upstream")
            .annotate(for_team=for_team)
            .order_by("created_at")
        )
        # `*` is a wildcard route and not a name that clients may send.
        if not candidates or name == "*":
            return None
        best = max(candidates, key=lambda m: (m.name == name, *_precedence(m)))
        return build_route(best, name, best.upstream_model or name, price_lists([best]))


def _precedence(model: Any) -> tuple[bool, bool]:
    # The team's models come before the models of every team, and the default upstream before others. Then the oldest
    # model comes first, as max() returns the first of equals.
    return bool(model.for_team), model.upstream.is_default


@CachedLookup
def wildcard(team_id: str) -> Wildcard | None:
    """Return the route of all model names without their own row, or None."""
    # Not `scope.team`, for the same reason as in `_best_route`.
    with scope.every_team():
        candidates = Model.objects.filter(visible_to(team_id), name="*", enabled=True).select_related("upstream")
        candidates = candidates.defer("upstream__api_key").annotate(for_team=Q(teams=team_id)).order_by("created_at")
        best = max(candidates, key=_precedence, default=None)
        if best is None:
            return None
        try:
            endpoint = upstream_of(best.upstream)
        except InvalidToken:
            # The key of the upstream cannot be decrypted, so its calls fail. Lists of models must not fail.
            return None
    return Wildcard(
        upstream=endpoint, owner=best.upstream.name, created=best.created_at, upstream_model=best.upstream_model
    )


def route_of(model: Model, name: str) -> Route:
    """Return the route through this model's row, even if the model is disabled; for test calls by operators."""
    return build_route(model, name, model.upstream_model or name, price_lists([model]))


def upstream_of(server: "models.Upstream") -> UpstreamEndpoint:
    """Return address and credentials of an upstream."""
    # Earlier versions stored credentials in the URL.
    base_url, basic = split_credentials(server.base_url)
    return UpstreamEndpoint(
        id=server.id, base_url=base_url, api_key=server.api_key or basic, wire_api=server.wire_api, name=server.name
    )


def upstreams(*, limit: int) -> list[UpstreamEndpoint]:
    """Return the oldest upstreams, up to `limit`."""
    with scope.every_team():
        return [upstream_of(upstream) for upstream in models.Upstream.objects.order_by("created_at")[:limit]]


def price_lists(found: Collection[Model]) -> Mapping[int, PriceList]:
    """Return the prices of models, by primary key."""
    # Not prefetched: rows that refer to each other can be freed only by the garbage collector.
    entries: dict[int, list[PriceEntry]] = {model.pk: [] for model in found}
    for row in models.Price.objects.filter(model__in=[*entries]).order_by("pk"):
        entries[cast("int", row.model_id)].append(row.entry())
    return {pk: PriceList(rows) for pk, rows in entries.items()}


def build_route(best: Model, name: str, upstream_model: str, prices: Mapping[int, PriceList]) -> Route:
    """Return the route of a name through a model's row, with the prices from `price_lists`."""
    if best.name == name:
        metrics.add_model(name)
    return Route(
        model=name,
        upstream_model=upstream_model,
        upstream=upstream_of(best.upstream),
        capabilities=best.capabilities(),
        prices=prices[best.pk],
    )


async def aroute(caller: Principal, model: str) -> Route:
    """Return the route of a model. Raises `ModelNotFound`, also for a model that the key may not use."""
    route = None
    if caller.may_use(model):
        own = await private_names.aget(caller.team_id)
        is_shared = own.isdisjoint((model, "*"))
        route = await (_shared_route.aget(model) if is_shared else _own_route.aget(caller.team_id, model))
    if route is None:
        raise ModelNotFound(model)
    return route


def route_of_run(*, team_id: str, model: str, upstream_id: str, upstream_model: str) -> Route:
    """Return the route with which a background response was created, with the model's current capabilities.

    Raises `ModelNotFound` if the upstream no longer serves the model for this team.
    """
    route = run_route(team_id, model, upstream_id, upstream_model)
    if route is None:
        raise ModelNotFound(model)
    return route


@CachedLookup
def run_route(team_id: str, model: str, upstream_id: str, upstream_model: str) -> Route | None:
    """Return the route with which a run was created, or None if the upstream no longer serves the model."""
    # Not `scope.team`, for the same reason as in `_best_route`.
    with scope.every_team():
        found = Model.objects.filter(visible_to(team_id), upstream=upstream_id, name__in=[model, "*"], enabled=True)
        best = max(found.select_related("upstream"), key=lambda row: row.name == model, default=None)
        return build_route(best, model, upstream_model, price_lists([best])) if best is not None else None


def list_models(caller: Principal) -> list[dict[str, Any]]:
    """Return the public objects of the models that the caller may use, without the wildcard `*`, by name."""
    with scope.every_team():
        found = Model.objects.filter(visible_to(caller.team_id), enabled=True).exclude(name="*")
        # Deferred, as one upstream key that can no longer be decrypted must not break the list for every team.
        found = found.select_related("upstream").defer("upstream__api_key")
        by_name = {model.name: model for model in found.order_by("-created_at")}
    return [
        {"id": name, "object": "model", "created": clock.unix(model.created_at), "owned_by": model.upstream.name}
        for name, model in sorted(by_name.items())
        if caller.may_use(name)
    ]
