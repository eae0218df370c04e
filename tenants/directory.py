"""Keys and model routes, looked up in the database and remembered for a second.

One second, and no invalidation to get wrong: a revoked key, a changed route, a renamed model are known everywhere
within that time (the promise is two), and a busy key costs one query a second per process.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Generic, TypeVar

from django.conf import settings
from django.db.models import Q
from typing_extensions import override

from kernel import clock
from kernel.crypto import keyed_digest
from kernel.db_threads import in_db_thread
from kernel.errors import Forbidden, ModelNotFound, Unauthorized
from kernel.origin import origin
from tenants import models, scope
from tenants.capabilities import Capabilities
from tenants.models import ApiKey, Connector, Guardrail, Model, SearchEngine, SearchKind, Team, ToolKind, WireApi
from tenants.prices import Prices
from tenants.principal import Principal

CACHE_SECONDS = 1.0
_MAX_ENTRIES = 10_000
_TOUCH_EVERY = timedelta(minutes=1)

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamEndpoint:
    """Where to send a model's requests. `base_url` ends in /v1; `api_key` is plain, so this value is never logged."""

    id: str
    base_url: str
    api_key: str
    wire_api: str = WireApi.CHAT_COMPLETIONS.value

    @override
    def __repr__(self) -> str:
        return f"UpstreamEndpoint({self.id!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A public model name, and what answers for it."""

    model: str
    upstream_model: str
    upstream: UpstreamEndpoint
    capabilities: Capabilities = field(default_factory=Capabilities)
    prices: Prices = field(default_factory=Prices)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """Where a connector leads, and with what; the operator's secrets."""

    url: str = field(repr=False)
    authorization: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEngineSettings:
    """A search engine for a team; the operator's secrets. An empty `base_url` is that of the public service."""

    kind: str
    base_url: str = field(default="", repr=False)
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailSettings:
    """What a team's responses are held to; an empty checker looks at nothing. The hook is the team's secret."""

    input_checker: str
    input_action: str
    output_checker: str
    output_action: str
    model: str
    hook_url: str = field(repr=False)
    hook_secret: str = field(repr=False)
    fails_open: bool


class CachedLookup(Generic[Found]):
    """A look-up by a tuple of strings whose results, None included, are kept for `CACHE_SECONDS`."""

    def __init__(self, look_up: Callable[..., Found]) -> None:
        self._look_up = look_up
        self._entries: dict[tuple[str, ...], tuple[float, Found]] = {}
        self._lock = threading.Lock()

    def get(self, *name: str) -> Found:
        """The result, from memory or from the database, for synchronous callers."""
        entry = self._fresh(name)
        return entry[0] if entry else self._keep(name, self._look_up(*name))

    async def aget(self, *name: str) -> Found:
        """The same from the event loop; only a miss leaves it."""
        entry = self._fresh(name)
        return entry[0] if entry else await in_db_thread(lambda: self.get(*name))

    def _fresh(self, name: tuple[str, ...]) -> tuple[Found] | None:
        entry = self._entries.get(name)
        return (entry[1],) if entry and entry[0] > time.monotonic() else None

    def _keep(self, name: tuple[str, ...], found: Found) -> Found:
        with self._lock:
            if len(self._entries) >= _MAX_ENTRIES:
                self._entries.clear()
            self._entries[name] = (time.monotonic() + CACHE_SECONDS, found)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Secret:
    """A secret that leads to a key: the one that it has, or the one that it had before it was rotated."""

    key: ApiKey
    is_old: bool
    networks: tuple[IPv4Network | IPv6Network, ...]

    @property
    def used_at(self) -> datetime | None:
        """When it was last used, as far as this process has heard."""
        return self.key.old_used_at if self.is_old else self.key.last_used_at


def _find_key(digest: str) -> _Secret | None:
    with scope.every_team():
        known = ApiKey.objects.select_related("team").filter(Q(digest=digest) | Q(old_digest=digest))
        key = known.first()
    if key is None:
        return None
    networks = tuple(ip_network(each, strict=False) for each in key.allowed_addresses or ())
    return _Secret(key=key, is_old=key.digest != digest, networks=networks)


def _find_key_by_id(key_id: str) -> ApiKey | None:
    with scope.every_team():
        return ApiKey.objects.select_related("team").filter(pk=key_id).first()


def _find_route(team_id: str, name: str) -> Route | None:
    """The route of a name: its own before `*`, the team's before everybody's, the default upstream's before others."""
    visible = Q(teams__isnull=True) | Q(teams=team_id)
    # Not `scope.team`: it would hide that a model belongs to other teams, and so make it everybody's.
    with scope.every_team():
        candidates = list(
            Model.objects.filter(visible, name__in=[name, "*"], enabled=True)
            .select_related("upstream")
            .annotate(for_team=Q(teams=team_id))
            .order_by("created_at")
        )
    if not candidates or name == "*":
        return None
    best = max(candidates, key=lambda m: (m.name == name, bool(m.for_team), m.upstream.is_default))
    return _route(best, name, best.upstream_model or name)


