"""Routes: the upstream and its model behind a model name, for each team."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, cast

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import F, OuterRef, Q, Value
from django.db.models.functions import Concat
from typing_extensions import override

from core import clock
from core.basic_auth import PREFIX, split_credentials
from core.crypto import InvalidToken
from core.errors import (
    ModelNotFound,
)
from core.origin import note_model
from core.redaction import redact, secrets_of_url
from core.telemetry import metrics
from tenants import models, scope
from tenants.capabilities import Capabilities
from tenants.directory.cache import CachedLookup
from tenants.directory.target_limits import Restriction, TargetLimits
from tenants.models import (
    Model,
    ModelKey,
    Serves,
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
    def uses_basic_auth(self) -> bool:
        """True if `api_key` is the value of the `Authorization` header."""
        return self.api_key.startswith(PREFIX)

    @property
    def secrets(self) -> list[str]:
        """The credentials that requests to the upstream contain."""
        return [self.api_key, *secrets_of_url(self.base_url)]

    def redacted(self, text: str) -> str:
        """Return the text without these credentials."""
        return redact(text, self.secrets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The upstream, its model, the capabilities and the prices behind a public model name: a target of requests.

    `others` are further targets, in the order in which they are tried: other upstreams of the model, then those of its
    fallback models, whose `model` is the name of the fallback model. Targets with the same `group` share requests by
    `weight`. `serves` and `restriction` have the requests that the target takes.
    """

    model: str
    upstream_model: str
    upstream: UpstreamEndpoint
    capabilities: Capabilities = field(default_factory=Capabilities)
    prices: PriceList = UNKNOWN
    group: int = 0
    weight: int = 1
    serves: str = Serves.ALL.value
    restriction: Restriction | None = None
    limits: TargetLimits | None = None
    others: "tuple[Route, ...]" = ()

    @property
    def targets(self) -> "tuple[Route, ...]":
        """All targets, beginning with this route."""
        return (self, *self.others)

    @staticmethod
    def through(targets: "Sequence[Route]") -> "Route":
        """Return the route through these targets, in this order."""
        first, *others = targets
        return replace(first, others=tuple(replace(target, others=()) for target in others))


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


def allowed_for(key_id: str) -> Q:
    """Return the query condition that selects the models that an API key may use."""
    return Q(keys__isnull=True) | Q(keys=key_id)


SERVED_NAMES = Concat(F("name"), Value("\n"), F("fallback_for"))
"""The names of the public models that a row serves, as one text (`split_names`)."""


KEY_IDS = ArraySubquery(ModelKey.objects.filter(model=OuterRef("pk")).values("api_key_id"))
"""The ids of the API keys to which a row is restricted."""


def split_names(texts: Iterable[str]) -> frozenset[str]:
    """Return the names in values of `SERVED_NAMES`."""
    return frozenset(name for text in texts for name in text.split("\n") if name)


@CachedLookup
def private_names(team_id: str) -> frozenset[str]:
    """Return the names of the models that rows restricted to some teams including this one serve."""
    with scope.every_team():
        own = Model.objects.filter(teams=team_id, enabled=True)
        return split_names(own.values_list(SERVED_NAMES, flat=True))


@CachedLookup
def _shared_route(name: str) -> Route | None:
    """Return the route of a name for all teams that have no restricted model of this name."""
    return _find_route(name, Q(teams__isnull=True), for_team=Q(pk__isnull=True))


@CachedLookup
def _own_route(team_id: str, name: str) -> Route | None:
    return _find_route(name, visible_to(team_id), for_team=Q(teams=team_id))


