# mypy: allow-subclassing-any
"""Unsaved edit of a route: the values of its form, the moves between priorities, and a preview of the effect."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from django import forms
from django.http import QueryDict

from core.clock import now
from routing.route_preview import route_sentence
from tenants.directory import planned_targets
from tenants.models import Model, Serves, Upstream
from tenants.route_changes import StoredRoute, TargetValues

MAX_TEAMS = 5
"""Maximum number of teams with targets of their own whose preview is shown."""

_MAX_SMALL = 32767


class TargetForm(forms.Form):
    """The values of a target."""

    upstream_model = forms.CharField(
        label="Model at the upstream",
        max_length=200,
        required=False,
        widget=forms.TextInput(attrs={"class": "c-input", "autocomplete": "off"}),
    )
    priority = forms.IntegerField(
        min_value=-_MAX_SMALL - 1,
        max_value=_MAX_SMALL,
        widget=forms.NumberInput(attrs={"class": "c-input", "inputmode": "numeric"}),
    )
    weight = forms.IntegerField(
        min_value=0,
        max_value=_MAX_SMALL,
        widget=forms.NumberInput(attrs={"class": "c-input", "inputmode": "numeric"}),
    )
    serves = forms.ChoiceField(choices=Serves.choices, widget=forms.Select(attrs={"class": "c-input"}))
    enabled = forms.BooleanField(required=False)


@dataclass(kw_only=True, eq=False)
class DraftTarget:
    """A target of the form. `row` is its stored row, None for a new target."""

    form: TargetForm
    upstream: Upstream
    row: Model | None

    @property
    def priority(self) -> int:
        """The priority, or the stored one if the entered one is invalid."""
        value = self.form.cleaned_data.get("priority")
        return value if value is not None else self.row.priority if self.row else 0

    @property
    def order(self) -> tuple[int, bool, Any]:
        """The order of `tenants.directory`."""
        return self.priority, not self.upstream.is_default, self.created_at

    @property
    def created_at(self) -> Any:
        """The creation of the row, which decides about the order of equal priorities; now for a new target."""
        return self.row.created_at if self.row else now()

    @property
    def teams(self) -> list[Any]:
        """The teams to which the stored target is restricted."""
        return sorted(self.row.teams.all(), key=lambda team: team.name) if self.row else []

    def values(self) -> TargetValues:
        """Return the values to store."""
        cleaned = self.form.cleaned_data
        return TargetValues(
            upstream_id=self.upstream.pk,
            upstream_model=cleaned["upstream_model"],
            priority=cleaned["priority"],
            weight=cleaned["weight"],
            serves=cleaned["serves"],
            enabled=cleaned["enabled"],
        )


@dataclass(frozen=True, kw_only=True)
class DraftGroup:
    """Targets that share requests by weight."""

    priority: int
    is_default: bool
    targets: Sequence[DraftTarget]


@dataclass(frozen=True, kw_only=True)
class _PlannedRow:
    """The columns of a row that may be unsaved, for `planned_targets`."""

    name: str
    upstream: Upstream
    upstream_model: str
    priority: int
    weight: int
    serves: str
    created_at: Any
    for_team: bool


class RouteDraft:
    """The edited route. All of its values are those of a form, so that nothing is stored between requests."""

    def __init__(self, stored: StoredRoute, data: QueryDict | None = None) -> None:
        self.stored = stored
        self.errors: list[str] = []
        self.is_conflict = False
        self.data = _data_of(stored) if data is None else data
        self.upstreams: Mapping[str, Upstream] = Upstream.objects.defer("api_key").order_by("name").in_bulk()
        self.targets: list[DraftTarget] = []
        self._read()

    def _read(self) -> None:
        rows = {row.upstream_id: row for row in self.stored.targets}
        self.targets = []
        for upstream_id in dict.fromkeys(self.data.getlist("target")):
            upstream = self.upstreams.get(upstream_id)
            # An upstream that was deleted meanwhile has no targets.
            if upstream is not None:
                form = TargetForm(self.data, prefix=upstream_id)
                form.is_valid()
                self.targets.append(DraftTarget(form=form, upstream=upstream, row=rows.get(upstream_id)))
        self.targets.sort(key=lambda target: target.order)

    @property
    def is_valid(self) -> bool:
        """True if the form can be stored."""
        return not self.errors and all(target.form.is_valid() for target in self.targets)

    @property
    def fallbacks(self) -> list[str]:
        """The names of the fallback models."""
        # The database accepts no NUL.
        return [*dict.fromkeys(name for name in self.data.getlist("fallback") if "\0" not in name)]

    @property
    def seen(self) -> list[str]:
        """The upstreams of the targets that were stored when the page was opened."""
        return self.data.getlist("seen")

    @property
    def seen_fallbacks(self) -> list[str]:
        """The fallback models that were stored when the page was opened."""
        return self.data.getlist("seen_fallback")

    @property
    def groups(self) -> list[DraftGroup]:
        """The targets in groups."""
        return [
            DraftGroup(priority=priority, is_default=is_default, targets=list(targets))
            for (priority, is_default), targets in groupby(
                self.targets, key=lambda target: (target.priority, target.upstream.is_default)
            )
        ]

    @property
    def free_upstreams(self) -> list[Upstream]:
        """The upstreams without a target."""
        used = {target.upstream.pk for target in self.targets}
        return [upstream for upstream in self.upstreams.values() if upstream.pk not in used]

    # -- changes -------------------------------------------------------------------------------------------------------

    def change(self, action: str) -> None:
        """Apply an action of a button, such as `up:12`. Unknown actions change nothing."""
        verb, _, argument = action.partition(":")
        match verb:
            case "up" | "down":
                self._step(argument, is_up=verb == "up")
            case "join" | "before" | "after":
                upstream_id, _, priority = argument.rpartition(":")
                with suppress(ValueError):
                    self._move(upstream_id, verb, int(priority))
            case "remove":
                kept = [upstream_id for upstream_id in self.data.getlist("target") if upstream_id != argument]
                self.data.setlist("target", kept)
            case "add":
                self._add_target()
            case "add-fallback":
                name = self.data.get("add_fallback", "")
                if name:
                    self.data.appendlist("fallback", name)
                self.data["add_fallback"] = ""
            case "remove-fallback":
                self.data.setlist("fallback", [name for name in self.fallbacks if name != argument])
        self._read()

    def _levels(self) -> list[tuple[int, list[DraftTarget]]]:
        grouped = groupby(self.targets, key=lambda target: target.priority)
        return [(priority, list(members)) for priority, members in grouped]

    def _step(self, upstream_id: str, *, is_up: bool) -> None:
        """Move a target one step: out of a shared priority to one of its own, or else into the neighbouring one."""
        levels = self._levels()
        for place, (priority, members) in enumerate(levels):
            if all(target.upstream.pk != upstream_id for target in members):
                continue
            neighbour = place - 1 if is_up else place + 1
            if len(members) > 1:
                self._move(upstream_id, "before" if is_up else "after", priority)
            elif 0 <= neighbour < len(levels):
                self._move(upstream_id, "join", levels[neighbour][0])

    def _move(self, upstream_id: str, where: str, priority: int) -> None:
        """Move a target into a priority, or to a new one before or after it. Other priorities change only if needed."""
        moved = next((target for target in self.targets if target.upstream.pk == upstream_id), None)
        levels = [(number, [target for target in members if target is not moved]) for number, members in self._levels()]
        numbers = [number for number, _ in levels]
        if moved is None or priority not in numbers:
            return
        place = numbers.index(priority)
        if where == "join":
            levels[place][1].append(moved)
        else:
            levels.insert(place + (where == "after"), (priority, [moved]))
        previous: int | None = None
        for number, members in levels:
            if members:
                previous = number if previous is None or number > previous else previous + 1
                for target in members:
                    # An invalid priority that was entered is replaced only if its target moves.
                    if target is moved or target.priority != previous:
                        self.data[f"{target.upstream.pk}-priority"] = str(previous)

    def _add_target(self) -> None:
        upstream_id = self.data.get("add_upstream", "")
        if upstream_id not in {upstream.pk for upstream in self.free_upstreams}:
            self.errors.append("Choose an upstream for the new target.")
            return
        last = self.targets[-1].priority + 1 if self.targets else 0
        model = self.data.get("add_model", "").strip()
        _put(self.data, TargetValues(upstream_id=upstream_id, upstream_model=model, priority=last))
        self.data["add_upstream"] = self.data["add_model"] = ""

    def take_over(self, stored: StoredRoute) -> None:
        """Note that the route was changed meanwhile: the next save replaces what is `stored` now.

        Targets and fallback models that were added meanwhile are added to the draft.
        """
        known = {*self.seen, *self.data.getlist("target")}
        for row in stored.targets:
            if row.upstream_id not in known:
                _put(self.data, _values_of(row))
        known_fallbacks = {*self.seen_fallbacks, *self.fallbacks}
        for name in stored.fallback_models:
            if name not in known_fallbacks:
                self.data.appendlist("fallback", name)
        self.stored, self.is_conflict = stored, True
        _note(self.data, stored)
        self._read()

    # -- preview -------------------------------------------------------------------------------------------------------

    def preview(self) -> list[str]:
        """Return sentences about the effect: for all teams, for flex requests, and for teams with own targets."""
        own = {team.pk: team.name for target in self.targets for team in target.teams}
        fallbacks = list(
            Model.objects.filter(name__in=self.fallbacks, enabled=True)
            .exclude(name="*")
            .select_related("upstream")
            .defer("upstream__api_key")
            .prefetch_related("teams")
        )
        sentences = [self._sentence(fallbacks, "", is_flex=False)]
        if any(target.form.cleaned_data.get("serves") != Serves.ALL for target in self.targets):
            sentences.append(f"Flex requests: {self._sentence(fallbacks, '', is_flex=True)}")
        for team_id, name in sorted(own.items(), key=lambda entry: entry[1])[:MAX_TEAMS]:
            sentences.append(f"Team {name}: {self._sentence(fallbacks, team_id, is_flex=False)}")
        return sentences

    def _sentence(self, fallbacks: Sequence[Model], team_id: str, *, is_flex: bool) -> str:
        rows = []
        for target in self.targets:
            cleaned = target.form.cleaned_data
            if cleaned.get("enabled") and _is_visible(target.teams, team_id):
                rows.append(
                    _PlannedRow(
                        name=self.stored.name,
                        upstream=target.upstream,
                        upstream_model=cleaned.get("upstream_model", ""),
                        priority=target.priority,
                        weight=cleaned.get("weight") or 0,
                        serves=cleaned.get("serves") or Serves.ALL.value,
                        created_at=target.created_at,
                        for_team=bool(target.teams),
                    )
                )
        for row in fallbacks:
            teams = list(row.teams.all())
            if _is_visible(teams, team_id):
                columns = ("name", "upstream", "upstream_model", "priority", "weight", "serves", "created_at")
                values = {column: getattr(row, column) for column in columns}
                rows.append(_PlannedRow(**values, for_team=bool(teams)))
        return route_sentence(self.stored.name, planned_targets(self.stored.name, rows, is_flex=is_flex))


def _is_visible(teams: Sequence[Any], team_id: str) -> bool:
    return not teams or any(team.pk == team_id for team in teams)


def _data_of(stored: StoredRoute) -> QueryDict:
    data = QueryDict(mutable=True)
    for row in stored.targets:
        _put(data, _values_of(row))
    data.setlist("fallback", [*stored.fallback_models])
    _note(data, stored)
    return data


def _values_of(row: Model) -> TargetValues:
    return TargetValues(
        upstream_id=row.upstream_id,
        upstream_model=row.upstream_model,
        priority=row.priority,
        weight=row.weight,
        serves=row.serves,
        enabled=row.enabled,
    )


def _put(data: QueryDict, values: TargetValues) -> None:
    prefix = values.upstream_id
    data.appendlist("target", prefix)
    data[f"{prefix}-upstream_model"] = values.upstream_model
    data[f"{prefix}-priority"] = str(values.priority)
    data[f"{prefix}-weight"] = str(values.weight)
    data[f"{prefix}-serves"] = values.serves
    if values.enabled:
        data[f"{prefix}-enabled"] = "on"


def _note(data: QueryDict, stored: StoredRoute) -> None:
    """Note the stored state to which the edit applies."""
    data["version"] = stored.version
    data.setlist("seen", [row.upstream_id for row in stored.targets])
    data.setlist("seen_fallback", [*stored.fallback_models])
