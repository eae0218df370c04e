# mypy: allow-subclassing-any
"""The forms of API keys: making one step by step, changing one, giving one a new secret."""

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

from kernel.clock import now
from tenants import scope
from tenants.models import ApiKey, Model, Scope, Team, ToolKind

_LIFETIMES = (
    ("30", "30 days"),
    ("60", "60 days"),
    ("90", "90 days"),
    ("365", "1 year"),
    ("custom", "On a day of your choice"),
    ("", "Never"),
)
_GRACES = (("0", "At once"), ("1", "In 1 hour"), ("24", "In 24 hours"), ("168", "In 7 days"))
_READING = [scope.value for scope in Scope if scope.value.endswith(".read")]
_RESPONSES = [scope.value for scope in Scope if scope.value.partition(".")[0] in {"responses", "conversations"}] + [
    Scope.MODELS_READ.value
]
PRESETS: dict[str, tuple[str, str, list[str]]] = {
    "full": ("Full", "Everything that the API offers.", [Scope.ALL.value]),
    "responses": ("Responses only", "Create, read and delete responses and conversations; list models.", _RESPONSES),
    "read": ("Read only", "Look at everything, change nothing and call no model.", _READING),
    "custom": ("Scopes of your choice", "Tick them below.", []),
}
_MOST_ADDRESSES = 50
_MOST_MODELS = 200


class ModelNames(forms.CharField):
    """Model names, separated by commas; nothing: None, every model that the team has."""

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


class Addresses(ModelNames):
    """Addresses and networks, one on a line or separated by commas; nothing: None, from anywhere."""

    @override
    def prepare_value(self, value: Any) -> Any:
        return "\n".join(value) if isinstance(value, list) else value

    @override
    def to_python(self, value: Any) -> Any:
        given = super().to_python(value) or []
        if len(given) > _MOST_ADDRESSES:
            message = f"At most {_MOST_ADDRESSES} addresses and networks."
            raise forms.ValidationError(message)
        return [_network(each) for each in given] or None

    @override
    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return bool((initial or None) != self.to_python(data))
        except forms.ValidationError:
            return True


def _network(text: str) -> str:
    try:
        return str(ip_network(text, strict=False))
    except ValueError as error:
        message = f"'{text}' is neither an address nor a network such as 203.0.113.0/24."
        raise forms.ValidationError(message) from error


class Scopes(forms.MultipleChoiceField):
    """The scopes of a key, or the tools; `*` swallows all others."""

    @override
    def clean(self, value: Any) -> list[str]:
        chosen: list[str] = super().clean(value)
        return [Scope.ALL.value] if Scope.ALL.value in chosen else chosen


def _model_names(**options: Any) -> ModelNames:
    words = {"label": "Allowed models", "help_text": "Separated by commas. Empty: every model that the team has."}
    widget = UnfoldAdminTextInputWidget(attrs={"placeholder": "gpt-4.1, demo"})
    return ModelNames(required=False, widget=widget, **{**words, **options})


def _scopes(**options: Any) -> Scopes:
    initial = {"initial": [Scope.ALL.value]}
    return Scopes(choices=Scope.choices, widget=UnfoldAdminCheckboxSelectMultipleWidget, **{**initial, **options})


def _addresses() -> Addresses:
    return Addresses(
        required=False,
        label="Addresses",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3, "placeholder": "203.0.113.0/24\n2001:db8::/32"}),
        help_text="Where it may be used from, one address or network on a line. Empty: from anywhere.",
    )


def tool_kinds() -> Scopes:
    """The tools of the server that a key or a team may use; none chosen: none."""
    widget = UnfoldAdminCheckboxSelectMultipleWidget
    return Scopes(choices=ToolKind.choices, widget=widget, initial=[ToolKind.ALL.value], required=False)


def model_names_of(teams: Iterable[str] | None) -> list[str]:
    """The named models that any of these teams may use, at most 200; None: of all teams."""
    # With fewer teams in sight, models that belong to other teams would look like everybody's.
    with scope.every_team():
        named = Model.objects.filter(enabled=True).exclude(name="*")
        if teams is not None:
            named = named.filter(Q(teams__isnull=True) | Q(teams__in=list(teams)))
        return list(named.order_by("name").values_list("name", flat=True).distinct()[:_MOST_MODELS])


