"""Forms of questions: the fields that a question describes, and the check of an answer.

The schema of a question is the restricted JSON schema of MCP: an object whose properties are strings, numbers,
booleans, or a choice of one or several texts.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any, Literal
from urllib.parse import urlsplit

from engine.calls.questions import Question
from engine.constraints.json_schema import mismatch, schema_defect

MAX_FIELDS = 50
MAX_OPTIONS = 500
MAX_CHARACTERS = 20_000
"""Maximum length of a message, and of a text in an answer."""
_MAX_URL = 8192
_EMAIL = re.compile(r"[^@\s]+@[^@\s.]+(\.[^@\s.]+)+")
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE)
# Browsers ignore some of these characters in a URL, or read a backslash as a slash.
_UNSAFE = re.compile(r"[\x00-\x20\x7f\\]")
_FORMATS = {
    "email": "an email address",
    "uri": "a URL with its scheme",
    "date": "a date such as 2026-07-28",
    "date-time": "a date and time with its time zone, such as 2026-07-28T09:30:00Z",
}

FieldKind = Literal["text", "number", "integer", "boolean", "choice", "choices"]
Action = Literal["accept", "decline", "cancel"]
_NOUNS: Mapping[FieldKind, str] = {
    "text": "a string",
    "number": "a number",
    "integer": "an integer",
    "boolean": "true or false",
    "choice": "one of the options",
    "choices": "a list of options",
}
_BOUNDS: Mapping[FieldKind, tuple[str, str]] = {
    "text": ("minLength", "maxLength"),
    "number": ("minimum", "maximum"),
    "integer": ("minimum", "maximum"),
    "choices": ("minItems", "maxItems"),
}


class UnusableQuestion(ValueError):
    """A question cannot be shown to a person. The message is the reason."""


class InvalidAnswer(ValueError):
    """An answer does not match its question. `field` is the name of a field; None for the content as a whole."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        self.message = message
        self.field = field
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A value that can be chosen, and its title."""

    value: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerField:
    """A value of a form. `minimum` and `maximum` limit a number, the length of a text, or the number of choices."""

    name: str
    kind: FieldKind
    title: str
    description: str = ""
    required: bool = False
    default: Any = None
    format: str = ""
    minimum: float | None = None
    maximum: float | None = None
    options: Sequence[Option] = ()

    def defect(self, value: Any) -> str | None:
        """Return why the value cannot be one of this field; None if it can."""
        values = {option.value for option in self.options}
        match self.kind, value:
            case "boolean", bool():
                return None
            case "integer" | "number", int() if not isinstance(value, bool):
                return self._out_of_range(value, "The value") or (
                    None if _is_storable(value) else "The value is too large."
                )
            case "number", float():
                return self._out_of_range(value, "The value")
            case "text", str():
                return self._text_defect(value)
            case "choice", str():
                return None if value in values else "The value must be one of the options."
            case "choices", list() if all(isinstance(entry, str) for entry in value):
                if not values.issuperset(value):
                    return "Each value must be one of the options."
                if len(set(value)) < len(value):
                    return "An option cannot be chosen twice."
                return self._out_of_range(len(value), "The number of chosen options")
        return f"The value must be {_NOUNS[self.kind]}."

    def _text_defect(self, value: str) -> str | None:
        if len(value) > MAX_CHARACTERS or "\x00" in value:
            return f"The value must have at most {MAX_CHARACTERS:,} characters, and no NUL."
        if (defect := self._out_of_range(len(value), "The number of characters")) is not None:
            return defect
        return None if _has_format(value, self.format) else f"The value must be {_FORMATS[self.format]}."

    def _out_of_range(self, number: float, subject: str) -> str | None:
        if self.minimum is not None and number < self.minimum:
            return f"{subject} must be at least {self.minimum}."
        if self.maximum is not None and number > self.maximum:
            return f"{subject} must be at most {self.maximum}."
        return None


def check_question(question: Question) -> None:
    """Raise `UnusableQuestion` if the question cannot be shown to a person."""
    if not question.message or len(question.message) > MAX_CHARACTERS:
        raise UnusableQuestion(f"its message must have 1 to {MAX_CHARACTERS:,} characters")
    if question.url:
        _check_url(question.url)
        return
    if (defect := schema_defect({**question.schema})) is not None:
        raise UnusableQuestion(f"its schema is invalid: {defect}")
    fields_of(question)


def check_answer(question: Question, action: Action, content: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return an answer as the tool receives it. Raises `InvalidAnswer`."""
    if action != "accept" or question.url:
        if content is not None:
            raise InvalidAnswer("Only the answer that accepts a form has content.")
        return {"action": action}
    # Null stands for a field without a value.
    given = {name: value for name, value in (content or {}).items() if value is not None}
    fields = {field.name: field for field in fields_of(question)}
    for name, value in given.items():
        if name not in fields:
            raise InvalidAnswer("The form does not have this field.", field=name)
        if (defect := fields[name].defect(value)) is not None:
            raise InvalidAnswer(defect, field=name)
    for name, field in fields.items():
        if field.required and name not in given:
            raise InvalidAnswer("This field is required.", field=name)
    # Servers also use keywords beyond the restricted schema, such as patterns.
    if (violation := mismatch({**question.schema}, given)) is not None:
        raise InvalidAnswer(f"The content does not match the schema: {violation}")
    return {"action": action, "content": given}


