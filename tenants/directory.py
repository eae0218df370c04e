"""Lookups of keys, model routes and team settings, cached for one to two seconds.

A short lifetime needs no invalidation: every process learns of a revoked key or a changed route within two seconds, and
a busy key costs each process one or two queries per second.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Generic, TypeVar, cast

from django.conf import settings
from django.contrib.postgres.expressions import ArraySubquery
from django.db import Error as DatabaseError
from django.db.models import Exists, OuterRef, Q
from typing_extensions import override

from core import clock
from core.basic_auth import split_credentials
from core.crypto import InvalidToken, keyed_digest
from core.db import wait_limit
from core.db.db_threads import in_db_thread
from core.errors import (
    AddressNotAllowed,
    KeyDisabled,
    KeyExpired,
    KeyRevoked,
    ModelNotFound,
    TeamSuspended,
    Unauthorized,
)
from core.origin import origin
from core.redaction import secrets_of_url
from core.telemetry import metrics
from tenants import models, scope
from tenants.capabilities import Capabilities
from tenants.models import (
    ADMIN_KEY_PREFIX,
    AdminKey,
    ApiKey,
    Connector,
    Guardrail,
    LimitSet,
    Model,
    ModelPolicy,
    SearchEngine,
    SearchKind,
    Team,
    ToolKind,
    UnknownUsage,
    WireApi,
)
from tenants.models.limits import EVERY_END_USER, LIMITS
from tenants.prices import UNKNOWN, PriceEntry, PriceList
from tenants.principal import BudgetLimit, Principal, SubjectKind, SubjectLimits

logger = logging.getLogger(__name__)
CACHE_SECONDS = 1.0
# On event loops, results are used longer, because a lookup takes 30 to 100 ms in a busy process: its thread
# waits for the interpreter lock after each query. Two seconds are promised, of which the lookup itself takes some.
_LONGEST_USE_SECONDS = 1.8
# A result that was used is looked up again after the first time; a use after the second time renews any other result.
_RENEWAL_SECONDS, _LATE_RENEWAL_SECONDS = 0.9, 1.2
# Bounds memory when clients send many unknown keys or model names.
_MAX_ENTRIES = 10_000
# Not on every request: the update would make the key's row a bottleneck.
_TOUCH_EVERY = timedelta(minutes=1)

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamEndpoint:
    """Address, credentials and name of an upstream. `base_url` ends in /v1; `api_key` is plain text: never log it.

    Instead of a key, it may be the `Authorization` header of basic authentication.
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
    """The route `*` of a team: every name that no model of its own claims goes to this upstream.

    With an `upstream_model`, all names stand for that model.
    """

    upstream: UpstreamEndpoint
    owner: str
    created: datetime
    upstream_model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """Address and credentials of a connector, which are the operator's secrets."""

    url: str = field(repr=False)
    authorization: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEngineSettings:
    """Search engine of a team, with the operator's secrets. An empty `base_url` means the public service."""

    kind: str
    base_url: str = field(default="", repr=False)
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailSettings:
    """Guardrail of a team. An empty checker checks nothing. Address and secret of the hook are the team's secrets."""

    input_checker: str
    input_action: str
    output_checker: str
    output_action: str
    model: str
    hook_url: str = field(repr=False)
    hook_secret: str = field(repr=False)
    fails_open: bool