class NewKeyForm(forms.Form):
    """What a new key is to be, in the order of the steps of its page."""

    team = forms.ModelChoiceField(Team.objects.none(), widget=UnfoldAdminSelectWidget, empty_label="Choose a team")
    name = forms.CharField(
        max_length=120,
        widget=UnfoldAdminTextInputWidget(attrs={"placeholder": "checkout service, production"}),
        help_text="Where the key will be used. It stands in lists and in the audit log.",
    )
    purpose = forms.CharField(
        max_length=500,
        required=False,
        widget=UnfoldAdminTextInputWidget(attrs={"placeholder": "Answers customers; ask the shop crew"}),
        help_text="What it is for, and who to ask about it.",
    )
    preset = forms.ChoiceField(
        choices=[(value, words[0]) for value, words in PRESETS.items()], required=False, initial="full"
    )
    scopes = _scopes(required=False, initial=[])
    models = forms.MultipleChoiceField(required=False, widget=UnfoldAdminCheckboxSelectMultipleWidget, label="Models")
    allowed_models = _model_names(
        label="Others", help_text="Separated by commas. Nothing here and nothing ticked: every model of the team."
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
    allowed_addresses = _addresses()

    def __init__(self, data: Any = None, *, teams: QuerySet[Team], models: Iterable[str] = (), **options: Any) -> None:
        super().__init__(data, **options)
        fields = cast("dict[str, Any]", self.fields)
        fields["team"].queryset = teams
        fields["models"].choices = [(name, name) for name in models]

    @override
    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        preset = cleaned.get("preset") or "custom"
        if preset != "custom":
            cleaned["scopes"] = PRESETS[preset][2]
        elif not cleaned.get("scopes") and "scopes" not in self.errors:
            self.add_error("scopes", "Choose at least one.")
        if cleaned.get("lifetime") == "custom" and "expires_on" not in self.errors:
            day = cleaned.get("expires_on")
            if day is None or day < now().date():
                self.add_error("expires_on", "Enter today or a later day.")
        if "allowed_models" in cleaned and "models" in cleaned:
            named = dict.fromkeys([*cleaned["models"], *(cleaned["allowed_models"] or ())])
            cleaned["allowed_models"] = [*named] or None
        return cleaned

    def expires_at(self, present: datetime) -> datetime | None:
        """When the key ends to work."""
        lifetime = self.cleaned_data["lifetime"]
        if lifetime == "custom":
            return datetime.combine(self.cleaned_data["expires_on"] + timedelta(days=1), time(), tzinfo=UTC)
        return present + timedelta(days=int(lifetime)) if lifetime else None

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The steps of the page: what each asks, and its fields."""
        names = [
            ("Who and what for", ["team", "name", "purpose"]),
            ("What it may do", []),
            ("Models and tools", ["models", "allowed_models", "tools"]),
            ("How long, and from where", ["lifetime", "expires_on", "allowed_addresses"]),
        ]
        if not self["models"].field.choices:  # type: ignore[attr-defined]  # the field's own type is lost
            names[2][1].remove("models")
        return [{"title": title, "fields": [self[name] for name in fields]} for title, fields in names]

    @property
    def presets(self) -> list[dict[str, Any]]:
        """The cards to choose from."""
        chosen = self["preset"].value() or "custom"
        return [
            {"value": value, "title": title, "says": says, "chosen": value == chosen}
            for value, (title, says, _) in PRESETS.items()
        ]


def initial_like(key: ApiKey) -> dict[str, Any]:
    """What the form of a new key begins with that is to be like another."""
    preset = next((value for value, words in PRESETS.items() if sorted(words[2]) == sorted(key.scopes)), "custom")
    return {
        "team": key.team_id,
        "name": f"{key.name} (copy)"[:120],
        "purpose": key.purpose,
        "preset": preset,
        "scopes": key.scopes if preset == "custom" else [],
        "allowed_models": key.allowed_models,
        "tools": key.tools,
        "allowed_addresses": key.allowed_addresses,
    }


class KeyForm(forms.ModelForm[ApiKey]):
    """What may be changed about a key."""

    scopes = _scopes()
    allowed_models = _model_names()
    tools = tool_kinds()
    allowed_addresses = _addresses()

    class Meta:
        model = ApiKey
        fields = ["name", "purpose", "scopes", "allowed_models", "tools", "expires_at", "allowed_addresses"]


class RotateKeyForm(forms.Form):
    """How long the old secret goes on to work."""

    grace = forms.ChoiceField(
        choices=_GRACES, initial="24", label="The old secret ends", widget=UnfoldAdminRadioSelectWidget
    )

    def grace_period(self) -> timedelta:
        """The same as a span of time."""
        return timedelta(hours=int(self.cleaned_data["grace"]))