def route_of(model: Model, name: str) -> Route:
    """The route through this very row, whoever may use it and whether or not it is enabled."""
    return _route(model, name, model.upstream_model or name)


def upstream_of(server: "models.Upstream") -> UpstreamEndpoint:
    """Where this upstream is, and with what it is asked."""
    return UpstreamEndpoint(id=server.id, base_url=server.base_url, api_key=server.api_key, wire_api=server.wire_api)


def _route(best: Model, name: str, upstream_model: str) -> Route:
    upstream = upstream_of(best.upstream)
    return Route(
        model=name,
        upstream_model=upstream_model,
        upstream=upstream,
        capabilities=best.capabilities(),
        prices=best.prices(),
    )


def _find_connector(team_id: str, name: str) -> McpServer | None:
    visible = Q(teams__isnull=True) | Q(teams=team_id)
    # Not `scope.team`, for the reason given above.
    with scope.every_team():
        found = Connector.objects.filter(visible, name=name, enabled=True).first()
    return McpServer(url=found.url, authorization=found.authorization) if found else None


def _find_search(team_id: str) -> SearchEngineSettings | None:
    """A team's own engine before everybody's, and that before the one of the server's configuration."""
    visible = Q(teams__isnull=True) | Q(teams=team_id)
    # Not `scope.team`, for the reason given above.
    with scope.every_team():
        found = SearchEngine.objects.filter(visible, enabled=True).annotate(for_team=Q(teams=team_id))
        best = max(found.order_by("-created_at"), key=lambda one: bool(one.for_team), default=None)
    if best is not None:
        return SearchEngineSettings(kind=best.kind, base_url=best.base_url, api_key=best.api_key)
    if settings.SEARXNG_URL:
        return SearchEngineSettings(kind=SearchKind.SEARXNG.value, base_url=settings.SEARXNG_URL)
    return None


def _find_image_model(team_id: str) -> str:
    """A team's own model for images, or that of the server's configuration; empty: neither."""
    with scope.every_team():
        own = Team.objects.values_list("image_model", flat=True).filter(pk=team_id).first()
    return own or settings.IMAGE_MODEL


def _find_guard(team_id: str) -> GuardrailSettings | None:
    with scope.every_team():
        found = Guardrail.objects.filter(pk=team_id).first()
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


# When the use of a secret is news again, by key and whether it is the old one.
_noted: dict[tuple[str, bool], float] = {}
_keys = CachedLookup(_find_key)
_keys_by_id = CachedLookup(_find_key_by_id)
_routes = CachedLookup(_find_route)
_connectors = CachedLookup(_find_connector)
_searches = CachedLookup(_find_search)
_image_models = CachedLookup(_find_image_model)
_guards = CachedLookup(_find_guard)


def principal(bearer: str) -> Principal:
    """Who this key belongs to; 401 for unknown, revoked, disabled and expired ones, 403 for one that is used from
    where it may not be."""
    secret = _known(_keys.get(keyed_digest(bearer)))
    admitted = _admit_secret(secret)
    if _is_news(secret):
        _note_use(secret)
    return admitted


async def aprincipal(bearer: str) -> Principal:
    """`principal` from the event loop."""
    secret = _known(await _keys.aget(keyed_digest(bearer)))
    admitted = _admit_secret(secret)
    if _is_news(secret):
        await in_db_thread(lambda: _note_use(secret))
    return admitted


async def aprincipal_by_id(key_id: str) -> Principal:
    """Who a key belongs to that was given earlier, for work that is done later; 401 where it would be refused now."""
    return _admit(_known(await _keys_by_id.aget(key_id)))


async def aroute(caller: Principal, model: str) -> Route:
    """Where the model's requests go; one that the key may not use is answered like one that does not exist."""
    route = await _routes.aget(caller.team_id, model) if caller.may_use(model) else None
    if route is None:
        raise ModelNotFound(model)
    return route


async def aconnector(caller: Principal, name: str) -> McpServer | None:
    """The server that the caller's team may use by this `connector_id`; None: there is none."""
    return await _connectors.aget(caller.team_id, name)


async def asearch_engine(team_id: str) -> SearchEngineSettings | None:
    """The search engine of a team; None: it has none."""
    return await _searches.aget(team_id)


def search_engine(team_id: str) -> SearchEngineSettings | None:
    """`asearch_engine` for synchronous callers."""
    return _searches.get(team_id)


async def aimage_model(team_id: str) -> str:
    """The model that makes a team's images where a request names none; empty: there is none."""
    return await _image_models.aget(team_id)


async def aguardrails(team_id: str) -> GuardrailSettings | None:
    """What a team's responses are held to; None: nothing."""
    return await _guards.aget(team_id)


def guardrails(team_id: str) -> GuardrailSettings | None:
    """`aguardrails` for synchronous callers."""
    return _guards.get(team_id)