def _find_route(name: str, visible: Q, *, for_team: Q) -> Route | None:
    # `*` is a wildcard route and not a name that clients may send.
    if name == "*":
        return None
    # Not `scope.team`: row-level security would hide the rows that restrict a model to other teams, and the model would
    # look as if every team could use it.
    with scope.every_team():
        fallbacks = Model.objects.filter(visible, fallback_for=name, enabled=True).exclude(name__in=[name, "*"])
        rows = list(
            Model.objects.filter(visible, Q(name__in=[name, "*"]) | Q(name__in=fallbacks.values("name")), enabled=True)
            .select_related("upstream")
            .annotate(for_team=for_team, key_ids=KEY_IDS)
        )
        targets = _ordered_targets(name, rows)
        if not targets:
            return None
        prices = price_lists([row for _, row in targets])
        groups: dict[tuple[str, int, bool], int] = {}
        routes = []
        for model, row in targets:
            group = groups.setdefault((model, row.priority, row.upstream.is_default), len(groups))
            route = build_route(row, model, row.upstream_model or model, prices)
            if (restriction := Restriction.of(row)) is not None:
                route = replace(route, restriction=restriction)
            routes.append(route if len(targets) == 1 else replace(route, group=group, weight=row.weight))
    return Route.through(routes) if len(routes) > 1 else routes[0]


def _ordered_targets(name: str, rows: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return the targets of a public model in the order in which they are tried, each with its public name."""
    by_name: dict[str, list[Any]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row)
    # The wildcard only serves names without a row of their own.
    wildcards, own_rows = by_name.pop("*", []), by_name.pop(name, [])
    primary = own_rows or wildcards
    targets = [(name, row) for row in _usable(primary)]
    # A request to a private upstream must not be repeated at a public one.
    is_private = any(row.for_team for row in primary)
    fallbacks = [
        (model, usable)
        for model, candidates in by_name.items()
        if (usable := _usable([row for row in candidates if row.for_team or not is_private]))
    ]
    fallbacks.sort(key=lambda entry: _precedence(entry[1][0]))
    return targets + [(model, row) for model, usable in fallbacks for row in usable]


def _usable(rows: Sequence[Any]) -> list[Any]:
    """Return the rows of a name that take new requests, ordered. If the team has rows of its own, only these."""
    own = [row for row in rows if row.for_team]
    return sorted((row for row in own or rows if row.weight), key=_precedence)


def _precedence(row: Any) -> tuple[int, bool, datetime]:
    # The default upstream comes before others of the same priority, and then the oldest row comes first.
    return row.priority, not row.upstream.is_default, row.created_at


@CachedLookup
def wildcard(team_id: str, key_id: str) -> Wildcard | None:
    """Return the route of all model names without their own row, or None. It is that of a team's API key."""
    # Not `scope.team`, for the same reason as in `_find_route`.
    with scope.every_team():
        candidates = Model.objects.filter(visible_to(team_id), allowed_for(key_id), name="*", enabled=True)
        candidates = candidates.select_related("upstream")
        usable = _usable([*candidates.defer("upstream__api_key").annotate(for_team=Q(teams=team_id))])
        if not usable:
            return None
        best = usable[0]
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
        serves=best.serves,
        limits=TargetLimits.of(best),
    )


