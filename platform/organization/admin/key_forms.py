# mypy: allow-subclassing-any
"""Forms of API keys: create, change and rotate."""

from collections.abc import Iterable
from datetime import UTC, datetime, time, timedelta
from ipaddress import ip_network
from typing import Any, cast

from django import forms
from django.db.models import Q, QuerySet
from typing_extensions import override
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminRadioSelectWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from core.clock import now
from organization.admin.limit_forms import NewLimitsForm
from tenants import scope
from tenants.console.row_actions import RowForm
from tenants.models import ApiKey, Model, Scope, Team, ToolKind

_LIFETIMES = (
    ("30", "30 days"),
    ("60", "60 days"),
    ("90", "90 days"),
    ("365", "1 year"),
    ("custom", "On a specific date"),
    ("", "Never"),
)
_GRACES = (("0", "Immediately"), ("1", "In 1 hour"), ("24", "In 24 hours"), ("168", "In 7 days"))
_READ_SCOPES = [scope.value for scope in Scope if scope.value.endswith(".read")]
_RESPONSES_SCOPES = [
    *(scope.value for scope in Scope if scope.value.partition(".")[0] in {"responses", "conversations"}),
    Scope.MODELS_READ.value,
]
PRESETS: dict[str, tuple[str, str, list[str]]] = {
    "full": ("All", "All permissions.", [Scope.ALL.value]),
    "responses": (
        "Responses only",
        "Create, read and delete responses and conversations; list models.",
        _RESPONSES_SCOPES,
    ),
    "read": ("Read only", "Read everything. No changes and no model calls.", _READ_SCOPES),
    "custom": ("Restricted", "Select individual scopes.", []),
}
# Every request with the key is compared with all of its addresses.
_MAX_ADDRESSES = 50
_MAX_MODELS = 200


class ModelNamesField(forms.CharField):
    """Model names separated by commas. An empty value becomes None, which allows all models of the team."""

    @override
    def prepare_value(self, value: Any) -> Any:
        return ", ".join(value) if isinstance(value, list) else value

    @override
    def to_python(self, value: Any) -> Any:
        names = [name.strip() for name in (value or "").replace("\n", ",").split(",")]
        return [name for name in names if name] or None

    @override
    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(self.to_python(self.prepare_value(initial)) != self.to_python(data))


class AddressesField(ModelNamesField):
    """IP addresses and networks, separated by newlines or commas. An empty value becomes None, which allows any."""

    @override
    def prepare_value(self, value: Any) -> Any:
        return "\n".join(value) if isinstance(value, list) else value

    @override
    def to_python(self, value: Any) -> Any:
        entries = super().to_python(value) or []
        if len(entries) > _MAX_ADDRESSES:
            raise forms.ValidationError(f"Enter at most {_MAX_ADDRESSES} addresses and networks.")
        networks = []
        for entry in entries:
            try:
                networks.append(str(ip_network(entry, strict=False)))
            except ValueError as error:
                raise forms.ValidationError(
                    f"'{entry}' is not an IP address or network, such as 203.0.113.0/24."
                ) from error
        return networks or None

    @override
    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return bool((initial or None) != self.to_python(data))
        # Invalid input differs from any stored value; validation reports the error later.
        except forms.ValidationError:
            return True


class PermissionsField(forms.MultipleChoiceField):
    """Scopes or tools. `*` replaces all other choices."""

    @override
    def clean(self, value: Any) -> list[str]:
        chosen: list[str] = super().clean(value)
        return [Scope.ALL.value] if Scope.ALL.value in chosen else chosen


def _model_names(**options: Any) -> ModelNamesField:
    texts = {
        "label": "Allowed models",
        "help_text": "Separated by commas. Leave empty to allow all models of the team.",
    }
    widget = UnfoldAdminTextInputWidget(attrs={"placeholder": "gpt-4.1, demo"})
    return ModelNamesField(required=False, widget=widget, **{**texts, **options})


def _scopes(**options: Any) -> PermissionsField:
    initial = {"initial": [Scope.ALL.value]}
    widget = UnfoldAdminCheckboxSelectMultipleWidget
    return PermissionsField(choices=Scope.choices, widget=widget, **{**initial, **options})


def addresses_field() -> AddressesField:
    """Return the form field for the IP addresses from which a key may be used."""
    return AddressesField(
        required=False,
        label="Allowed IP addresses",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3, "placeholder": "203.0.113.0/24\n2001:db8::/32"}),
        help_text="One IP address or network per line. Leave empty to allow any address.",
    )


def tool_kinds() -> PermissionsField:
    """Return the form field for the hosted tools of a key or team; an empty choice allows none."""
    widget = UnfoldAdminCheckboxSelectMultipleWidget
    return PermissionsField(choices=ToolKind.choices, widget=widget, initial=[ToolKind.ALL.value], required=False)


def model_names_of(teams: Iterable[str] | None) -> list[str]:
    """Return the names of at most 200 models that any of these teams may use; None means all teams."""
    # Row-level security for fewer teams would hide the rows that restrict a model to other teams, and the model would
    # look as if every team could use it.
    with scope.every_team():
        named = Model.objects.filter(enabled=True).exclude(name="*")
        if teams is not None:
            named = named.filter(Q(teams__isnull=True) | Q(teams__in=list(teams)))
        return list(named.order_by("name").values_list("name", flat=True).distinct()[:_MAX_MODELS])


