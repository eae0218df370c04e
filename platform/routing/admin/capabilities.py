# mypy: allow-subclassing-any
"""Form of a model with its capabilities in groups."""

from dataclasses import fields
from typing import Any

from django import forms
from django.core.exceptions import ImproperlyConfigured
from typing_extensions import override
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget, UnfoldAdminTextInputWidget

from tenants import scope, services
from tenants.capabilities import Capabilities
from tenants.models import Model, validate_metadata

# OpenAI's values. A model may support fewer.
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Input", ("vision", "max_images", "inline_images", "files", "developer_role")),
    (
        "Output",
        ("structured_output", "logprobs", "extra_sampling", "always_stream", "output_limit", "assistant_prefix"),
    ),
    ("Tools", ("forced_tool_choice", "custom_tools")),
    (
        "Reasoning",
        (
            "reasoning_efforts",
            "reasoning_summaries",
            "raw_reasoning",
            "reasoning_field",
            "reasoning_history",
            "think_tags",
        ),
    ),
    ("Tokens", ("context_window", "token_counting")),
    ("Maxima", ("max_output_tokens", "max_image_tokens", "max_audio_seconds")),
)
_LABELS = {
    "vision": "Images",
    "max_images": "Maximum images",
    "inline_images": "Download images",
    "files": "Files",
    "developer_role": "Developer role",
    "custom_tools": "Custom tools",
    "forced_tool_choice": "Forced tool choice",
    "structured_output": "Structured output",
    "logprobs": "Log probabilities",
    "extra_sampling": "vLLM sampling parameters",
    "always_stream": "Always stream",
    "reasoning_efforts": "Efforts",
    "reasoning_summaries": "Summaries",
    "raw_reasoning": "Show raw reasoning",
    "reasoning_field": "Reasoning field",
    "reasoning_history": "Earlier reasoning",
    "output_limit": "Output limit",
    "assistant_prefix": "Begun answers",
    "think_tags": "<think> tags",
    "context_window": "Context window",
    "token_counting": "Token counting",
    "max_output_tokens": "Maximum output tokens",
    "max_image_tokens": "Maximum tokens of an image",
    "max_audio_seconds": "Maximum seconds of audio",
}


LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrent_requests")


class EffortsField(forms.MultipleChoiceField):
    """The reasoning efforts of a model. An empty choice means that they are unknown and that all are forwarded."""

    @override
    def clean(self, value: Any) -> list[str] | None:
        """Return the chosen efforts, or None for an empty choice, as the column stores it."""
        chosen: list[str] = super().clean(value)
        return chosen or None


class CapabilityForm(forms.ModelForm[Model]):
    """A model with its route and capabilities."""

    reasoning_efforts = EffortsField(
        choices=[(effort, effort) for effort in EFFORTS],
        required=False,
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        label=_LABELS["reasoning_efforts"],
        help_text="Other values are rejected. If none is chosen, any value is forwarded.",
    )

    only_keys = forms.CharField(
        required=False,
        label="API keys",
        widget=UnfoldAdminTextInputWidget,
        help_text="Ids of the API keys whose requests are sent here, separated by commas. Empty means every key.",
    )

    class Meta:
        model = Model
        fields = [
            "name",
            "upstream",
            "upstream_model",
            "priority",
            "weight",
            "fallback_for",
            "serves",
            *LIMITS,
            "only_metadata",
            "enabled",
            "shutdown_date",
            *(field.name for field in fields(Capabilities)),
        ]
        labels = _LABELS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None:
            with scope.every_team():
                keys = self.instance.keys.order_by("pk").values_list("pk", flat=True)
                self.initial.setdefault("only_keys", ", ".join(keys))

    def clean_only_keys(self) -> list[str]:
        """Return the ids."""
        ids = [key.strip() for key in str(self.cleaned_data["only_keys"]).split(",") if key.strip()]
        services.check_keys(ids)
        return ids

    def clean_only_metadata(self) -> dict[str, str]:
        """Return the pairs. The column's own validators do not see values that count as empty, such as a list."""
        pairs = self.cleaned_data["only_metadata"]
        if pairs is None:
            return {}
        validate_metadata(pairs)
        return pairs  # type: ignore[no-any-return]


def fieldsets() -> list[tuple[str, dict[str, Any]]]:
    """Return the groups as fieldsets of the admin. Raises `ImproperlyConfigured` for a capability without a group."""
    # A forgotten capability would silently be missing from the form.
    grouped = {name for _, names in GROUPS for name in names}
    missing = {field.name for field in fields(Capabilities)} - grouped
    if missing:
        raise ImproperlyConfigured(f"Capabilities without a group: {', '.join(sorted(missing))}.")
    limits = {"fields": [*LIMITS, "only_keys", "only_metadata"], "classes": ["collapse"]}
    return [
        ("Limits and restrictions", limits),
        *((title, {"fields": list(names), "classes": ["tab"]}) for title, names in GROUPS),
    ]


def capability_labels(model: Model) -> list[str]:
    """Return short labels of the capabilities that differ from the defaults."""
    defaults, actual = Capabilities(), model.capabilities()
    labels = []
    for field in fields(Capabilities):
        value = getattr(actual, field.name)
        if value != getattr(defaults, field.name):
            label = _LABELS[field.name][0].lower() + _LABELS[field.name][1:]
            match value:
                case True:
                    labels.append(label)
                case False:
                    labels.append(f"no {label}")
                case tuple():
                    labels.append(f"{label} {', '.join(value)}")
                case _:
                    labels.append(f"{label} {value}")
    return labels