async def aroute(
    caller: Principal,
    model: str,
    *,
    is_flex: bool = False,
    service_tier: str | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Route:
    """Return the route of a model with all targets that take the request. Only `with_affinity` distributes requests.

    `is_flex` is true for lines of batches and requests with a completion window, which are like requests with the
    service tier `flex`.

    Raises `ModelNotFound`, also for a model that the key may not use.
    """
    note_model(model)
    route = None
    if caller.may_use(model):
        own = await private_names.aget(caller.team_id)
        is_shared = own.isdisjoint((model, "*"))
        route = await (_shared_route.aget(model) if is_shared else _own_route.aget(caller.team_id, model))
    if route is not None and (route.others or route.model != model):
        # A fallback model needs the same permission as the model that it replaces.
        allowed = [
            target
            for target in route.targets
            if target.model == model or (caller.allows_fallback_models and caller.may_use(target.model))
        ]
        route = Route.through(allowed) if allowed else None
    if route is not None and (route.others or route.serves != Serves.ALL or route.restriction is not None):
        tier = Serves.FLEX.value if is_flex else service_tier
        targets = _serving(_allowed(route.targets, model, caller.key_id, metadata or {}), tier)
        route = Route.through(_most_specific_first(targets, model, tier)) if targets else None
    if route is None:
        raise ModelNotFound(model)
    return route


def _allowed(targets: Sequence[Route], model: str, key_id: str, metadata: Mapping[str, str]) -> Sequence[Route]:
    """Return the targets whose restrictions allow a request; none if these are only targets of fallback models.

    A fallback model replaces a model that fails, and not a model that the request may not use.
    """
    allowed = [
        target for target in targets if target.restriction is None or target.restriction.allows(key_id, metadata)
    ]
    is_refused = allowed and allowed[0].model != model and targets[0].model == model
    return [] if is_refused else allowed


def _serving(targets: Sequence[Route], tier: str | None) -> Sequence[Route]:
    """Return the targets that take requests of a service tier."""
    if tier == Serves.PRIORITY:
        refusing = {Serves.FLEX}
    elif tier != Serves.FLEX:
        refusing = {Serves.FLEX, Serves.PRIORITY}
    elif any(target.serves == Serves.FLEX for target in targets):
        refusing = {Serves.DEFAULT, Serves.PRIORITY}
    else:
        # None is marked for these requests, so they are like others.
        refusing = {Serves.PRIORITY}
    return [target for target in targets if target.serves not in refusing]


def _most_specific_first(targets: Sequence[Route], model: str, tier: str | None) -> Sequence[Route]:
    """Return the targets with those first that name more about the request: its key, metadata or service tier."""
    if not any(target.restriction is not None or target.serves == tier for target in targets):
        return targets

    def place(target: Route) -> tuple[bool, int, int]:
        conditions = 0 if target.restriction is None else target.restriction.count
        return target.model != model, -conditions - (target.serves == tier), target.group

    ordered = sorted(targets, key=place)
    # Targets of one priority are several groups if only some of them name something.
    groups = {key: number for number, key in enumerate(dict.fromkeys(map(place, ordered)))}
    return [replace(target, group=groups[place(target)]) for target in ordered]


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
    # Not `scope.team`, for the same reason as in `_find_route`.
    with scope.every_team():
        found = Model.objects.filter(visible_to(team_id), upstream=upstream_id, name__in=[model, "*"], enabled=True)
        best = max(found.select_related("upstream"), key=lambda row: row.name == model, default=None)
        return build_route(best, model, upstream_model, price_lists([best])) if best is not None else None


def list_models(caller: Principal) -> list[dict[str, Any]]:
    """Return the public objects of the models that the caller may use, without the wildcard `*`, by name."""
    with scope.every_team():
        found = Model.objects.filter(visible_to(caller.team_id), allowed_for(caller.key_id), enabled=True)
        found = found.exclude(name="*")
        # Deferred, as one upstream key that can no longer be decrypted must not break the list for every team.
        found = found.select_related("upstream").defer("upstream__api_key")
        by_name: dict[str, list[Model]] = {}
        for model in found.order_by("created_at"):
            by_name.setdefault(model.name, []).append(model)
    return [
        {
            "id": name,
            "object": "model",
            "created": clock.unix(targets[0].created_at),
            "owned_by": targets[0].upstream.name,
            "shutdown_date": _shutdown_date(targets),
        }
        for name, targets in sorted(by_name.items())
        if caller.may_use(name)
    ]


def _shutdown_date(targets: Sequence[Model]) -> str | None:
    """Return the date of the last target, or None if one of them has no date: the model is served until then."""
    dates = [target.shutdown_date for target in targets if target.shutdown_date is not None]
    return max(dates).isoformat() if len(dates) == len(targets) else None


def planned_targets(name: str, rows: Sequence[Any], *, is_flex: bool = False) -> Sequence[Route]:
    """Return the targets of a public model in the order in which requests try them, for rows that may be unsaved.

    `rows` have the columns of `Model`, and `for_team` is true for those that are restricted to the team. The routes
    have neither credentials nor prices.
    """
    groups: dict[tuple[str, int, bool], int] = {}
    routes = [
        Route(
            model=model,
            upstream_model=row.upstream_model or model,
            upstream=UpstreamEndpoint(id=row.upstream.id, base_url="", api_key="", name=row.upstream.name),
            group=groups.setdefault((model, row.priority, row.upstream.is_default), len(groups)),
            weight=row.weight,
            serves=row.serves,
        )
        for model, row in _ordered_targets(name, rows)
    ]
    tier = Serves.FLEX.value if is_flex else None
    return _most_specific_first(_serving(routes, tier), name, tier)
