"""The forms of questions: fields from their schemas, and answers that are checked against them."""

from typing import Any

import pytest

from engine.calls.answer_forms import InvalidAnswer, UnusableQuestion, check_answer, check_question, fields_of
from engine.calls.questions import Question

COLORS = [{"const": "#f00", "title": "Red"}, {"const": "#00f", "title": "Blue"}]


def question(*required: str, **properties: Any) -> Question:
    """Return a question whose form has these properties."""
    return Question(message="Well?", schema={"type": "object", "properties": properties, "required": [*required]})


def rejection(asked: Question, content: dict[str, Any] | None, action: Any = "accept") -> tuple[str | None, str]:
    """Return the field and the message of the error that an answer causes."""
    with pytest.raises(InvalidAnswer) as raised:
        check_answer(asked, action, content)
    return raised.value.field, raised.value.message


def test_fields_have_the_titles_limits_and_options_of_their_schemas() -> None:
    asked = question(
        "name",
        name={"type": "string", "title": "Your name", "description": "In full.", "minLength": 2, "maxLength": 5},
        how_many={"type": "integer", "minimum": 1, "default": 3},
        color={"type": "string", "oneOf": COLORS},
        legacy={"type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"]},
        several={"type": "array", "items": {"anyOf": COLORS}, "maxItems": 1},
        words={"type": "array", "items": {"type": "string", "enum": ["x", "y"]}, "default": ["y"]},
    )
    check_question(asked)
    name, number, color, legacy, several, words = fields_of(Question.restored(asked.stored()))
    assert (name.title, name.description, name.required, name.minimum, name.maximum) == (
        "Your name",
        "In full.",
        True,
        2,
        5,
    )
    assert (number.title, number.kind, number.required, number.default, number.minimum) == (
        "How many",
        "integer",
        False,
        3,
        1,
    )
    assert (color.kind, [(option.value, option.title) for option in color.options]) == (
        "choice",
        [("#f00", "Red"), ("#00f", "Blue")],
    )
    assert [option.title for option in legacy.options] == ["A", "B"]
    assert (several.kind, several.maximum, len(several.options)) == ("choices", 1, 2)
    assert ([option.title for option in words.options], words.default) == (["x", "y"], ["y"])


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        ({"type": "string", "minLength": 2}, "a", "The number of characters must be at least 2."),
        ({"type": "string", "maxLength": 2}, "abc", "The number of characters must be at most 2."),
        ({"type": "string"}, 1, "The value must be a string."),
        ({"type": "string"}, "a\x00", "The value must have at most 20,000 characters, and no NUL."),
        ({"type": "string", "format": "email"}, "me", "The value must be an email address."),
        ({"type": "string", "format": "uri"}, "shop.example", "The value must be a URL with its scheme."),
        ({"type": "string", "format": "date"}, "2026-02-30", "The value must be a date such as 2026-07-28."),
        (
            {"type": "string", "format": "date-time"},
            "2026-07-28T09:30:00",
            _TIME := ("The value must be a date and time with its time zone, such as 2026-07-28T09:30:00Z."),
        ),
        ({"type": "string", "format": "date-time"}, "2026-07-28T25:30:00Z", _TIME),
        ({"type": "integer"}, 1.5, "The value must be an integer."),
        ({"type": "integer"}, True, "The value must be an integer."),
        ({"type": "integer"}, 2**63, "The value is too large."),
        ({"type": "number", "maximum": 1.5}, 2, "The value must be at most 1.5."),
        ({"type": "boolean"}, "yes", "The value must be true or false."),
        ({"type": "string", "enum": ["a"]}, "b", "The value must be one of the options."),
        ({"type": "array", "items": {"enum": ["a"]}}, ["b"], "Each value must be one of the options."),
        ({"type": "array", "items": {"enum": ["a"]}}, ["a", "a"], "An option cannot be chosen twice."),
        (
            {"type": "array", "items": {"enum": ["a"]}, "minItems": 1},
            [],
            "The number of chosen options must be at least 1.",
        ),
        ({"type": "array", "items": {"enum": ["a"]}}, "a", "The value must be a list of options."),
    ],
)
def test_invalid_values_are_rejected(schema: dict[str, Any], value: Any, reason: str) -> None:
    assert rejection(question(field=schema), {"field": value}) == ("field", reason)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string", "format": "email"}, "me@mail.example"),
        ({"type": "string", "format": "uri"}, "urn:isbn:1"),
        ({"type": "string", "format": "date"}, "2024-02-29"),
        ({"type": "string", "format": "date-time"}, "2026-07-28t09:30:00.25z"),
        ({"type": "string", "format": "unknown"}, "anything"),
        ({"type": "number"}, 2),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, ["b", "a"]),
        ({"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}], "title": "Note"}, "ab"),
    ],
)
def test_valid_values_are_accepted(schema: dict[str, Any], value: Any) -> None:
    asked = question(field=schema)
    check_question(asked)
    assert check_answer(asked, "accept", {"field": value}) == {"action": "accept", "content": {"field": value}}


