"""Writes of the tenancy: teams, keys, upstreams and their models. Each is one transaction with its audit line."""

import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from kernel.clock import now
from kernel.crypto import keyed_digest
from tenants import scope
from tenants.audit import audit
from tenants.capabilities import Capabilities
from tenants.models import ApiKey, Model, Scope, Team, ToolKind, Upstream, WireApi

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
    actor: str = "system",
    created_by: int | None = None,
) -> NewKey:
    """Make a key. `allowed_models` None: every model that the team has."""
    public, secret = _letters(_PUBLIC_LENGTH), _letters(_SECRET_LENGTH)
    whole = f"sk-{public}-{secret}"
    with scope.team(team.pk):
        key = ApiKey.objects.create(
            team=team,
            name=name,
            digest=keyed_digest(whole),
            prefix=f"sk-{public}",
            last_four=whole[-4:],
            scopes=list(scopes),
            allowed_models=list(allowed_models) if allowed_models else None,
            tools=list(tools),
            expires_at=expires_at,
            created_by_id=created_by,
        )
        after = {"name": name, "scopes": list(scopes), "prefix": key.prefix}
        audit(team_id=team.pk, actor=actor, action="api_key.created", target=key.pk, after=after)
    return NewKey(key=key, secret=whole)


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


def _letters(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))
