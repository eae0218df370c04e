"""Form of the filter by time."""

from collections.abc import Sequence
from typing import Any

from django import forms
from unfold.widgets import UnfoldAdminSelectWidget


class _DateInput(forms.DateInput):
    input_type = "date"


class _TimeInput(forms.TimeInput):
    input_type = "time"


class TimeForm(forms.Form):
    """A predefined period or a custom range, with the browser's own calendar."""

    def __init__(self, name: str, periods: Sequence[tuple[str, str]], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        widget = UnfoldAdminSelectWidget(attrs={"aria-label": "Period"})
        self.fields["period"] = forms.ChoiceField(required=False, choices=periods, widget=widget)
        for end, label in (("from", "From"), ("to", "To")):
            for part, (kind, unit) in enumerate(((_DateInput, "date"), (_TimeInput, "time"))):
                attrs = {"class": "c-input", "aria-label": f"{label}, {unit}", "title": f"{label}, {unit} (UTC)"}
                field = forms.CharField(required=False, label=label, widget=kind(attrs=attrs))
                self.fields[f"{name}_{end}_{part}"] = field