def principal_of_run(key_id: str) -> Principal:
    """Who made a request that is worked on later. Raises the 401 of a key that was revoked meanwhile; one that has
    only expired was good when it was used."""
    with scope.every_team():
        key = ApiKey.objects.select_related("team").get(pk=key_id)
    if key.revoked_at is not None:
        raise Unauthorized("The API key that created this response was revoked before the response had ended.")
    _refuse_stopped(key)
    return _principal(key)


def route_of_run(*, team_id: str, model: str, upstream_id: str, upstream_model: str) -> Route:
    """The route that a request took which is worked on later, with what the model can do by now. Raises the 404 of a
    model that its upstream does not answer for any more."""
    visible = Q(teams__isnull=True) | Q(teams=team_id)
    with scope.every_team():
        found = Model.objects.filter(visible, upstream=upstream_id, name__in=[model, "*"], enabled=True)
        best = max(found.select_related("upstream"), key=lambda one: one.name == model, default=None)
    if best is None:
        raise ModelNotFound(model)
    return _route(best, model, upstream_model)


def list_models(caller: Principal) -> list[dict[str, Any]]:
    """The named models that the caller may use, as `GET /v1/models` shows them; `*` is a route, not a name."""
    with scope.every_team():
        visible = Q(teams__isnull=True) | Q(teams=caller.team_id)
        found = Model.objects.filter(visible, enabled=True).exclude(name="*").select_related("upstream")
        # One key that cannot be decrypted any more must not take the list from everybody.
        found = found.defer("upstream__api_key")
        by_name = {model.name: model for model in found.order_by("-created_at")}
    return [
        {"id": name, "object": "model", "created": clock.unix(model.created_at), "owned_by": model.upstream.name}
        for name, model in sorted(by_name.items())
        if caller.may_use(name)
    ]


def _known(found: Found | None) -> Found:
    if found is None:
        raise Unauthorized("Incorrect API key provided.")
    return found


def _admit_secret(secret: _Secret) -> Principal:
    key = secret.key
    if secret.is_old and (key.old_until is None or key.old_until <= clock.now()):
        message = "The secret of this API key was replaced by a new one, and does not work any more."
        raise Unauthorized(message, code="api_key_expired")
    admitted = _admit(key)
    if secret.networks and not _is_within(origin().address, secret.networks):
        raise Forbidden("This API key may not be used from your address.", code="ip_not_allowed")
    return admitted


def _is_within(address: str, networks: tuple[IPv4Network | IPv6Network, ...]) -> bool:
    """An address that nobody knows is in no network."""
    return bool(address) and any(ip_address(address) in network for network in networks)


def _admit(key: ApiKey) -> Principal:
    if key.revoked_at is not None:
        raise Unauthorized("This API key has been revoked.", code="api_key_revoked")
    if key.expires_at is not None and key.expires_at <= clock.now():
        raise Unauthorized("This API key has expired.", code="api_key_expired")
    _refuse_stopped(key)
    return _principal(key)


def _refuse_stopped(key: ApiKey) -> None:
    """What somebody has switched off, and may switch on again."""
    if key.disabled_at is not None:
        raise Unauthorized("This API key is disabled.", code="api_key_disabled")
    if key.team.suspended_at is not None:
        raise Forbidden("The team of this API key is suspended.", code="team_suspended")


def _is_news(secret: _Secret) -> bool:
    """Whether the use of a secret is to be noted: once a minute, whatever the key's row said a second ago."""
    used_at, name = secret.used_at, (secret.key.pk, secret.is_old)
    if used_at is not None and clock.now() - used_at <= _TOUCH_EVERY:
        return False
    if time.monotonic() < _noted.get(name, 0):
        return False
    if len(_noted) >= _MAX_ENTRIES:
        _noted.clear()
    _noted[name] = time.monotonic() + _TOUCH_EVERY.total_seconds()
    return True


def _note_use(secret: _Secret) -> None:
    present, sender = clock.now(), origin()
    used: dict[str, Any] = {"last_used_at": present, "last_used_address": sender.address}
    used["last_used_agent"] = sender.agent.replace("\x00", "")
    if secret.is_old:
        used["old_used_at"] = present
    with scope.every_team():
        ApiKey.objects.filter(pk=secret.key.pk).update(**used)


def _both(team: list[str], key: list[str]) -> frozenset[str]:
    """What a team and its key both allow."""
    if ToolKind.ALL.value in key:
        return frozenset(team)
    return frozenset(key) if ToolKind.ALL.value in team else frozenset(team) & frozenset(key)


def _principal(key: ApiKey) -> Principal:
    return Principal(
        team_id=key.team_id,
        key_id=key.pk,
        scopes=frozenset(key.scopes),
        allowed_models=frozenset(key.allowed_models) if key.allowed_models else None,
        tools=_both(key.team.tools, key.tools),
        expires_at=key.expires_at,
        grace_seconds=key.team.disconnect_grace_seconds,
    )