class CachedLookup(Generic[Found]):
    """Decorator of a lookup by strings: its results, including None, are cached for `CACHE_SECONDS`."""

    def __init__(self, look_up: Callable[..., Found]) -> None:
        self._look_up = look_up
        # Each result with the time at which its lookup began: later changes are not in it.
        self._entries: dict[tuple[str, ...], tuple[float, Found]] = {}
        self._lock = threading.Lock()
        # Names that were used on an event loop since their last lookup.
        self._used: set[tuple[str, ...]] = set()
        self._active: dict[tuple[object, ...], asyncio.Task[Found]] = {}

    def __call__(self, *name: str) -> Found:
        entry = self._entries.get(name)
        if entry is not None and time.monotonic() - entry[0] < CACHE_SECONDS:
            return entry[1]
        return self._renew(*name)

    def _renew(self, *name: str) -> Found:
        began = time.monotonic()
        found = self._look_up(*name)
        self.remember(found, *name, at=began)
        return found

    def remember(self, found: Found, *name: str, at: float) -> None:
        """Store a result that was looked up together with others, by a lookup that began at this monotonic time."""
        with self._lock:
            # Clearing everything is cheap: entries live for a second anyway.
            if len(self._entries) >= _MAX_ENTRIES:
                self._entries.clear()
                self._used.clear()
            if name not in self._entries or self._entries[name][0] <= at:
                self._entries[name] = (at, found)

    def missing(self, names: Iterable[tuple[str, ...]]) -> set[tuple[str, ...]]:
        """Return the names whose results are not cached."""
        after = time.monotonic() - CACHE_SECONDS
        return {name for name in names if name not in self._entries or self._entries[name][0] <= after}

    async def aget(self, *name: str) -> Found:
        """Return the result on the event loop. Only a miss switches to a thread, once for all concurrent callers.

        A result that is in use is looked up again before it expires, and used meanwhile.
        """
        entry = self._entries.get(name)
        age = _LONGEST_USE_SECONDS if entry is None else time.monotonic() - entry[0]
        if entry is not None and age < _LONGEST_USE_SECONDS:
            self._used.add(name)
            if age > _LATE_RENEWAL_SECONDS:
                _ = self._renewed(name)
            return entry[1]
        # Shielded: a client that disconnects must not cancel the lookup of the others.
        return await wait_limit.within_limit(asyncio.shield(self._renewed(name)))

    def _renewed(self, name: tuple[str, ...]) -> "asyncio.Task[Found]":
        loop = asyncio.get_running_loop()
        active = self._active.get((loop, *name))
        if active is None:
            self._used.discard(name)
            lookup = in_db_thread(lambda: self._renew(*name))
            active = self._active[loop, *name] = loop.create_task(lookup, context=wait_limit.separate())
            active.add_done_callback(partial(self._ended, loop, name))
        return active

    def _ended(self, loop: asyncio.AbstractEventLoop, name: tuple[str, ...], lookup: "asyncio.Task[Found]") -> None:
        del self._active[loop, *name]
        # Marks the exception as retrieved: nothing may have waited for it. The next lookup raises its own.
        if not lookup.cancelled() and lookup.exception() is None:
            loop.call_later(_RENEWAL_SECONDS, self._renew_if_used, name, context=Context())

    def _renew_if_used(self, name: tuple[str, ...]) -> None:
        # At most one lookup for each use, as without renewals.
        if name in self._used:
            _ = self._renewed(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Secret:
    """The secret a client sent: the key's current one, or the one before its last rotation."""

    key: ApiKey | AdminKey
    principal: Principal
    is_old: bool
    networks: tuple[IPv4Network | IPv6Network, ...]

    @property
    def used_at(self) -> datetime | None:
        """Time of the last recorded use, as of the cached row."""
        return self.key.old_used_at if isinstance(self.key, ApiKey) and self.is_old else self.key.last_used_at


@CachedLookup
def _key(digest: str) -> _Secret | None:
    at = time.monotonic()
    # Reads the key with the data that every request of the team needs next. With 1,000 teams hardly any lookup is
    # cached, and three transactions instead of one kept the database threads busy with 70 requests per second.
    own_names = Model.objects.filter(teams=OuterRef("team_id"), enabled=True).values("name")
    keys = ApiKey.objects.select_related("team").annotate(
        own_names=ArraySubquery(own_names), has_guardrail=Exists(Guardrail.objects.filter(pk=OuterRef("team_id")))
    )
    with scope.every_team():
        key = keys.filter(Q(digest=digest) | Q(old_digest=digest)).annotate(has_limits=_HAS_LIMITS).first()
        limits = _limits_of([key]) if key is not None else {}
    if key is None:
        return None
    _own_names.remember(frozenset(key.own_names), key.team_id, at=at)
    if not key.has_guardrail:
        guardrails.remember(None, key.team_id, at=at)
    # Made here, once per lookup and not per request.
    networks = tuple(ip_network(address, strict=False) for address in key.allowed_addresses or ())
    return _Secret(key=key, principal=_principal(key, limits), is_old=key.digest != digest, networks=networks)


@CachedLookup
def _admin_key(digest: str) -> _Secret | None:
    key = AdminKey.objects.filter(digest=digest).first()
    if key is None:
        return None
    caller = Principal(
        team_id="",
        key_id=key.pk,
        scopes=frozenset(key.scopes),
        allowed_models=frozenset(),
        tools=frozenset(),
        expires_at=key.expires_at,
        grace_seconds=0,
    )
    networks = tuple(ip_network(address, strict=False) for address in key.allowed_addresses or ())
    return _Secret(key=key, principal=caller, is_old=False, networks=networks)


def _table_of(bearer: str) -> CachedLookup[_Secret | None]:
    """Return the lookup of the table in which a key is stored."""
    return _admin_key if bearer.startswith(ADMIN_KEY_PREFIX) else _key


@CachedLookup
def _key_by_id(key_id: str) -> "tuple[ApiKey, Limits] | None":
    with scope.every_team():
        key = ApiKey.objects.select_related("team").annotate(has_limits=_HAS_LIMITS).filter(pk=key_id).first()
        return (key, _limits_of([key])) if key is not None else None


Limits = Mapping[str, Sequence[LimitSet]]
"""The limit sets of teams and of some of their keys, by team."""

_HAS_LIMITS = Exists(LimitSet.objects.filter(team=OuterRef("team_id")))


def _limits_of(keys: Iterable[Any]) -> Limits:
    """Return the limit sets of keys, of their teams and of the end users of these. One query, or none without limits.

    The keys are annotated with `has_limits`. Only one of the end users with limits of their own is included, as
    there may be many.
    """
    keys = list(keys)
    limited, teams = {key.pk for key in keys if key.has_limits}, {key.team_id for key in keys if key.has_limits}
    if not limited:
        return {}
    shared = Q(api_key=None, end_user__in=["", EVERY_END_USER])
    one_each = LimitSet.objects.filter(team__in=teams).exclude(end_user__in=["", EVERY_END_USER])
    own = Q(pk__in=one_each.order_by("team").distinct("team").values("pk"))
    found: dict[str, list[LimitSet]] = {}
    rows = LimitSet.objects.filter(Q(team__in=teams) & (shared | Q(api_key__in=limited)) | own)
    for row in rows.prefetch_related("budgets"):
        found.setdefault(row.team_id, []).append(row)
    return found


@CachedLookup
def end_user_limits(team_id: str, end_user: str) -> SubjectLimits | None:
    """Return the limits that an end user of a team has of its own, or None."""
    with scope.team(team_id):
        found = LimitSet.objects.filter(team=team_id, end_user=end_user).prefetch_related("budgets").first()
        return subject_limits(found) if found is not None else None


def subject_limits(found: LimitSet) -> SubjectLimits:
    """Return a row of limits, with its budgets, as the value that requests carry."""
    kind: SubjectKind = "key" if found.api_key_id else "end_user" if found.end_user else "team"
    values = {name: value for name in LIMITS if (value := getattr(found, name)) is not None}
    budgets = tuple(
        BudgetLimit(
            period=budget.period,
            amount=budget.amount,
            is_hard=budget.is_hard,
            allows_unknown_prices=budget.allow_unknown_prices,
        )
        for budget in sorted(found.budgets.all(), key=lambda budget: budget.pk)
    )
    return SubjectLimits(
        kind=kind, id=found.api_key_id or found.end_user or found.team_id, values=values, budgets=budgets
    )


def _visible_to(team_id: str) -> Q:
    return Q(teams__isnull=True) | Q(teams=team_id)


@CachedLookup
def _own_names(team_id: str) -> frozenset[str]:
    """Return the names of the models that only some teams may use, this one among them."""
    with scope.every_team():
        return frozenset(Model.objects.filter(teams=team_id, enabled=True).values_list("name", flat=True))


@CachedLookup
def _shared_route(name: str) -> Route | None:
    """Return the route of a name for all teams without a model of their own for it."""
    return _best_route(name, Q(teams__isnull=True), for_team=Q(pk__isnull=True))


@CachedLookup
def _own_route(team_id: str, name: str) -> Route | None:
    return _best_route(name, _visible_to(team_id), for_team=Q(teams=team_id))


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
        return _route(best, name, best.upstream_model or name, _price_lists([best]))


def _precedence(model: Any) -> tuple[bool, bool]:
    # Exact names before `*`, the team's models before those of every team, the default upstream before others; then the
    # oldest, as max() returns the first of equals.
    return bool(model.for_team), model.upstream.is_default


@CachedLookup
def wildcard(team_id: str) -> Wildcard | None:
    """Return the route of all names that no model of its own claims, or None."""
    # Not `scope.team`, for the same reason as in `_best_route`.
    with scope.every_team():
        candidates = Model.objects.filter(_visible_to(team_id), name="*", enabled=True).select_related("upstream")
        candidates = candidates.defer("upstream__api_key").annotate(for_team=Q(teams=team_id)).order_by("created_at")
        best = max(candidates, key=_precedence, default=None)
        if best is None:
            return None
        try:
            endpoint = upstream_of(best.upstream)
        except InvalidToken:
            # Its calls fail, and so would a request for its models. Lists of models must not.
            return None
    return Wildcard(
        upstream=endpoint, owner=best.upstream.name, created=best.created_at, upstream_model=best.upstream_model
    )


def route_of(model: Model, name: str) -> Route:
    """Return the route through this row, even if it is disabled; for test calls by operators."""
    return _route(model, name, model.upstream_model or name, _price_lists([model]))


def upstream_of(server: "models.Upstream") -> UpstreamEndpoint:
    """Return address and credentials of an upstream."""
    # Earlier versions stored credentials in the URL.
    base_url, basic = split_credentials(server.base_url)
    return UpstreamEndpoint(
        id=server.id, base_url=base_url, api_key=server.api_key or basic, wire_api=server.wire_api, name=server.name
    )


def upstreams(*, limit: int) -> list[UpstreamEndpoint]:
    """Return the oldest upstreams."""
    with scope.every_team():
        return [upstream_of(upstream) for upstream in models.Upstream.objects.order_by("created_at")[:limit]]


def _price_lists(found: Collection[Model]) -> Mapping[int, PriceList]:
    """Return the prices of models by their key."""
    # Not prefetched: rows that refer to each other are garbage that only the collector frees.
    entries: dict[int, list[PriceEntry]] = {model.pk: [] for model in found}
    for row in models.Price.objects.filter(model__in=[*entries]).order_by("pk"):
        entries[cast("int", row.model_id)].append(row.entry())
    return {pk: PriceList(rows) for pk, rows in entries.items()}


def _route(best: Model, name: str, upstream_model: str, prices: Mapping[int, PriceList]) -> Route:
    if best.name == name:
        metrics.add_model(name)
    return Route(
        model=name,
        upstream_model=upstream_model,
        upstream=upstream_of(best.upstream),
        capabilities=best.capabilities(),
        prices=prices[best.pk],
    )


@CachedLookup
def connector(team_id: str, name: str) -> McpServer | None:
    """Return the MCP server of a `connector_id`, or None if the team has no connector of that name."""
    # Not `scope.team`, for the same reason as in `_best_route`.
    with scope.every_team():
        found = Connector.objects.filter(_visible_to(team_id), name=name, enabled=True).first()
    return McpServer(url=found.url, authorization=found.authorization) if found else None


@CachedLookup
def search_engine(team_id: str) -> SearchEngineSettings | None:
    """Return the search engine of a team, or None."""
    # Not `scope.team`, for the same reason as in `_best_route`.
    with scope.every_team():
        found = SearchEngine.objects.filter(_visible_to(team_id), enabled=True).annotate(for_team=Q(teams=team_id))
        # The team's own engine before shared ones; the server's configuration is the last resort.
        best = max(found.order_by("-created_at"), key=lambda engine: bool(engine.for_team), default=None)
    if best is not None:
        return SearchEngineSettings(kind=best.kind, base_url=best.base_url, api_key=best.api_key)
    if settings.SEARXNG_URL:
        return SearchEngineSettings(kind=SearchKind.SEARXNG.value, base_url=settings.SEARXNG_URL)
    return None


@CachedLookup
def image_model(team_id: str) -> str:
    """Return the team's default image model, else that of the server's configuration, else an empty string."""
    with scope.every_team():
        own = Team.objects.values_list("image_model", flat=True).filter(pk=team_id).first()
    return own or settings.IMAGE_MODEL


@CachedLookup
def summary_model(team_id: str) -> str:
    """Return the team's model for summaries of reasoning, else that of the server, else an empty string."""
    with scope.every_team():
        own = Team.objects.values_list("summary_model", flat=True).filter(pk=team_id).first()
    return own or settings.REASONING_SUMMARY_MODEL


@CachedLookup
def bills_estimates(team_id: str) -> bool:
    """Return whether a team is billed for calls whose usage is unknown, by the estimate."""
    with scope.team(team_id):
        policy = Team.objects.values_list("unknown_usage", flat=True).filter(pk=team_id).first()
    return policy != UnknownUsage.FREE


@CachedLookup
def tool_prices() -> PriceList:
    """Return the prices of the platform's hosted tools, which apply where a model has none of its own."""
    return PriceList(row.entry() for row in models.Price.objects.filter(model=None).order_by("pk"))


@CachedLookup
def guardrails(team_id: str) -> GuardrailSettings | None:
    """Return the guardrail of a team, or None."""
    with scope.every_team():
        found = Guardrail.objects.filter(pk=team_id).first()
    return _guardrail(found)


def _guardrail(found: Guardrail | None) -> GuardrailSettings | None:
    if found is None:
        return None
    return GuardrailSettings(
        input_checker=found.input_checker,
        input_action=found.input_action,
        output_checker=found.output_checker,
        output_action=found.output_action,
        model=found.model,
        hook_url=found.hook_url,
        hook_secret=found.hook_secret,
        fails_open=found.fails_open,
    )


# Monotonic time from which the use of a secret is recorded again, by key id and whether it is the old secret. As the
# cached row is up to a second old, every request within that second would otherwise write.
_next_touch: dict[tuple[str, bool], float] = {}


def principal(bearer: str) -> Principal:
    """Authenticate an API key.

    Raises `Unauthorized` for unknown, revoked, disabled and expired keys, and `Forbidden` for suspended teams and
    addresses from which the key may not be used.
    """
    secret = _require_key(_table_of(bearer)(keyed_digest(bearer)))
    caller = _check_secret(secret)
    if _touch_is_due(secret):
        _record_uses([_Use.of(secret)])
    return caller


async def aprincipal(bearer: str) -> Principal:
    """Like `principal`, for the event loop."""
    secret = _require_key(await _table_of(bearer).aget(keyed_digest(bearer)))
    caller = _check_secret(secret)
    if _touch_is_due(secret):
        _uses.add(_Use.of(secret))
    return caller


async def aprincipal_by_id(key_id: str) -> Principal:
    """Return the principal of a key for deferred work. Raises `Unauthorized` if the key would be refused now."""
    key, limits = _require_key(await _key_by_id.aget(key_id))
    _check_key(key)
    return _principal(key, limits)


async def awith_limits(principal: Principal) -> Principal:
    """Return a principal with the limits of its key, for calls inside a run, to which the key's rights do not apply."""
    found = await _key_by_id.aget(principal.key_id)
    if found is None:
        return principal
    own = _principal(*found)
    return replace(
        principal, limits=own.limits, limits_some_end_users=own.limits_some_end_users, time_zone=own.time_zone
    )


async def aroute(caller: Principal, model: str) -> Route:
    """Return the route of a model. Raises `ModelNotFound`, also for a model that the key may not use."""
    route = None
    if caller.may_use(model):
        own = await _own_names.aget(caller.team_id)
        is_shared = own.isdisjoint((model, "*"))
        route = await (_shared_route.aget(model) if is_shared else _own_route.aget(caller.team_id, model))
    if route is None:
        raise ModelNotFound(model)
    return route


def principal_of_run(key_id: str) -> Principal:
    """Return the principal of the key that created a background response.

    Raises `Unauthorized` for a key that was revoked since then. A key that has only expired remains valid for requests
    that it made before.
    """
    key, limits = _require_key(_key_by_id(key_id))
    if key.revoked_at is not None:
        raise Unauthorized("The API key that created this response was revoked before the response had ended.")
    _check_enabled(key)
    return _principal(key, limits)


def route_of_run(*, team_id: str, model: str, upstream_id: str, upstream_model: str) -> Route:
    """Return the route that a background response was created with, with the model's current capabilities.

    Raises `ModelNotFound` if the upstream no longer serves the model for this team.
    """
    route = _route_of_run(team_id, model, upstream_id, upstream_model)
    if route is None:
        raise ModelNotFound(model)
    return route


def look_up_runs(runs: Collection[tuple[str, str, str, str, str]]) -> None:
    """Look up the keys, guardrails and routes that many runs are about to need, all at once.

    A run is given by its key, team, model, upstream and model of the upstream. At most five queries, two more
    if a team has limits, and none for what was looked up within the last second.
    """
    at = time.monotonic()
    keys = _key_by_id.missing((key_id,) for key_id, *_ in runs)
    teams = guardrails.missing((team_id,) for _, team_id, *_ in runs)
    routes = _route_of_run.missing(tuple(route) for _, *route in runs)
    if not (keys or teams or routes):
        return
    with scope.every_team():
        wanted = ApiKey.objects.select_related("team").annotate(has_limits=_HAS_LIMITS)
        found_keys = wanted.in_bulk([key_id for (key_id,) in keys])
        limits = _limits_of(found_keys.values())
        found_guardrails = Guardrail.objects.in_bulk([team_id for (team_id,) in teams])
        upstream_ids, names = {route[2] for route in routes}, {"*", *(route[1] for route in routes)}
        served = Model.objects.filter(upstream__in=upstream_ids, name__in=names, enabled=True)
        served = served.select_related("upstream").prefetch_related("teams")
        try:
            candidates = list(served) if routes else []
            prices = _price_lists(candidates)
        except InvalidToken:
            # Each run then looks up its route itself, so that a key that cannot be decrypted fails only its own runs.
            candidates, routes, prices = [], set(), {}
    for (key_id,) in keys:
        key = found_keys.get(key_id)
        _key_by_id.remember((key, limits) if key is not None else None, key_id, at=at)
    for (team_id,) in teams:
        guardrails.remember(_guardrail(found_guardrails.get(team_id)), team_id, at=at)
    visible = [(row, {team.pk for team in row.teams.all()}) for row in candidates]
    for team_id, model, upstream_id, upstream_model in routes:
        mine = [
            row
            for row, only in visible
            if row.upstream_id == upstream_id and row.name in {model, "*"} and (not only or team_id in only)
        ]
        best = max(mine, key=lambda row: row.name == model, default=None)
        route = _route(best, model, upstream_model, prices) if best is not None else None
        _route_of_run.remember(route, team_id, model, upstream_id, upstream_model, at=at)


@CachedLookup
def _route_of_run(team_id: str, model: str, upstream_id: str, upstream_model: str) -> Route | None:
    # Not `scope.team`, for the same reason as in `_best_route`.
    with scope.every_team():
        found = Model.objects.filter(_visible_to(team_id), upstream=upstream_id, name__in=[model, "*"], enabled=True)
        best = max(found.select_related("upstream"), key=lambda row: row.name == model, default=None)
        return _route(best, model, upstream_model, _price_lists([best])) if best is not None else None


def list_models(caller: Principal) -> list[dict[str, Any]]:
    """Return the public objects of the models that the caller may use, without the wildcard `*`, by name."""
    with scope.every_team():
        found = Model.objects.filter(_visible_to(caller.team_id), enabled=True).exclude(name="*")
        # Deferred, as one upstream key that can no longer be decrypted must not break the list for every team.
        found = found.select_related("upstream").defer("upstream__api_key")
        by_name = {model.name: model for model in found.order_by("-created_at")}
    return [
        {"id": name, "object": "model", "created": clock.unix(model.created_at), "owned_by": model.upstream.name}
        for name, model in sorted(by_name.items())
        if caller.may_use(name)
    ]


def _require_key(found: Found | None) -> Found:
    if found is None:
        raise Unauthorized("Incorrect API key provided.")
    return found


def _check_secret(secret: _Secret) -> Principal:
    key = secret.key
    if isinstance(key, ApiKey) and secret.is_old and (key.old_until is None or key.old_until <= clock.shared_now()):
        raise KeyExpired("This API key was rotated and its old secret has expired.")
    sender = origin()
    # Set even for a key that is refused below: the access log shows its team and id.
    if sender.request_id:
        sender.caller.team_id, sender.caller.key_id = secret.principal.team_id, key.pk
    _check_key(key)
    address = sender.address
    # An unknown address is in no network.
    if secret.networks and not (address and any(ip_address(address) in network for network in secret.networks)):
        raise AddressNotAllowed
    return secret.principal


def _check_key(key: ApiKey | AdminKey) -> None:
    if key.revoked_at is not None:
        raise KeyRevoked
    if key.expires_at is not None and key.expires_at <= clock.shared_now():
        raise KeyExpired
    if isinstance(key, ApiKey):
        _check_enabled(key)


def _check_enabled(key: ApiKey) -> None:
    if key.disabled_at is not None:
        raise KeyDisabled
    if key.team.suspended_at is not None:
        raise TeamSuspended


def _touch_is_due(secret: _Secret) -> bool:
    """Return true at most once a minute per secret and process, and reserve that minute."""
    used_at, name = secret.used_at, (secret.key.pk, secret.is_old)
    if used_at is not None and clock.now() - used_at <= _TOUCH_EVERY:
        return False
    if time.monotonic() < _next_touch.get(name, 0):
        return False
    if len(_next_touch) >= _MAX_ENTRIES:
        _next_touch.clear()
    _next_touch[name] = time.monotonic() + _TOUCH_EVERY.total_seconds()
    return True


@dataclass(frozen=True, slots=True)
class _Use:
    """A use of a key: its table and id, and the columns of its row to update."""

    table: type[ApiKey | AdminKey]
    key_id: str
    values: Mapping[str, Any]

    @classmethod
    def of(cls, secret: _Secret) -> "_Use":
        """Return the use by the current request."""
        present, sender = clock.now(), origin()
        # PostgreSQL cannot store NUL.
        used = {"last_used_address": sender.address, "last_used_agent": sender.agent.replace("\x00", "")}
        return cls(
            type(secret.key),
            secret.key.pk,
            {**used, "last_used_at": present, **({"old_used_at": present} if secret.is_old else {})},
        )


def _record_uses(uses: Iterable[_Use]) -> None:
    # In the order of the keys, so that processes that record the same ones do not deadlock.
    with scope.every_team():
        for use in sorted(uses, key=lambda use: use.key_id):
            use.table.objects.filter(pk=use.key_id).update(**use.values)


class _Uses:
    """The uses of keys that wait to be recorded; requests do not wait. A thousand keys cause 17 uses a second."""

    def __init__(self) -> None:
        self._waiting: list[_Use] = []
        self._recording: asyncio.Task[None] | None = None

    def add(self, use: _Use) -> None:
        """Record a use soon, together with other uses that are added while earlier ones are recorded."""
        self._waiting.append(use)
        loop = asyncio.get_running_loop()
        if self._recording is None or self._recording.done() or self._recording.get_loop() is not loop:
            self._recording = loop.create_task(self._record(), context=wait_limit.unrelated())

    async def _record(self) -> None:
        while self._waiting:
            uses, self._waiting = self._waiting, []
            try:
                await in_db_thread(partial(_record_uses, uses))
            except DatabaseError:
                logger.warning("the use of %d keys could not be recorded", len(uses))


_uses = _Uses()


def _principal(key: ApiKey, limits: Limits) -> Principal:
    sets = [limit_set for limit_set in limits.get(key.team_id, ()) if limit_set.api_key_id in {None, key.pk}]
    team, own, every = frozenset(key.team.tools), frozenset(key.tools), ToolKind.ALL.value
    allowed_models = frozenset(key.allowed_models) if key.allowed_models else None
    denied_models: frozenset[str] = frozenset()
    if key.team.model_policy == ModelPolicy.ALLOW_LIST:
        names = frozenset(key.team.model_names)
        allowed_models = names if allowed_models is None else allowed_models & names
    elif key.team.model_policy == ModelPolicy.DENY_LIST:
        denied_models = frozenset(key.team.model_names)
    return Principal(
        team_id=key.team_id,
        key_id=key.pk,
        scopes=frozenset(key.scopes),
        allowed_models=allowed_models,
        denied_models=denied_models,
        # `*` means every tool, including tools that are added later.
        tools=team if every in own else own if every in team else team & own,
        expires_at=key.expires_at,
        grace_seconds=key.team.disconnect_grace_seconds,
        rejects_unavailable_tools=key.team.reject_unavailable_tools,
        continues_without_servers=key.team.continue_without_mcp_servers,
        limits=tuple(subject_limits(limit_set) for limit_set in sets if limit_set.end_user in {"", EVERY_END_USER}),
        limits_some_end_users=any(limit_set.end_user not in {"", EVERY_END_USER} for limit_set in sets),
        time_zone=key.team.time_zone,
        weight=key.team.weight,
        bills_estimates=key.team.unknown_usage != UnknownUsage.FREE,
    )