def test_a_form_requires_its_required_fields_and_no_others() -> None:
    asked = question("name", name={"type": "string"}, note={"type": "string"})
    assert rejection(asked, None) == ("name", "This field is required.")
    assert rejection(asked, {"name": None}) == ("name", "This field is required.")
    assert rejection(asked, {"name": "Ada", "age": 1}) == ("age", "The form does not have this field.")
    answer = check_answer(asked, "accept", {"name": "Ada", "note": None})
    assert answer == {"action": "accept", "content": {"name": "Ada"}}


def test_keywords_beyond_the_restricted_schema_are_checked_too() -> None:
    asked = question(code={"type": "string", "pattern": "^[a-z]+$"})
    assert rejection(asked, {"code": "A1"})[1].startswith("The content does not match the schema: 'A1'")


def test_only_an_accepted_form_has_content() -> None:
    asked = question(name={"type": "string"})
    assert check_answer(asked, "decline", None) == {"action": "decline"}
    assert rejection(asked, {}, "cancel") == (None, "Only the answer that accepts a form has content.")
    page = Question(message="Pay.", url="https://shop.example/pay")
    assert check_answer(page, "accept", None) == {"action": "accept"}
    assert rejection(page, {"name": "Ada"}) == (None, "Only the answer that accepts a form has content.")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "string", "properties": {}},
        {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}},
        {"type": "object", "properties": {"a": {"type": "integer", "enum": [1, 2]}}},
        {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "number"}]}}},
        {"type": "object", "properties": {f"field_{number}": {"type": "string"} for number in range(51)}},
        {"type": "object", "properties": {"a": {"type": "string", "enum": [str(number) for number in range(501)]}}},
    ],
)
def test_schemas_that_are_not_forms_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(UnusableQuestion):
        check_question(Question(message="Well?", schema=schema))


def test_a_wrong_default_is_left_out() -> None:
    (field,) = fields_of(question(color={"type": "string", "enum": ["red"], "default": "green"}))
    assert field.default is None


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://shop.example/pay?id=1", "shop.example"),
        ("http://127.0.0.1:8080/", "127.0.0.1:8080"),
        ("https://pаypal.example/", "xn--pypal-4ve.example"),  # with a Cyrillic letter
    ],
)
def test_the_host_of_a_page_is_shown_in_ascii(url: str, host: str) -> None:
    asked = Question(message="Pay.", url=url)
    check_question(asked)
    assert asked.host == host


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "https:///x",
        "https://a@b.example",
        "https://a.example\\@b.example",
        "https://a.example:x/",
        "ftp://a",
    ],
)
def test_addresses_that_are_not_web_pages_are_refused(url: str) -> None:
    with pytest.raises(UnusableQuestion, match="not the address of a web page"):
        check_question(Question(message="Pay.", url=url))
