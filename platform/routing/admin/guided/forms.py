# mypy: allow-subclassing-any
"""Forms of the guided page: the server, and each chosen model."""

from collections.abc import Sequence
from itertools import chain, count
from typing import Any

from django import forms
from django.utils.datastructures import MultiValueDict
from typing_extensions import override
from unfold.widgets import (
    UnfoldAdminDecimalFieldWidget,
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
)

from core.clock import now
from routing import price_catalog
from routing.admin.guided.presets import suggested_name
from routing.admin.upstreams import UpstreamForm
from routing.connection import NewModel
from routing.detection import ModelDetails, Support
from tenants.console.secrets import disable_secret
from tenants.directory import UpstreamEndpoint
from tenants.models import Model, Upstream, WireApi
from tenants.prices import PriceList, label

MAX_CHOSEN = 50
"""Maximum number of models that are added at once."""

DETECT = "detect"
OWN, TARGET, FALLBACK = "own", "target", "fallback"
_LISTED, _ENTERED, _NONE = "listed", "entered", "none"
_LONGEST_NAME = 200
_SMALLEST, _LARGEST = -(2**15), 2**15 - 1
_MOST_TOKENS = 2**31 - 1


class ServerForm(UpstreamForm):
    """The server: name, address, key and API."""

    api = forms.ChoiceField(
        choices=[(DETECT, "Detect"), *WireApi.choices],
        label="API",
        initial=DETECT,
        widget=UnfoldAdminSelectWidget,
        help_text="The API that the platform uses with this server. Clients get the whole Responses API with both.",
    )
    field_order = ["name", "address", "new_api_key", "api"]

    class Meta(UpstreamForm.Meta):
        fields = ["name"]
        widgets = {"name": UnfoldAdminTextInputWidget}

    def __init__(self, *args: Any, may_enter_key: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["name"].required = False
        self.fields["name"].help_text = "Empty: named after the host."
        if not may_enter_key:
            disable_secret(self.fields["new_api_key"], is_set=False)

    @override
    def clean(self) -> dict[str, Any]:
        """Derive the name from the address if none was entered."""
        given = super().clean()
        if not given.get("name") and "address" in given and "name" not in self.errors:
            given["name"] = _free_name(suggested_name(given["address"]))
        return given

    def endpoint(self) -> UpstreamEndpoint | None:
        """Return the address and the key to test, or None if they are invalid. The name may still be missing."""
        if not self.errors.keys() <= {"name"}:
            return None
        address, api = self.cleaned_data["address"], self.cleaned_data["api"]
        # The id separates the pauses and connections of this address from those of saved upstreams.
        return UpstreamEndpoint(
            id=f"new {address}",
            base_url=address,
            api_key=self.cleaned_data["new_api_key"],
            wire_api=WireApi.CHAT_COMPLETIONS.value if api == DETECT else api,
            name="new upstream",
        )

    def problems(self, *, with_name: bool = True) -> list[str]:
        """Return the errors, each with the label of its field."""
        shown = {name: errors for name, errors in self.errors.items() if with_name or name != "name"}
        labels = {name: f"{field.label}: " for name, field in self.fields.items()}
        return [f"{labels.get(name, '')}{error}" for name, errors in shown.items() for error in errors]


def _free_name(name: str) -> str:
    """Return the name, with the first free number if there is an upstream of this name."""
    taken = set(Upstream.objects.filter(name__startswith=name).values_list("name", flat=True))
    numbered = (f"{name}-{number}" for number in count(2))
    return next(candidate for candidate in chain([name], numbered) if candidate not in taken)


def _support(title: str, help_text: str, *, limited: str = "") -> forms.ChoiceField:
    choices = [(Support.UNKNOWN.value, "unknown"), (Support.YES.value, "yes")]
    choices += [(Support.LIMITED.value, limited)] if limited else []
    return forms.ChoiceField(
        choices=[*choices, (Support.NO.value, "no")],
        label=title,
        initial=Support.UNKNOWN.value,
        widget=UnfoldAdminSelectWidget,
        help_text=help_text,
    )


def _integer(title: str, *, least: int, most: int, initial: int | None = None, help_text: str) -> forms.IntegerField:
    return forms.IntegerField(
        min_value=least,
        max_value=most,
        required=initial is not None,
        initial=initial,
        label=title,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text=help_text,
    )


def _dollars(title: str) -> forms.DecimalField:
    return forms.DecimalField(
        min_value=0,
        max_digits=20,
        decimal_places=10,
        required=False,
        label=title,
        widget=UnfoldAdminDecimalFieldWidget,
        help_text="US dollars per million tokens.",
    )


class ChosenModelForm(forms.Form):
    """A model to add: its place among the models, what it can do, and its prices."""

    upstream_model = forms.CharField(max_length=_LONGEST_NAME, widget=forms.HiddenInput)
    role = forms.ChoiceField(
        choices=[
            (OWN, "A new model"),
            (TARGET, "A further target of an existing model"),
            (FALLBACK, "A fallback for an existing model"),
        ],
        label="Used as",
        initial=OWN,
        widget=UnfoldAdminSelectWidget,
    )
    name = forms.CharField(
        max_length=_LONGEST_NAME,
        required=False,
        label="Public name",
        widget=UnfoldAdminTextInputWidget,
        help_text="The name that clients use.",
    )
    existing = forms.ChoiceField(required=False, label="Existing model", widget=UnfoldAdminSelectWidget)
    priority = _integer(
        "Priority", least=_SMALLEST, most=_LARGEST, initial=0, help_text="The lowest number is used first."
    )
    weight = _integer("Weight", least=0, most=_LARGEST, initial=1, help_text="Share of the requests within a priority.")
    context_window = _integer(
        "Context window", least=1, most=_MOST_TOKENS, help_text="Tokens of input and output. Empty means unknown."
    )
    tools = _support(
        "Tools",
        "Unless it is yes or unknown, a forced choice is requested in the prompt.",
        limited="only tool_choice auto",
    )
    images = _support("Images", "If no, requests with images are rejected.")
    reasoning = _support("Reasoning", "If no, only the effort none is accepted.", limited="in <think> tags")
    price = forms.ChoiceField(label="Price", widget=UnfoldAdminSelectWidget)
    input_price = _dollars("Input price")
    output_price = _dollars("Output price")

    def __init__(self, *args: Any, base_url: str, existing: Sequence[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._options: dict[str, Any] = {"prefix": self.prefix, "base_url": base_url, "existing": existing}
        model = str(self["upstream_model"].value() or "")
        listed = price_catalog.find(base_url, model, at=now())
        self.listed = [label(entry.stored()) for entry in listed.prices.entries] if listed else []
        choices = [(_LISTED, "Published price")] if self.listed else []
        price: Any = self.fields["price"]
        price.choices = [*choices, (_ENTERED, "Enter a price"), (_NONE, "No price")]
        self.initial.setdefault("price", price.choices[0][0] if self.listed else _NONE)
        choice: Any = self.fields["existing"]
        choice.choices = [("", "Select a model"), *((name, name) for name in existing)]
        self.taken = frozenset(existing)
        self.notes: dict[str, str] = {}

    @override
    def clean(self) -> dict[str, Any]:
        """Check the fields that depend on the use of the model and on the kind of price."""
        given = super().clean() or {}
        role, existing, name = given.get("role"), given.get("existing"), str(given.get("name") or "").strip()
        if role in {TARGET, FALLBACK} and not existing:
            self.add_error("existing", "Select a model.")
        if role != TARGET and not name:
            self.add_error("name", "Enter a name.")
        elif role == OWN and name in self.taken:
            self.add_error("name", "There is a model of this name. Choose “A further target of an existing model”.")
        elif role == FALLBACK and name in {existing, "*"}:
            self.add_error("name", "A model cannot be the fallback of itself, and * of no model.")
        if given.get("price") == _ENTERED:
            for field in ("input_price", "output_price"):
                if given.get(field) is None and field not in self.errors:
                    self.add_error(field, "Enter a price.")
        return given

    def submitted(self) -> "ChosenModelForm":
        """Return the form as if its initial values had been submitted."""
        values = {self.add_prefix(name): self[name].value() for name in self.fields}
        # The text that a browser would send.
        data = {name: "" if value is None else str(value) for name, value in values.items()}
        return ChosenModelForm(data, **self._options)

    def details(self) -> ModelDetails:
        """Return what the form says about the model."""
        given = self.cleaned_data
        supports = {name: Support(given[name]) for name in ("tools", "images", "reasoning")}
        return ModelDetails(context_window=given["context_window"], **supports)

    def new_model(self) -> NewModel:
        """Return the model to add."""
        given = self.cleaned_data
        is_target = given["role"] == TARGET
        prices = {
            _LISTED: None,
            _ENTERED: PriceList.simple(input=given["input_price"], output=given["output_price"]),
            _NONE: PriceList(()),
        }
        return NewModel(
            name=given["existing"] if is_target else given["name"].strip(),
            upstream_model=given["upstream_model"],
            capabilities=self.details().capabilities(),
            place={
                "priority": given["priority"] if is_target else 0,
                "weight": given["weight"] if is_target else 1,
                "fallback_for": given["existing"] if given["role"] == FALLBACK else "",
            },
            prices=prices[given["price"]],
        )


class ChosenModels:
    """The forms of the chosen models, numbered in the request by the prefixes `m0`, `m1` and so on."""

    def __init__(self, data: "MultiValueDict[str, str]", *, base_url: str) -> None:
        self._data = data
        self._options: dict[str, Any] = {"base_url": base_url, "existing": existing_names()}
        cards = data.get("cards", "")
        self._count = min(int(cards), MAX_CHOSEN) if str(cards).isascii() and str(cards).isdigit() else 0

    def bound(self) -> list[ChosenModelForm]:
        """Return the forms with what was entered, to be validated."""
        return [ChosenModelForm(self._data, prefix=f"m{number}", **self._options) for number in range(self._count)]

    def entered(self) -> dict[str, dict[str, Any]]:
        """Return what was entered so far, by the model's name at the server."""
        found = {}
        for form in self.bound():
            values = {name: self._data.get(form.add_prefix(name), "") for name in form.fields}
            found[str(values["upstream_model"])] = values
        return found

    def unbound(self, initial: Sequence[dict[str, Any]]) -> list[ChosenModelForm]:
        """Return forms with these values, which are not validated yet."""
        return [
            ChosenModelForm(initial=values, prefix=f"m{number}", **self._options)
            for number, values in enumerate(initial)
        ]


def initial_of(name: str, details: ModelDetails) -> dict[str, Any]:
    """Return the first values of the form of a model."""
    return {"upstream_model": name, "name": name, **detected(details)}


def detected(details: ModelDetails) -> dict[str, Any]:
    """Return the values of fields for what was detected, without those that are unknown."""
    values = {"tools": details.tools, "images": details.images, "reasoning": details.reasoning}
    found: dict[str, Any] = {name: value.value for name, value in values.items() if value is not Support.UNKNOWN}
    return found | ({"context_window": details.context_window} if details.context_window else {})


def existing_names() -> list[str]:
    """Return the names of the public models."""
    return list(Model.objects.exclude(name="*").order_by("name").values_list("name", flat=True).distinct())
