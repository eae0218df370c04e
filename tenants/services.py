"""Changes of teams, API keys, upstreams and their models. Each is one transaction that includes its audit line."""

import secrets
import string
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from core.basic_auth import split_credentials
from core.clock import now, shared_now
from core.crypto import keyed_digest
from tenants import scope
from tenants.audit import audit
from tenants.capabilities import Capabilities
from tenants.models import (
    ADMIN_KEY_PREFIX,
    AdminKey,
    AdminScope,
    ApiKey,
    AuditEvent,
    KeySource,
    Model,
    Price,
    Scope,
    ServiceAccount,
    Team,
    ToolKind,
    Upstream,
    WireApi,
)
from tenants.prices import PriceEntry, PriceList

_ALPHABET = string.ascii_letters + string.digits
_PUBLIC_LENGTH = 8
# 43 of 62 characters contain 256 bits.
_SECRET_LENGTH = 43
_DRAINED = "model.drained"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A new or rotated key. `secret` exists only here: it is shown once, and only its HMAC is stored."""

    key: ApiKey
    secret: str


def ensure_team(*, name: str, actor: str = "system") -> Team:
    """Return the team of this name, and create it if it does not exist."""
    with scope.every_team():
        team, made = Team.objects.get_or_create(name=name)
        if made:
            audit(team_id=team.pk, actor=actor, action="team.created", target=team.pk, after={"name": name})
    return team


class NameTaken(Exception):
    """Another object of the same kind has this name."""


def create_team(*, name: str, actor: str) -> Team:
    """Create a team. Raises `NameTaken`."""
    with scope.every_team():
        team, made = Team.objects.get_or_create(name=name)
        if not made:
            raise NameTaken
        audit(team_id=team.pk, actor=actor, action="team.created", target=team.pk, after={"name": name})
    return team


def update_team(*, team: Team, values: Mapping[str, Any], actor: str) -> Team:
    """Change fields of a team. Raises `NameTaken`."""
    with scope.every_team():
        row = Team.objects.select_for_update(no_key=True).get(pk=team.pk)
        after = {name: value for name, value in values.items() if value != getattr(row, name)}
        if after:
            before = {name: getattr(row, name) for name in after}
            for name, value in after.items():
                setattr(row, name, value)
            try:
                with transaction.atomic():
                    row.save(update_fields=list(after))
            except IntegrityError as error:
                raise NameTaken from error
            audit(team_id=row.pk, actor=actor, action="team.updated", target=row.pk, before=before, after=after)
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySpec:
    """Fields of a new key. It may use all models of its team and any address unless `allowed_…` restricts them."""

    name: str
    purpose: str = ""
    scopes: Sequence[str] = (Scope.ALL.value,)
    allowed_models: Sequence[str] | None = None
    tools: Sequence[str] = (ToolKind.ALL.value,)
    allowed_addresses: Sequence[str] | None = None
    expires_at: datetime | None = None
    source: KeySource = KeySource.PERSON
    created_by: int | None = None
    service_account: ServiceAccount | None = None


def create_key(*, team: Team, spec: KeySpec, actor: str = "system") -> NewKey:
    """Create a key and record it in the audit log."""
    new = unsaved_key(team=team, spec=spec)
    with scope.team(team.pk):
        new.key.save(force_insert=True)
        after = {"name": spec.name, "scopes": list(spec.scopes), "prefix": new.key.prefix}
        audit(team_id=team.pk, actor=actor, action="api_key.created", target=new.key.pk, after=after)
    return new


def unsaved_key(*, team: Team, spec: KeySpec) -> NewKey:
    """Return a key with a new secret. The key is not stored."""
    secret = _new_secret()
    key = ApiKey(
        team=team,
        name=spec.name,
        purpose=spec.purpose,
        source=spec.source,
        scopes=list(spec.scopes),
        allowed_models=list(spec.allowed_models) if spec.allowed_models else None,
        tools=list(spec.tools),
        allowed_addresses=list(spec.allowed_addresses) if spec.allowed_addresses else None,
        expires_at=spec.expires_at,
        created_by_id=spec.created_by,
        service_account=spec.service_account,
        digest=keyed_digest(secret),
        prefix=_prefix(secret),
        last_four=secret[-4:],
    )
    return NewKey(key=key, secret=secret)


def create_service_account(
    *, team: Team, name: str, with_key: bool, expires_at: datetime | None = None, actor: str
) -> tuple[ServiceAccount, NewKey | None]:
    """Create a service account, with a first key or with the role `none`. `expires_at` is the expiry of the key."""
    with scope.team(team.pk):
        account = ServiceAccount.objects.create(team=team, name=name, role="member" if with_key else "none")
        after = {"name": name, "role": account.role}
        audit(team_id=team.pk, actor=actor, action="service_account.created", target=account.pk, after=after)
        key = None
        if with_key:
            # OpenAI gives the first key of a service account this name.
            spec = KeySpec(name="Secret Key", expires_at=expires_at, service_account=account)
            key = create_key(team=team, spec=spec, actor=actor)
    return account, key


def update_service_account(
    *, account: ServiceAccount, name: str | None = None, role: str | None = None, actor: str
) -> ServiceAccount:
    """Change the name or the role of a service account; None leaves them unchanged."""
    changes = {"name": name, "role": role}
    after = {key: value for key, value in changes.items() if value is not None and value != getattr(account, key)}
    if after:
        before = {key: getattr(account, key) for key in after}
        with scope.team(account.team_id):
            ServiceAccount.objects.filter(pk=account.pk).update(**after)
            _audit_account(account, "updated", actor, before=before, after=after)
        for key, value in after.items():
            setattr(account, key, value)
    return account


def delete_service_account(*, account: ServiceAccount, actor: str) -> None:
    """Delete a service account and revoke its keys. The row is kept, because records refer to it."""
    with scope.team(account.team_id):
        if not ServiceAccount.objects.filter(pk=account.pk, deleted_at=None).update(deleted_at=now()):
            return
        for key in ApiKey.objects.filter(service_account=account, revoked_at=None):
            revoke_key(key=key, actor=actor)
        _audit_account(account, "deleted", actor, before={"name": account.name})


def _audit_account(
    account: ServiceAccount,
    verb: str,
    actor: str,
    *,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    action = f"service_account.{verb}"
    audit(team_id=account.team_id, actor=actor, action=action, target=account.pk, before=before, after=after)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAdminKey:
    """A new admin key. `secret` exists only here."""

    key: AdminKey
    secret: str


@transaction.atomic
def create_admin_key(
    *,
    name: str,
    scopes: Sequence[str],
    expires_at: datetime | None = None,
    allowed_addresses: Sequence[str] | None = None,
    actor: str = "system",
    created_by: int | None = None,
) -> NewAdminKey:
    """Create a key for the admin API. Only administrators and commands of the server may call this.

    Raises `ValueError` without scopes, and for scopes of a team's key.
    """
    if not scopes or not set(scopes) <= set(AdminScope.values):
        raise ValueError("an admin key needs scopes of the admin API, and only those")
    secret = _new_secret(prefix=ADMIN_KEY_PREFIX)
    key = AdminKey(
        name=name,
        digest=keyed_digest(secret),
        prefix=_prefix(secret),
        last_four=secret[-4:],
        scopes=list(scopes),
        expires_at=expires_at,
        allowed_addresses=list(allowed_addresses) if allowed_addresses else None,
        created_by_id=created_by,
    )
    key.save(force_insert=True)
    with scope.every_team():
        after = {"name": name, "scopes": list(scopes), "prefix": key.prefix}
        audit(team_id=None, actor=actor, action="admin_key.created", target=key.pk, after=after)
    return NewAdminKey(key=key, secret=secret)


@transaction.atomic
def revoke_admin_key(*, key: AdminKey, actor: str = "system") -> bool:
    """Revoke an admin key permanently; returns false if it was revoked already."""
    revoked = AdminKey.objects.filter(pk=key.pk, revoked_at=None).update(revoked_at=now()) == 1
    if revoked:
        with scope.every_team():
            audit(team_id=None, actor=actor, action="admin_key.revoked", target=key.pk)
    return revoked


def rotate_key(*, key: ApiKey, grace: timedelta, actor: str = "system") -> NewKey:
    """Give a key a new secret. The old one works until the grace period ends; an older one stops working immediately.

    Raises `ValueError` for a revoked key.
    """
    secret = _new_secret()
    with scope.team(key.team_id):
        # Locked, because otherwise two concurrent rotations would both keep the same secret as the old one.
        locked = ApiKey.objects.select_for_update().get(pk=key.pk)
        if locked.revoked_at is not None:
            raise ValueError("a revoked key cannot be rotated")
        present = shared_now()
        locked.old_digest, locked.old_name = locked.digest, f"{locked.prefix}…{locked.last_four}"
        locked.old_until, locked.old_used_at = present + grace, None
        locked.digest, locked.prefix, locked.last_four = keyed_digest(secret), _prefix(secret), secret[-4:]
        locked.rotated_at = present
        locked.save()
        before, after = {"prefix": key.prefix}, {"prefix": locked.prefix, "old_until": locked.old_until.isoformat()}
        audit(team_id=key.team_id, actor=actor, action="api_key.rotated", target=key.pk, before=before, after=after)
    return NewKey(key=locked, secret=secret)


def update_key(
    *, key: ApiKey, scopes: Sequence[str] | None = None, expires_at: datetime | None = None, actor: str
) -> ApiKey:
    """Change the scopes or the expiry of a key; None leaves them unchanged.

    Raises `ValueError` for a key that is revoked or has expired.
    """
    with scope.team(key.team_id):
        row = ApiKey.objects.select_for_update(no_key=True).select_related(None).get(pk=key.pk)
        if row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= shared_now()):
            raise ValueError("the key is revoked or has expired")
        before: dict[str, Any] = {}
        after: dict[str, Any] = {}
        if scopes is not None and list(scopes) != row.scopes:
            before["scopes"], after["scopes"] = row.scopes, list(scopes)
            row.scopes = list(scopes)
        if expires_at is not None:
            before["expires_at"] = row.expires_at.isoformat() if row.expires_at else None
            after["expires_at"] = expires_at.isoformat()
            row.expires_at = expires_at
        if after:
            row.save(update_fields=list(after))
            audit(team_id=row.team_id, actor=actor, action="api_key.updated", target=row.pk, before=before, after=after)
    return row


def enable_key(*, key: ApiKey, enabled: bool, actor: str = "system") -> bool:
    """Enable or disable a key; returns false if nothing changed. Takes effect everywhere within two seconds."""
    with scope.team(key.team_id):
        # Conditional update: only a change is audited, and only once.
        candidates = ApiKey.objects.filter(pk=key.pk, revoked_at=None, disabled_at__isnull=not enabled)
        changed = candidates.update(disabled_at=None if enabled else now()) == 1
        if changed:
            verb = "enabled" if enabled else "disabled"
            audit(team_id=key.team_id, actor=actor, action=f"api_key.{verb}", target=key.pk)
    return changed


def suspend_team(*, team: Team, suspended: bool, actor: str = "system") -> bool:
    """Suspend or resume a team. While a team is suspended, its keys are refused. Returns false if nothing changed."""
    with scope.team(team.pk):
        candidates = Team.objects.filter(pk=team.pk, suspended_at__isnull=suspended)
        changed = candidates.update(suspended_at=now() if suspended else None) == 1
        if changed:
            verb = "suspended" if suspended else "resumed"
            audit(team_id=team.pk, actor=actor, action=f"team.{verb}", target=team.pk)
    return changed


def revoke_key(*, key: ApiKey, actor: str = "system") -> bool:
    """Revoke a key permanently; returns false if it was revoked already. Takes effect everywhere within two seconds."""
    with scope.team(key.team_id):
        revoked = ApiKey.objects.filter(pk=key.pk, revoked_at=None).update(revoked_at=now()) == 1
        if revoked:
            audit(team_id=key.team_id, actor=actor, action="api_key.revoked", target=key.pk)
    return revoked


@transaction.atomic
def add_upstream(
    *,
    name: str,
    base_url: str,
    api_key: str = "",
    models: Sequence[str] = (),
    is_default: bool = False,
    wire_api: str | None = None,
    capabilities: Mapping[str, Any] | None = None,
    place: Mapping[str, Any] | None = None,
) -> Upstream:
    """Add an upstream, or update the upstream of this name, and route `models` to it; `*` stands for all other names.

    `capabilities` apply to these models; their names are the fields of `Capabilities`. `place` has columns of these
    models, such as `priority` and `weight`, their `keys` (see `restrict_to_keys`), and the `region` of the upstream.
    Raises `ValidationError` for unknown names and invalid values. An argument of None leaves the stored value
    unchanged. A user name and password in the URL are stored encrypted in place of the key.
    """
    columns = dict(place or {})
    keys, region = columns.pop("keys", None), columns.pop("region", None)
    if keys is not None:
        try:
            check_keys(keys)
        except ValidationError as error:
            raise ValidationError({"keys": error.messages}) from error
    if region is not None:
        Upstream(region=region).clean_fields(exclude=_all_fields(Upstream) - {"region"})
    model_values = {**_validated(capabilities or {}), **columns}
    for model in models:
        row = Model(name=model, **columns)
        row.clean_fields(exclude=_all_fields(Model) - columns.keys())
        row.clean()
    base_url, basic = split_credentials(base_url)
    if api_key and basic:
        raise ValidationError("An upstream has either an API key or a user name and password in its URL, not both.")
    api_key = api_key or basic
    values = {"base_url": base_url.rstrip("/"), "is_default": is_default}
    if api_key:
        values["api_key"] = api_key
    if wire_api is not None:
        values["wire_api"] = WireApi(wire_api).value
    if region is not None:
        values["region"] = region
    upstream, created = Upstream.objects.update_or_create(name=name, defaults=values)
    for model in models:
        row, _ = Model.objects.update_or_create(name=model, upstream=upstream, defaults=model_values)
        if keys is not None:
            restrict_to_keys(row, keys)
    if is_default:
        Upstream.objects.exclude(pk=upstream.pk).filter(is_default=True).update(is_default=False)
    with scope.every_team():
        action = "upstream.created" if created else "upstream.updated"
        after = {"name": name, "base_url": base_url, "models": list(models), "default": is_default, **model_values}
        after |= {name: value for name, value in (("keys", keys), ("region", region)) if value is not None}
        audit(team_id=None, actor="system", action=action, target=upstream.pk, after=after)
    return upstream


@transaction.atomic
def create_upstream(*, name: str, base_url: str, api_key: str, wire_api: str, actor: str) -> Upstream:
    """Create an upstream without models. `base_url` has no credentials. Raises `NameTaken`."""
    values = {"base_url": base_url, "api_key": api_key, "wire_api": wire_api}
    upstream, created = Upstream.objects.get_or_create(name=name, defaults=values)
    if not created:
        raise NameTaken
    after = {"name": name, "base_url": base_url, "wire_api": wire_api, "has_key": bool(api_key)}
    with scope.every_team():
        audit(team_id=None, actor=actor, action="upstream.created", target=upstream.pk, after=after)
    return upstream


@transaction.atomic
def add_model(
    *,
    name: str,
    upstream: Upstream,
    upstream_model: str = "",
    capabilities: Mapping[str, Any],
    place: Mapping[str, Any],
    actor: str,
) -> Model:
    """Add a model of an upstream, with values as for `add_upstream`.

    Raises `ValidationError` for invalid values, and if the upstream has a model of this name.
    """
    values = {**_validated(capabilities), **place}
    row = Model(name=name, upstream=upstream, upstream_model=upstream_model, **values)
    row.full_clean(exclude=["upstream"])
    row.validate_constraints()
    row.save()
    after = {"name": name, "upstream": upstream.pk, "upstream_model": upstream_model, **values}
    with scope.every_team():
        audit(team_id=None, actor=actor, action="model.created", target=str(row.pk), after=after)
    return row


@transaction.atomic
def set_context_windows(*, upstream: Upstream, windows: Mapping[str, int], actor: str = "system") -> list[str]:
    """Set the context windows of an upstream's models by name. Returns the names whose stored value is then this one.

    A value that differs is kept.
    """
    rows = Model.objects.select_for_update(no_key=True).filter(upstream=upstream, name__in=windows)
    equal = []
    with scope.every_team():
        for row in rows:
            window = windows[row.name]
            if row.context_window is None:
                row.context_window = window
                row.save(update_fields=["context_window"])
                change: dict[str, Any] = {"before": {"context_window": None}, "after": {"context_window": window}}
                audit(team_id=None, actor=actor, action="model.updated", target=str(row.pk), **change)
            if row.context_window == window:
                equal.append(row.name)
    return equal


def restrict_to_keys(model: Model, key_ids: Collection[str]) -> None:
    """Let a target take only the requests of these API keys (ids), or of every key if there are none."""
    with scope.every_team():
        model.keys.set(ApiKey.objects.filter(pk__in=key_ids))


def check_keys(key_ids: Collection[str]) -> None:
    """Raise `ValidationError` if one of these API keys does not exist."""
    with scope.every_team():
        missing = set(key_ids) - set(ApiKey.objects.filter(pk__in=key_ids).values_list("pk", flat=True))
    if missing:
        raise ValidationError(f"Unknown API keys: {', '.join(sorted(missing))}.")


def drain_target(*, model_id: int, actor: str) -> bool:
    """Give a target of a model no new requests, by setting its weight to 0. Returns false if it has this weight."""
    with scope.every_team():
        row = Model.objects.select_for_update(no_key=True).filter(pk=model_id, weight__gt=0).first()
        if row is None:
            return False
        before, row.weight = row.weight, 0
        row.save(update_fields=["weight"])
        _audit_weight(row, _DRAINED, actor, before=before)
    return True


def resume_target(*, model_id: int, actor: str) -> int:
    """Give a drained target the weight that it had, or 1. Returns the weight, or 0 if the target is not drained."""
    with scope.every_team():
        row = Model.objects.select_for_update(no_key=True).filter(pk=model_id, weight=0).first()
        if row is None:
            return 0
        drained = AuditEvent.objects.filter(target=str(model_id), action=_DRAINED).order_by("-occurred_at").first()
        row.weight = drained.before["weight"] if drained is not None else 1
        row.save(update_fields=["weight"])
        _audit_weight(row, "model.resumed", actor, before=0)
    return row.weight


def _audit_weight(row: Model, action: str, actor: str, *, before: int) -> None:
    audit(
        team_id=None,
        actor=actor,
        action=action,
        target=str(row.pk),
        before={"weight": before},
        after={"weight": row.weight},
    )


@transaction.atomic
def set_prices(model: Model, entries: Iterable[PriceEntry], *, actor: str = "system") -> None:
    """Replace the prices of a model.

    Raises `ValidationError` for a negative amount, or for two prices with the same dimension and conditions.
    """
    before = model.prices()
    rows = [
        Price(model=model, **{field.name: getattr(entry, field.name) for field in fields(entry)}) for entry in entries
    ]
    for row in rows:
        row.clean_fields()
    model.price_entries.all().delete()
    try:
        with transaction.atomic():
            Price.objects.bulk_create(rows)
    except IntegrityError as error:
        raise ValidationError("There are two prices for the same dimension and conditions.") from error
    after = PriceList(row.entry() for row in rows)
    if after != before:
        with scope.every_team():
            audit(
                team_id=None,
                actor=actor,
                action="prices.updated",
                target=f"model:{model.pk}",
                before={"prices": before.stored()},
                after={"prices": after.stored()},
            )


def _all_fields(kind: type[Model | Upstream]) -> set[str]:
    return {field.name for field in kind._meta.fields}  # noqa: SLF001 - documented


def _validated(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    known = [field.name for field in fields(Capabilities)]
    for name in capabilities:
        if name not in known:
            similar = get_close_matches(name, known, n=1)
            hint = f" Did you mean '{similar[0]}'?" if similar else ""
            raise ValidationError(f"Unknown capability '{name}'.{hint}")
    row = Model(**capabilities)
    others = {field.name for field in Model._meta.fields} - set(capabilities)  # noqa: SLF001 - documented
    try:
        row.clean_fields(exclude=others)
    # ArrayField raises a ValueError, not a ValidationError, for a text that is no JSON list.
    except ValueError as error:
        raise ValidationError(str(error)) from error
    return {name: getattr(row, name) for name in capabilities}


def _new_secret(*, prefix: str = "sk-") -> str:
    return f"{prefix}{_letters(_PUBLIC_LENGTH)}-{_letters(_SECRET_LENGTH)}"


def _prefix(secret: str) -> str:
    # The public part, by which people recognize a key in lists and logs.
    return secret.rpartition("-")[0]


def _letters(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))
