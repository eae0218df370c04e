"""API keys: authentication, limits, and the record of their last use."""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

from django.contrib.postgres.expressions import ArraySubquery
from django.db import Error as DatabaseError
from django.db.models import Exists, OuterRef, Q

from core import clock
from core.crypto import keyed_digest
from core.db import wait_limit
from core.db.db_threads import in_db_thread
from core.errors import (
    AddressNotAllowed,
    KeyDisabled,
    KeyExpired,
    KeyRevoked,
    TeamSuspended,
    Unauthorized,
)
from core.origin import origin
from tenants import scope
from tenants.directory.cache import MAX_ENTRIES, CachedLookup, Found
from tenants.directory.routes import SERVED_NAMES, private_names, split_names
from tenants.directory.team_settings import guardrails
from tenants.models import (
    ADMIN_KEY_PREFIX,
    AdminKey,
    ApiKey,
    Guardrail,
    LimitSet,
    Model,
    ModelPolicy,
    ToolKind,
    UnknownUsage,
)
from tenants.models.limits import EVERY_END_USER, LIMITS
from tenants.principal import BudgetLimit, Principal, SubjectKind, SubjectLimits

logger = logging.getLogger(__name__)

# Not on every request: the update would make the key's row a bottleneck.
_TOUCH_EVERY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Secret:
    """The secret that a client sent: the current secret of the key, or the secret before the last rotation."""

    key: ApiKey | AdminKey
    principal: Principal
    is_old: bool
    networks: tuple[IPv4Network | IPv6Network, ...]

    @property
    def used_at(self) -> datetime | None:
        """Time of the last recorded use, according to the cached row."""
        return self.key.old_used_at if isinstance(self.key, ApiKey) and self.is_old else self.key.last_used_at


@CachedLookup
def _key(digest: str) -> _Secret | None:
    at = time.monotonic()
    # Reads the key together with the data that every request of the team needs next. With 1,000 teams, hardly any
    # lookup is cached: with three transactions instead of one, 70 requests per second kept the database threads busy.
    own_names = Model.objects.filter(teams=OuterRef("team_id"), enabled=True).values(served=SERVED_NAMES)
    keys = ApiKey.objects.select_related("team").annotate(
        own_names=ArraySubquery(own_names), has_guardrail=Exists(Guardrail.objects.filter(pk=OuterRef("team_id")))
    )
    with scope.every_team():
        key = keys.filter(Q(digest=digest) | Q(old_digest=digest)).annotate(has_limits=HAS_LIMITS).first()
        limits = limits_of([key]) if key is not None else {}
    if key is None:
        return None
    private_names.remember(split_names(key.own_names), key.team_id, at=at)
    if not key.has_guardrail:
        guardrails.remember(None, key.team_id, at=at)
    # Parsed here, once per lookup and not for each request.
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
def key_by_id(key_id: str) -> "tuple[ApiKey, Limits] | None":
    """Return a key with the limits that apply to it, or None."""
    with scope.every_team():
        key = ApiKey.objects.select_related("team").annotate(has_limits=HAS_LIMITS).filter(pk=key_id).first()
        return (key, limits_of([key])) if key is not None else None


Limits = Mapping[str, Sequence[LimitSet]]
"""The limit sets of teams and of some of their keys and end users, by team id."""


HAS_LIMITS = Exists(LimitSet.objects.filter(team=OuterRef("team_id")))


def limits_of(keys: Iterable[Any]) -> Limits:
    """Return the limit sets of these keys, of their teams and of the teams' end users, by team id.

    The keys must be annotated with `has_limits`; without limits, no query is executed. Of the end users with their own
    limits, only one per team is included, as there may be many.
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
    """Return the limits that are set for this end user of a team, or None."""
    with scope.team(team_id):
        found = LimitSet.objects.filter(team=team_id, end_user=end_user).prefetch_related("budgets").first()
        return subject_limits(found) if found is not None else None


def subject_limits(found: LimitSet) -> SubjectLimits:
    """Convert a row of limits and its budgets to the value that a `Principal` contains."""
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


# Monotonic time from which the use of a secret is recorded again, by key id and by "is the old secret". As the
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
    key, limits = _require_key(await key_by_id.aget(key_id))
    _check_key(key)
    return _principal(key, limits)


async def awith_limits(principal: Principal) -> Principal:
    """Return a principal with the limits of its key, for calls inside a run, to which the key's rights do not apply."""
    found = await key_by_id.aget(principal.key_id)
    if found is None:
        return principal
    own = _principal(*found)
    return replace(
        principal, limits=own.limits, limits_some_end_users=own.limits_some_end_users, time_zone=own.time_zone
    )


def principal_of_run(key_id: str) -> Principal:
    """Return the principal of the key that created a background response.

    Raises `Unauthorized` if the key has been revoked since. An expired key remains valid for its earlier requests.
    """
    key, limits = _require_key(key_by_id(key_id))
    if key.revoked_at is not None:
        raise Unauthorized("The API key that created this response was revoked before the response had ended.")
    _check_enabled(key)
    return _principal(key, limits)


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
    """Return true if the use of a secret must be recorded: at most once a minute for each secret and process."""
    used_at, name = secret.used_at, (secret.key.pk, secret.is_old)
    if used_at is not None and clock.now() - used_at <= _TOUCH_EVERY:
        return False
    if time.monotonic() < _next_touch.get(name, 0):
        return False
    if len(_next_touch) >= MAX_ENTRIES:
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
    # In the order of the keys, so that processes that record uses of the same keys do not deadlock.
    with scope.every_team():
        for use in sorted(uses, key=lambda use: use.key_id):
            use.table.objects.filter(pk=use.key_id).update(**use.values)


class _Uses:
    """Records uses of keys in the background, so that requests do not wait. 1,000 keys cause 17 uses per second."""

    def __init__(self) -> None:
        self._waiting: list[_Use] = []
        self._recording: asyncio.Task[None] | None = None

    def add(self, use: _Use) -> None:
        """Queue a use, which is recorded together with others as soon as earlier uses have been recorded."""
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
        requires_approval=frozenset(key.team.require_approval),
        waits_for_approval=key.team.wait_for_approval,
        allows_fallback_models=key.team.allow_fallback_models,
        limits=tuple(subject_limits(limit_set) for limit_set in sets if limit_set.end_user in {"", EVERY_END_USER}),
        limits_some_end_users=any(limit_set.end_user not in {"", EVERY_END_USER} for limit_set in sets),
        time_zone=key.team.time_zone,
        weight=key.team.weight,
        bills_estimates=key.team.unknown_usage != UnknownUsage.FREE,
    )
