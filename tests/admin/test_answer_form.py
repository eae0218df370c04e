"""The form of a question in the console: its fields, and the answer that it makes of what a person enters."""

from typing import Any

import pytest
from django.http import QueryDict

from engine.calls.answer_forms import Action
from engine.calls.questions import Question
from responses.admin.approvals.questions import AnswerForm
from responses.lifecycle.decisions.decide import Answer

COLORS = [{"const": "#f00", "title": "Red"}, {"const": "#00f", "title": "Blue"}]


def question(*required: str, **properties: Any) -> Question:
    """Return a question whose form has these properties."""
    return Question(message="Well?", schema={"type": "object", "properties": properties, "required": [*required]})


def filled(asked: Question, entries: str) -> AnswerForm:
    """Return the form of a question with the entries of a person, as a browser sends them."""
    form = AnswerForm(asked, QueryDict(entries))
    form.is_valid()
    return form


@pytest.mark.parametrize(
    ("schema", "entered", "value"),
    [
        ({"type": "string"}, "field_0=Ada", "Ada"),
        ({"type": "string", "maxLength": 500}, "field_0=a%0D%0Ab", "a\nb"),
        ({"type": "string", "format": "date-time"}, "field_0=2026-07-28T09:30", "2026-07-28T09:30:00Z"),
        ({"type": "string", "format": "date-time"}, "field_0=2026-07-28T09:30:15", "2026-07-28T09:30:15Z"),
        ({"type": "string", "format": "date-time"}, "field_0=2026-07-28T09:30:15%2B02:00", "2026-07-28T09:30:15+02:00"),
        ({"type": "string", "format": "email"}, "field_0=+ada@mail.example+", "ada@mail.example"),
        ({"type": "integer"}, "field_0=3", 3),
        ({"type": "number"}, "field_0=3.5", 3.5),
        ({"type": "boolean"}, "field_0=on", True),
        ({"type": "boolean"}, "", False),
        ({"type": "string", "oneOf": COLORS}, "field_0=%2300f", "#00f"),
        ({"type": "array", "items": {"anyOf": COLORS}}, "field_0=%2300f&field_0=%23f00", ["#00f", "#f00"]),
    ],
)
def test_entries_become_values_of_the_schema(schema: dict[str, Any], entered: str, value: Any) -> None:
    form = filled(question(value=schema), entered)
    assert form.errors == {}
    assert form.answer() == Answer(action="accept", content={"value": value})


def test_empty_fields_have_no_value() -> None:
    asked = question(
        name={"type": "string"}, size={"type": "integer"}, colors={"type": "array", "items": {"enum": ["a"]}}
    )
    assert filled(asked, "field_0=&field_1=").answer() == Answer(action="accept", content={})


def test_every_field_has_its_own_error() -> None:
    asked = question(
        "name",
        name={"type": "string"},
        mail={"type": "string", "format": "email"},
        size={"type": "integer", "minimum": 1},
        weight={"type": "number"},
        color={"type": "string", "enum": ["red"]},
        code={"type": "string", "pattern": "^[a-z]$"},
    )
    form = filled(asked, "field_1=me&field_2=0&field_3=1e999&field_4=blue")
    assert {name: [*errors] for name, errors in form.errors.items()} == {
        "field_0": ["This field is required."],
        "field_1": ["The value must be an email address."],
        "field_2": ["The value must be at least 1."],
        "field_3": ["Enter a number."],
        "field_4": ["Select a valid choice. blue is not one of the available choices."],
    }
    form = filled(asked, "field_0=Ada&field_5=1")
    assert [*form.non_field_errors()] == ["The content does not match the schema: '1' does not match '^[a-z]$'"]


def test_a_form_shows_titles_limits_and_defaults() -> None:
    asked = question(
        "seats",
        seats={"type": "integer", "title": "Seats", "description": "At one table.", "minimum": 1, "maximum": 9},
        at={"type": "string", "format": "date-time", "default": "2026-07-28T09:30:00+02:00"},
        notes={"type": "string", "maxLength": 500},
        color={"type": "string", "oneOf": COLORS, "default": "#00f"},
        extras={"type": "array", "items": {"anyOf": COLORS}, "minItems": 1},
        terms={"type": "boolean", "default": True},
    )
    page = str(AnswerForm(asked))
    assert "At one table. 1 to 9." in page
    assert 'type="number"' in page
    assert 'value="2026-07-28T07:30:00"' in page
    assert "<textarea" in page
    assert '<option value="#00f" selected>Blue</option>' in page
    assert "At least 1 options." in page
    assert "checked" in page


def test_a_question_with_a_page_has_no_fields() -> None:
    page = Question(message="Pay.", url="https://shop.example/")
    assert filled(page, "action=accept").answer() == Answer(action="accept")


@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_a_question_is_declined_without_values(action: Action) -> None:
    form = filled(question("name", name={"type": "string"}), f"action={action}&field_0=Ada")
    assert form.errors == {}
    assert form.answer() == Answer(action=action)


def test_texts_of_the_tool_are_escaped() -> None:
    attack = "<script>alert(1)</script>"
    asked = question(
        name={"type": "string", "title": attack, "description": attack, "default": attack},
        color={"type": "array", "items": {"anyOf": [{"const": attack, "title": attack}]}},
    )
    assert attack not in str(AnswerForm(asked))
