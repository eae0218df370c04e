"""Writes of the tenancy: teams, keys, upstreams and their models. Each is one transaction with its audit line."""

import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from kernel.clock import now
from kernel.crypto import keyed_digest
from tenants import scope
from tenants.audit import audit
from tenants.capabilities import Capabilities
from tenants.models import ApiKey, KeySource, Model, Scope, Team, ToolKind, Upstream, WireApi

_ALPHABET = string.ascii_letters + string.digits
_PUBLIC_LENGTH = 8
_SECRET_LENGTH = 43  # 256 bits in 62 characters


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key that was just made. `secret` exists only here: it is shown once and stored as an HMAC."""

    key: ApiKey
    secret: str


def ensure_team(*, name: str, actor: str = "system") -> Team:
    """The team of this name, made if need be."""
    with scope.every_team():
        team, made = Team.objects.get_or_create(name=name)
        if made:
            audit(team_id=team.pk, actor=actor, action="team.created", target=team.pk, after={"name": name})
    return team


def create_key(
    *,
    team: Team,
    name: str,
    scopes: Sequence[str] = (Scope.ALL.value,),
    allowed_models: Sequence[str] | None = None,
    tools: Sequence[str] = (ToolKind.ALL.value,),
    expires_at: datetime | None = None,
    purpose: str = "",
    allowed_addresses: Sequence[str] | None = None,
    source: KeySource = KeySource.PERSON,
    actor: str = "system",
    created_by: int | None = None,
) -> NewKey:
    """Make a key. `allowed_models` None: every model that the team has; no `allowed_addresses`: from anywhere."""
    whole = _new_secret()
    with scope.team(team.pk):
        key = ApiKey.objects.create(
            team=team,
            name=name,
            purpose=purpose,
            source=source,
            digest=keyed_digest(whole),
            prefix=_prefix(whole),
            last_four=whole[-4:],
            scopes=list(scopes),
            allowed_models=list(allowed_models) if allowed_models else None,
            tools=list(tools),
            allowed_addresses=list(allowed_addresses) if allowed_addresses else None,
            expires_at=expires_at,
            created_by_id=created_by,
        )
        after = {"name": name, "scopes": list(scopes), "prefix": key.prefix}
        audit(team_id=team.pk, actor=actor, action="api_key.created", target=key.pk, after=after)
    return NewKey(key=key, secret=whole)


def rotate_key(*, key: ApiKey, grace: timedelta, actor: str = "system") -> NewKey:
    """Give a key a new secret; the one before works until the grace is over, and one before that no more.

    Raises `ValueError` for a key that was revoked.
    """
    made = _new_secret()
    with scope.team(key.team_id):
        held = ApiKey.objects.select_for_update().get(pk=key.pk)
        if held.revoked_at is not None:
            message = "a revoked key gets no new secret"
            raise ValueError(message)
        present = now()
        held.old_digest, held.old_name = held.digest, f"{held.prefix}…{held.last_four}"
        held.old_until, held.old_used_at = present + grace, None
        held.digest, held.prefix, held.last_four = keyed_digest(made), _prefix(made), made[-4:]
        held.rotated_at = present
        held.save()
        before, after = {"prefix": key.prefix}, {"prefix": held.prefix, "old_until": held.old_until.isoformat()}
        audit(team_id=key.team_id, actor=actor, action="api_key.rotated", target=key.pk, before=before, after=after)
    return NewKey(key=held, secret=made)


def enable_key(*, key: ApiKey, enabled: bool, actor: str = "system") -> bool:
    """Switch a key off, or on again; False when it was so before. Every process knows within two seconds."""
    with scope.team(key.team_id):
        others = ApiKey.objects.filter(pk=key.pk, revoked_at=None, disabled_at__isnull=not enabled)
        changed = others.update(disabled_at=None if enabled else now()) == 1
        if changed:
            verb = "enabled" if enabled else "disabled"
            audit(team_id=key.team_id, actor=actor, action=f"api_key.{verb}", target=key.pk)
    return changed


def suspend_team(*, team: Team, suspended: bool, actor: str = "system") -> bool:
    """Refuse all keys of a team, or take them again; False when it was so before."""
    with scope.team(team.pk):
        others = Team.objects.filter(pk=team.pk, suspended_at__isnull=suspended)
        changed = others.update(suspended_at=now() if suspended else None) == 1
        if changed:
            verb = "suspended" if suspended else "resumed"
            audit(team_id=team.pk, actor=actor, action=f"team.{verb}", target=team.pk)
    return changed


def revoke_key(*, key: ApiKey, actor: str = "system") -> bool:
    """Revoke a key for good; False when it was revoked before. Every process knows within two seconds."""
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
) -> Upstream:
    """Add an upstream, or change the one of this name. `models` are routed to it under their own names; `*`: all.

    `capabilities` are those of these models, by the names of `Capabilities`; raises `ValidationError` for others. What
    is None keeps what is stored.
    """
    given = _checked(capabilities or {})
    values = {"base_url": base_url.rstrip("/"), "is_default": is_default}
    if api_key:
        values["api_key"] = api_key
    if wire_api is not None:
        values["wire_api"] = WireApi(wire_api).value
    upstream, made = Upstream.objects.update_or_create(name=name, defaults=values)
    for model in models:
        Model.objects.update_or_create(name=model, upstream=upstream, defaults=given)
    if is_default:
        Upstream.objects.exclude(pk=upstream.pk).filter(is_default=True).update(is_default=False)
    with scope.every_team():
        action = "upstream.created" if made else "upstream.updated"
        after = {"name": name, "base_url": base_url, "models": list(models), "default": is_default, **given}
        audit(team_id=None, actor="system", action=action, target=upstream.pk, after=after)
    return upstream


def _checked(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    known = [field.name for field in fields(Capabilities)]
    for name in capabilities:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            message = f"There is no capability '{name}'.{hint}"
            raise ValidationError(message)
    row = Model(**capabilities)
    others = {field.name for field in Model._meta.fields} - set(capabilities)  # noqa: SLF001 - documented
    try:
        row.clean_fields(exclude=others)
    except ValueError as broken:  # of a list that is given as words
        raise ValidationError(str(broken)) from broken
    return {name: getattr(row, name) for name in capabilities}


def _new_secret() -> str:
    return f"sk-{_letters(_PUBLIC_LENGTH)}-{_letters(_SECRET_LENGTH)}"


def _prefix(whole: str) -> str:
    return whole.rpartition("-")[0]


def _letters(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))
