# mypy: allow-subclassing-any
"""A model's capabilities on its page: in groups, with what each of them decides."""

from dataclasses import fields
from typing import Any

from django import forms
from django.core.exceptions import ImproperlyConfigured
from typing_extensions import override
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget

from tenants.capabilities import Capabilities
from tenants.models import Model
from tenants.prices import Prices

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Input", ("vision", "max_images", "inline_images", "files", "developer_role")),
    ("Answers", ("structured_output", "logprobs", "extra_sampling")),
    ("Tools", ("forced_tool_choice", "custom_tools")),
    (
        "Reasoning",
        ("reasoning_efforts", "reasoning_summaries", "raw_reasoning", "reasoning_field", "think_tags"),
    ),
    ("Tokens", ("context_window", "token_counting")),
)
_LABELS = {
    "vision": "Images",
    "max_images": "At most so many images",
    "inline_images": "Fetch images",
    "files": "Files",
    "developer_role": "Developer role",
    "custom_tools": "Custom tools",
    "forced_tool_choice": "Forced tool choice",
    "structured_output": "Structured output",
    "logprobs": "Log probabilities",
    "extra_sampling": "vLLM's sampling parameters",
    "reasoning_efforts": "Efforts",
    "reasoning_summaries": "Summaries",
    "raw_reasoning": "Show raw reasoning",
    "reasoning_field": "Send reasoning back in",
    "think_tags": "<think> tags",
    "context_window": "Context window",
    "token_counting": "Token counting",
}


class Efforts(forms.MultipleChoiceField):
    """The efforts that a model knows; none chosen: nobody knows which, so every one is sent on."""

    @override
    def clean(self, value: Any) -> list[str] | None:
        """None for no choice, as the column has it."""
        chosen: list[str] = super().clean(value)
        return chosen or None


class CapabilityForm(forms.ModelForm[Model]):
    """A model, its route and what it can do."""

    reasoning_efforts = Efforts(
        choices=[(effort, effort) for effort in EFFORTS],
        required=False,
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        label=_LABELS["reasoning_efforts"],
        help_text="Others are refused. Nothing chosen: whatever the client sends is sent on.",
    )

    class Meta:
        model = Model
        fields = [
            "name",
            "upstream",
            "upstream_model",
            "enabled",
            *(field.name for field in fields(Prices)),
            *(field.name for field in fields(Capabilities)),
        ]
        labels = _LABELS


def fieldsets() -> list[tuple[str, dict[str, Any]]]:
    """The groups as the admin's pages take them; a capability in no group could not be set."""
    grouped = {name for _, names in GROUPS for name in names}
    missing = {field.name for field in fields(Capabilities)} - grouped
    if missing:
        message = f"Capabilities in no group: {', '.join(sorted(missing))}."
        raise ImproperlyConfigured(message)
    prices = ("Prices", tuple(field.name for field in fields(Prices)))
    return [(title, {"fields": list(names), "classes": ["tab"]}) for title, names in (prices, *GROUPS)]


def capability_labels(model: Model) -> list[str]:
    """In a few words, what is not as it is with a model of which nothing is known."""
    ordinary, has = Capabilities(), model.capabilities()
    said = []
    for field in fields(Capabilities):
        value = getattr(has, field.name)
        if value != getattr(ordinary, field.name):
            label = _LABELS[field.name]
            said.append(_in_words(label[0].lower() + label[1:], value))
    return said


def _in_words(label: str, value: Any) -> str:
    match value:
        case True:
            return label
        case False:
            return f"no {label}"
        case tuple():
            return f"{label} {', '.join(value)}"
    return f"{label} {value}"
