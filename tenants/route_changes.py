"""Changes of all targets of a public model at once: one transaction that includes its audit lines."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet

from tenants import scope
from tenants.audit import audit
from tenants.models import Model, Serves, Upstream

_COLUMNS = ("upstream_model", "priority", "weight", "serves", "enabled")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetValues:
    """The values of a target. Its upstream identifies it, as an upstream can serve a public model once."""

    upstream_id: str
    upstream_model: str = ""
    priority: int = 0
    weight: int = 1
    serves: str = Serves.ALL.value
    enabled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRoute:
    """The targets of a public model in the order of their priorities, and the names of its fallback models.

    `version` changes with any of the values that `save_route` writes.
    """

    name: str
    targets: Sequence[Model]
    fallback_models: Sequence[str]
    version: str


class RouteChanged(Exception):
    """The stored route is not the one that was edited."""


def read_route(name: str) -> StoredRoute:
    """Return the targets and fallback models of a public model, including disabled targets."""
    # The keys are not read, as one of them may be impossible to decrypt.
    targets = list(
        Model.objects.filter(name=name)
        .select_related("upstream")
        .defer("upstream__api_key")
        .prefetch_related("teams", "price_entries")
        .order_by("priority", "-upstream__is_default", "created_at")
    )
    fallbacks = list(_fallback_rows(name).order_by("priority", "created_at").values_list("name", flat=True))
    stored = [[row.pk, *(getattr(row, column) for column in _COLUMNS)] for row in targets]
    version = sha256(json.dumps([sorted(stored), sorted(fallbacks)]).encode()).hexdigest()
    return StoredRoute(name=name, targets=targets, fallback_models=[*dict.fromkeys(fallbacks)], version=version)


def fallback_candidates(name: str) -> list[str]:
    """Return the names of the models that can become fallback models of a public model."""
    free = Model.objects.filter(fallback_for="", enabled=True).exclude(name__in=[name, "*"])
    return sorted(set(free.values_list("name", flat=True)))


@transaction.atomic
def save_route(
    *, name: str, version: str, targets: Sequence[TargetValues], fallback_models: Collection[str], actor: str
) -> list[Model]:
    """Store the targets and fallback models of a public model. Return the new targets.

    Targets that are not among `targets` are deleted, with their prices. Raises `RouteChanged` if the route has another
    version, and `ValidationError` for invalid values.
    """
    with scope.every_team():
        # Another request waits here until this transaction has ended. What it has stored is read only afterwards.
        list(Model.objects.select_for_update().filter(name=name).order_by("pk").values_list("pk", flat=True))
        stored = read_route(name)
        if stored.version != version:
            raise RouteChanged
        _check(targets)
        rows = {row.upstream_id: row for row in stored.targets}
        for upstream_id in rows.keys() - {target.upstream_id for target in targets}:
            _delete(rows[upstream_id], actor)
        new = []
        for target in targets:
            row = rows.get(target.upstream_id)
            if row is None:
                new.append(_create(name, target, actor))
            else:
                _update(row, {column: getattr(target, column) for column in _COLUMNS}, actor)
        _set_fallbacks(stored, fallback_models, actor)
    return new


def _fallback_rows(name: str) -> QuerySet[Model]:
    return Model.objects.filter(fallback_for=name, enabled=True).exclude(name__in=[name, "*"])


def _check(targets: Sequence[TargetValues]) -> None:
    if not targets:
        raise ValidationError("A model needs a target. To remove the model itself, delete its targets under Models.")
    upstreams = [target.upstream_id for target in targets]
    if len({*upstreams}) < len(upstreams):
        raise ValidationError("Two targets have the same upstream. An upstream can serve a model once.")


def _values(row: Model) -> dict[str, Any]:
    return {column: getattr(row, column) for column in _COLUMNS}


def _create(name: str, target: TargetValues, actor: str) -> Model:
    # Its key is not read.
    upstream = Upstream.objects.defer("api_key").filter(pk=target.upstream_id).first()
    if upstream is None:
        raise ValidationError("The upstream of a new target does not exist any more.")
    row = Model(name=name, upstream=upstream, **{column: getattr(target, column) for column in _COLUMNS})
    row.full_clean()
    row.save(force_insert=True)
    after = {"name": name, "upstream": target.upstream_id, **_values(row)}
    audit(team_id=None, actor=actor, action="model.created", target=str(row.pk), after=after)
    return row


def _delete(row: Model, actor: str) -> None:
    pk, before = row.pk, {"name": row.name, "upstream": row.upstream_id, **_values(row)}
    row.delete()
    audit(team_id=None, actor=actor, action="model.deleted", target=str(pk), before=before)


def _update(row: Model, values: dict[str, Any], actor: str) -> None:
    after = {column: value for column, value in values.items() if value != getattr(row, column)}
    if not after:
        return
    before = {column: getattr(row, column) for column in after}
    for column, value in after.items():
        setattr(row, column, value)
    row.clean_fields(exclude={field.name for field in Model._meta.fields} - {*after})  # noqa: SLF001 - documented
    row.clean()
    row.save(update_fields=[*after])
    audit(team_id=None, actor=actor, action="model.updated", target=str(row.pk), before=before, after=after)


def _set_fallbacks(stored: StoredRoute, wanted: Collection[str], actor: str) -> None:
    for name in {*stored.fallback_models} - {*wanted}:
        for row in Model.objects.select_for_update().filter(name=name, fallback_for=stored.name):
            _update(row, {"fallback_for": ""}, actor)
    for name in dict.fromkeys(wanted):
        if name in stored.fallback_models:
            continue
        free = list(Model.objects.select_for_update().filter(name=name, fallback_for=""))
        if not free or name == "*":
            raise ValidationError(f"{name} cannot be a fallback model: it does not exist, or is one already.")
        for row in free:
            # A disabled or removed target must not end this, so all targets of the fallback model are marked.
            _update(row, {"fallback_for": stored.name}, actor)