class NewKeyForm(NewLimitsForm):
    """A new key, in the order of the steps of its page."""

    team = forms.ModelChoiceField(Team.objects.none(), widget=UnfoldAdminSelectWidget, empty_label="Choose a team")
    name = forms.CharField(
        max_length=120,
        widget=UnfoldAdminTextInputWidget(attrs={"placeholder": "checkout service, production"}),
        help_text="Where the key will be used. Shown in lists and in the audit log.",
    )
    purpose = forms.CharField(
        max_length=500,
        required=False,
        widget=UnfoldAdminTextInputWidget(attrs={"placeholder": "Customer support; contact the shop team"}),
        help_text="Purpose of the key, and a contact.",
    )
    preset = forms.ChoiceField(
        choices=[(value, preset[0]) for value, preset in PRESETS.items()], required=False, initial="full"
    )
    scopes = _scopes(required=False, initial=[])
    models = forms.MultipleChoiceField(required=False, widget=UnfoldAdminCheckboxSelectMultipleWidget, label="Models")
    allowed_models = _model_names(
        label="Other models",
        help_text="Separated by commas. Leave empty and select no model above to allow all models of the team.",
    )
    tools = tool_kinds()
    lifetime = forms.ChoiceField(
        choices=_LIFETIMES, required=False, initial="90", label="Expires after", widget=UnfoldAdminSelectWidget
    )
    expires_on = forms.DateField(
        required=False,
        label="On this day",
        widget=UnfoldAdminTextInputWidget(attrs={"type": "date"}),
        help_text="For a day of your choice: the key works until its end in UTC.",
    )
    allowed_addresses = addresses_field()

    def __init__(self, data: Any = None, *, teams: QuerySet[Team], models: Iterable[str] = (), **options: Any) -> None:
        super().__init__(data, **options)
        fields = cast("dict[str, Any]", self.fields)
        fields["team"].queryset = teams
        fields["models"].choices = [(name, name) for name in models]

    @override
    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        preset = cleaned.get("preset") or "custom"
        # The preset decides, even if scopes were selected before it was chosen.
        if preset != "custom":
            cleaned["scopes"] = PRESETS[preset][2]
        elif not cleaned.get("scopes") and "scopes" not in self.errors:
            self.add_error("scopes", "Select at least one scope.")
        if cleaned.get("lifetime") == "custom" and "expires_on" not in self.errors:
            day = cleaned.get("expires_on")
            if day is None or day < now().date():
                self.add_error("expires_on", "Enter today or a later date.")
        if "allowed_models" in cleaned and "models" in cleaned:
            # A dict removes duplicates and keeps the order.
            names = dict.fromkeys([*cleaned["models"], *(cleaned["allowed_models"] or ())])
            cleaned["allowed_models"] = [*names] or None
        return cleaned

    def expires_at(self, present: datetime) -> datetime | None:
        """Return the time from which the key is expired, or None."""
        lifetime = self.cleaned_data["lifetime"]
        if lifetime == "custom":
            # The key works through the chosen day (UTC).
            return datetime.combine(self.cleaned_data["expires_on"] + timedelta(days=1), time(), tzinfo=UTC)
        return present + timedelta(days=int(lifetime)) if lifetime else None

    @property
    def steps(self) -> list[dict[str, Any]]:
        """Titles and fields of the page's steps."""
        names = [
            ("Details", ["team", "name", "purpose"]),
            ("Permissions", []),
            ("Models and tools", ["models", "allowed_models", "tools"]),
            (
                "Limits",
                ["requests_per_minute", "tokens_per_minute", "concurrent_runs", "budget", "budget_period"],
            ),
            ("Expiration and IP addresses", ["lifetime", "expires_on", "allowed_addresses"]),
        ]
        # A team without named models has only the field for typed names.
        if not self["models"].field.choices:  # type: ignore[attr-defined]  # the field's own type is lost
            names[2][1].remove("models")
        return [{"title": title, "fields": [self[name] for name in fields]} for title, fields in names]

    @property
    def presets(self) -> list[dict[str, Any]]:
        """Permission presets as cards."""
        chosen = self["preset"].value() or "custom"
        return [
            {"value": value, "title": title, "description": description, "chosen": value == chosen}
            for value, (title, description, _) in PRESETS.items()
        ]


def initial_from(key: ApiKey) -> dict[str, Any]:
    """Return the initial values of a new key that clones another."""
    preset = next((value for value, preset in PRESETS.items() if sorted(preset[2]) == sorted(key.scopes)), "custom")
    return {
        "team": key.team_id,
        # The maximum length of a name.
        "name": f"{key.name} (copy)"[:120],
        "purpose": key.purpose,
        "preset": preset,
        "scopes": key.scopes if preset == "custom" else [],
        "allowed_models": key.allowed_models,
        "tools": key.tools,
        "allowed_addresses": key.allowed_addresses,
    }


class KeyForm(forms.ModelForm[ApiKey]):
    """Changes of an existing key."""

    scopes = _scopes()
    allowed_models = _model_names()
    tools = tool_kinds()
    allowed_addresses = addresses_field()

    class Meta:
        model = ApiKey
        fields = ["name", "purpose", "scopes", "allowed_models", "tools", "expires_at", "allowed_addresses"]


class RotateKeyForm(RowForm):
    """Grace period of the old secret."""

    grace = forms.ChoiceField(
        choices=_GRACES, initial="24", label="The old secret expires", widget=UnfoldAdminRadioSelectWidget
    )

    def grace_period(self) -> timedelta:
        return timedelta(hours=int(self.cleaned_data["grace"]))