def fields_of(question: Question) -> list[AnswerField]:
    """Return the fields of a question, in order. Raises `UnusableQuestion` if its schema does not describe a form."""
    schema = question.schema
    properties, required = schema.get("properties"), schema.get("required", [])
    if schema.get("type") != "object" or not isinstance(properties, dict):
        raise UnusableQuestion("its schema is not an object with properties")
    if len(properties) > MAX_FIELDS:
        raise UnusableQuestion(f"its form has more than {MAX_FIELDS} fields")
    return [_field(name, shown, required=name in required) for name, shown in properties.items()]


def _field(name: str, schema: Any, *, required: bool) -> AnswerField:
    shown = _without_null(schema)
    kind, options = _kind(shown), _options(shown)
    if kind is None or len(options) > MAX_OPTIONS:
        raise UnusableQuestion(f"the type of the field '{name}' is not supported")
    least, most = _BOUNDS.get(kind, ("", ""))
    found = AnswerField(
        name=name,
        kind=kind,
        title=_text(shown.get("title")) or name.replace("_", " ").strip().capitalize() or name,
        description=_text(shown.get("description")),
        required=required,
        format=_text(shown.get("format")),
        minimum=shown.get(least),
        maximum=shown.get(most),
        options=options,
    )
    default = shown.get("default")
    # A person can complete a form with a wrong default, so it is only left out.
    return replace(found, default=default) if default is not None and found.defect(default) is None else found


def _without_null(schema: Any) -> Mapping[str, Any]:
    """Return the schema of the value of an optional field, whose alternative many servers describe as null."""
    shown: Mapping[str, Any] = schema if isinstance(schema, dict) else {}
    if "type" not in shown and isinstance(alternatives := shown.get("anyOf"), list):
        others = [entry for entry in alternatives if isinstance(entry, dict) and entry.get("type") != "null"]
        if len(others) == 1:
            return {**others[0], **{name: value for name, value in shown.items() if name != "anyOf"}}
    return shown


def _kind(schema: Mapping[str, Any]) -> FieldKind | None:
    has_options = bool(_options(schema))
    match schema.get("type"):
        case "string":
            return "choice" if has_options else "text"
        case "array":
            return "choices" if has_options else None
        case "number" | "integer" | "boolean" as kind:
            return None if "enum" in schema else kind
    return None


def _options(schema: Mapping[str, Any]) -> Sequence[Option]:
    """Return the options of a choice of one or several values; empty for any other schema."""
    pairs: list[tuple[Any, Any]] = []
    match schema.get("items") if schema.get("type") == "array" else schema:
        case {"enum": [*values], "enumNames": [*titles]} if len(values) == len(titles):
            pairs = list(zip(values, titles, strict=True))
        case {"enum": [*values]}:
            pairs = [(value, value) for value in values]
        case {"oneOf": [*entries]} | {"anyOf": [*entries]}:
            shown = [entry if isinstance(entry, dict) else {} for entry in entries]
            pairs = [(entry.get("const"), entry.get("title", entry.get("const"))) for entry in shown]
    if all(isinstance(value, str) and isinstance(title, str) for value, title in pairs):
        return [Option(value=value, title=title) for value, title in pairs]
    return ()


def _is_storable(number: int) -> bool:
    # JSON with larger integers can be neither written here nor read by many servers.
    return abs(number) < 2**63


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_page = parts.scheme in {"http", "https"} and bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:
        is_page = False
    # A user name before the host would look like the host.
    if not is_page or "@" in parts.netloc or _UNSAFE.search(url) or len(url) > _MAX_URL:
        raise UnusableQuestion("its URL is not the address of a web page")


def _has_format(value: str, name: str) -> bool:
    match name:
        case "email":
            return _EMAIL.fullmatch(value) is not None
        case "uri":
            return _is_uri(value)
        case "date":
            return _DATE.fullmatch(value) is not None and _parses(date.fromisoformat, value)
        case "date-time":
            return _DATE_TIME.fullmatch(value) is not None and _parses(datetime.fromisoformat, value.upper())
    return True


def _is_uri(value: str) -> bool:
    try:
        parts = urlsplit(value)
    except ValueError:
        return False
    return bool(parts.scheme and (parts.netloc or parts.path)) and not _UNSAFE.search(value)


def _parses(parse: Any, value: str) -> bool:
    try:
        parse(value)
    except ValueError:
        return False
    return True
