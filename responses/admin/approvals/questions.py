"""The form of a question: a field for each value that the tool asks for, and the answer that it makes of them."""

import re
from datetime import UTC, datetime
from typing import Any

from django import forms
from django.http import QueryDict
from django.utils.html import escape
from typing_extensions import override
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanWidget,
)

from engine.calls.answer_forms import Action, AnswerField, InvalidAnswer, check_answer, fields_of
from engine.calls.questions import Question
from responses.lifecycle.decisions.decide import Answer

# Longer texts are written in several lines.
_LINE_CHARACTERS = 200
_INPUT_TYPES = {"email": "email", "uri": "url", "date": "date", "date-time": "datetime-local"}
_LOCAL_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?", re.ASCII)


class AnswerForm(forms.Form):
    """The answer to a question. Its fields are numbered, because tools choose any names.

    Only an answer that accepts the question has values.
    """

    def __init__(self, question: Question, data: QueryDict | None = None) -> None:
        super().__init__(data)
        self._question = question
        self._action: Action = "accept"
        match data.get("action") if data is not None else None:
            case "decline" | "cancel" as action:
                self._action = action
        entries = fields_of(question) if self.accepts and not question.url else ()
        self._entries = {f"field_{number}": entry for number, entry in enumerate(entries)}
        for name, entry in self._entries.items():
            self.fields[name] = _form_field(entry)
        self._content: dict[str, Any] | None = None

    @property
    def accepts(self) -> bool:
        """True unless the question is declined or cancelled."""
        return self._action == "accept"

    @override
    def clean(self) -> None:
        super().clean()
        content: dict[str, Any] = {}
        for name, entry in self._entries.items():
            value = _value(entry, self.cleaned_data.get(name))
            if value is None:
                continue
            if (defect := entry.defect(value)) is not None:
                self.add_error(name, defect)
            content[entry.name] = value
        if not self.errors:
            self._content = content if self.accepts and not self._question.url else None
            try:
                check_answer(self._question, self._action, self._content)
            except InvalidAnswer as invalid:
                names = [name for name, entry in self._entries.items() if entry.name == invalid.field]
                self.add_error(names[0] if names else None, invalid.message)

    def answer(self) -> Answer:
        """Return the valid data as an answer."""
        return Answer(action=self._action, content=self._content)


def _form_field(entry: AnswerField) -> forms.Field:
    shown: dict[str, Any] = {
        "label": entry.title,
        # Templates write help texts without escaping them.
        "help_text": escape(_help(entry)),
        # A required checkbox would have to be checked.
        "required": entry.required and entry.kind != "boolean",
        "initial": _initial(entry),
    }
    pairs = [(option.value, option.title) for option in entry.options]
    match entry.kind:
        case "boolean":
            return forms.BooleanField(**shown, widget=UnfoldBooleanWidget())
        case "choice":
            return forms.ChoiceField(**shown, choices=[("", "Choose"), *pairs], widget=UnfoldAdminSelectWidget())
        case "choices":
            widget = UnfoldAdminCheckboxSelectMultipleWidget()
            return forms.MultipleChoiceField(**shown, choices=pairs, widget=widget)
        case "integer" | "number" as kind:
            attrs = {"type": "number", "step": "1" if kind == "integer" else "any"}
            number = forms.IntegerField if kind == "integer" else forms.FloatField
            return number(**shown, widget=UnfoldAdminTextInputWidget(attrs={**attrs, **_bounds(entry, "min", "max")}))
        case "text":
            return forms.CharField(**shown, strip=bool(entry.format), widget=_text_widget(entry))


def _text_widget(entry: AnswerField) -> forms.Widget:
    attrs = _bounds(entry, "minlength", "maxlength")
    is_long = not entry.format and entry.maximum is not None and entry.maximum > _LINE_CHARACTERS
    kind = _INPUT_TYPES.get(entry.format, "text")
    # Browsers leave out the seconds of a time unless the step is a second.
    step = {"step": "1"} if kind == "datetime-local" else {}
    widget: forms.Widget = (
        UnfoldAdminTextareaWidget(attrs={**attrs, "rows": 4})
        if is_long
        else UnfoldAdminTextInputWidget(attrs={"type": kind, **attrs, **step})
    )
    return widget


def _bounds(entry: AnswerField, least: str, most: str) -> dict[str, str]:
    given = {least: entry.minimum, most: entry.maximum}
    return {name: str(bound) for name, bound in given.items() if bound is not None}


def _help(entry: AnswerField) -> str:
    """Return the description of the tool with the limits that the browser does not show."""
    unit = {"text": " characters", "choices": " options"}.get(entry.kind, "")
    match entry.minimum, entry.maximum:
        case None, None:
            limits = ""
        case least, None:
            limits = f"At least {least}{unit}."
        case None, most:
            limits = f"At most {most}{unit}."
        case least, most:
            limits = f"{least} to {most}{unit}."
    zone = "Time in UTC." if entry.format == "date-time" else ""
    return " ".join(text for text in (entry.description, zone, limits) if text)


def _initial(entry: AnswerField) -> Any:
    if entry.format == "date-time" and entry.default is not None:
        at = datetime.fromisoformat(entry.default.upper()).astimezone(UTC)
        return f"{at:%Y-%m-%dT%H:%M:%S}"
    return entry.default


def _value(entry: AnswerField, given: Any) -> Any:
    """Return the value of a field as JSON; None if it has none."""
    match given:
        case "" | None:
            return None
        case [] if not entry.required:
            return None
        case str() if entry.format == "date-time" and (match := _LOCAL_TIME.fullmatch(given)):
            return f"{given}Z" if match[1] else f"{given}:00Z"
        case str():
            # Browsers send line breaks as two characters.
            return given.replace("\r\n", "\n")
    return given
