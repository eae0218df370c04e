"""Public models that several targets serve, with their targets in groups as requests try them."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby

from tenants.models import Model

# The order of `tenants.directory`.
_ORDER = ("priority", "-upstream__is_default", "created_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetGroup:
    """Targets that share requests by weight. `model` is the name of the fallback model, or of the public model."""

    model: str
    priority: int
    is_fallback: bool
    targets: list[Model]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicModel:
    """A public model and its groups, the first one first. Drained targets are included, disabled rows are not."""

    name: str
    groups: list[TargetGroup]

    @property
    def targets(self) -> list[Model]:
        """The targets of all groups."""
        return [target for group in self.groups for target in group.targets]


def with_several_targets() -> list[PublicModel]:
    """Return the public models with more than one target, by name."""
    rows = Model.objects.filter(enabled=True).select_related("upstream").defer("upstream__api_key")
    own: dict[str, list[Model]] = defaultdict(list)
    fallbacks: dict[str, list[str]] = defaultdict(list)
    for row in rows.prefetch_related("teams", "keys").order_by(*_ORDER):
        own[row.name].append(row)
        if row.fallback_for and row.name not in fallbacks[row.fallback_for]:
            fallbacks[row.fallback_for].append(row.name)
    found = []
    for name in sorted({*own, *fallbacks}):
        names = [name, *(fallback for fallback in fallbacks.get(name, ()) if fallback != name)]
        groups = [group for model in names for group in _groups(own.get(model, []), is_fallback=model != name)]
        if sum(len(group.targets) for group in groups) > 1:
            found.append(PublicModel(name=name, groups=groups))
    return found


def _groups(rows: list[Model], *, is_fallback: bool) -> list[TargetGroup]:
    return [
        TargetGroup(model=model, priority=priority, is_fallback=is_fallback, targets=list(targets))
        for (model, priority, _), targets in groupby(
            rows, key=lambda row: (row.name, row.priority, row.upstream.is_default)
        )
    ]
