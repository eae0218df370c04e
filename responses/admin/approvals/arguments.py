"""Arguments of a call as a form: labels and descriptions from the schema of its tool, values as text, nested lists."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from conversations.models import Placement
from responses.admin.redaction import REDACTED, redacted
from responses.models import Decision
from responses.runs.decisions.listing import Subject

_FOLDED_CHARACTERS, _PREVIEW_CHARACTERS = 400, 120
# Deeper values and further entries are shown as JSON: a page with tens of thousands of elements is not readable.
_MAX_DEPTH, _MAX_ENTRIES = 5, 100
_COMBINATIONS = ("allOf", "anyOf", "oneOf")
Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """An argument, or a value inside of one. `name` is its name in the call if the label differs from it.

    An object or a list has `children`, any other value has a `text`. `note` replaces an empty text.
    """

    label: str
    name: str = ""
    description: str = ""
    text: str = ""
    note: str = ""
    children: Sequence["Argument"] = ()

    @property
    def is_folded(self) -> bool:
        """True if the text is too long to be shown at once."""
        return len(self.text) > _FOLDED_CHARACTERS

    @property
    def size(self) -> str:
        """The length of the text."""
        return f"{len(self.text):,} characters"

    @property
    def preview(self) -> str:
        """The beginning of a long text."""
        return self.text[:_PREVIEW_CHARACTERS]


def form_of(row: Decision, subject: Subject) -> list[Argument]:
    """Return the arguments of a call, without secrets."""
    schema = _schema_of(row, subject)
    arguments: Any = redacted(subject.arguments)
    if not isinstance(arguments, dict):
        return [_argument("arguments", arguments, schema, root=schema, depth=0)]
    return list(_members(arguments, schema, root=schema, depth=0))


def values_of(values: Mapping[str, Any], schema: Schema) -> list[Argument]:
    """Return values that a schema describes, without secrets."""
    return list(_members(redacted(values), schema, root=schema, depth=0))


def _schema_of(row: Decision, subject: Subject) -> Schema:
    """Return the input schema of the tool as its server has listed it; empty if the list is not stored."""
    response = row.response
    owners = [owner for owner in (response.pk, response.previous_response_id, response.conversation_id) if owner]
    listed = Placement.objects.filter(owner__in=owners, item__type="mcp_list_tools").order_by("-id")
    for body in listed.values_list("item__body", flat=True)[:_MAX_ENTRIES]:
        if body.get("server_label") == subject.server:
            for tool in body.get("tools") or ():
                if tool.get("name") == subject.name:
                    return _object(tool.get("input_schema"))
    return {}


def _object(value: Any) -> Schema:
    return value if isinstance(value, dict) else {}


def _members(values: Mapping[str, Any], schema: Schema, *, root: Schema, depth: int) -> Iterator[Argument]:
    known = _object(schema.get("properties"))
    # In the order of the schema, whose author has put related arguments together.
    names = [*(name for name in known if name in values), *(name for name in values if name not in known)]
    for name in names[:_MAX_ENTRIES]:
        yield _argument(name, values[name], _resolved(known.get(name), root), root=root, depth=depth)
    if rest := {name: values[name] for name in names[_MAX_ENTRIES:]}:
        yield Argument(label=f"{len(rest):,} more", text=_json(rest))


def _entries(values: Sequence[Any], schema: Schema, *, root: Schema, depth: int) -> Iterator[Argument]:
    shown = _resolved(schema.get("items"), root)
    for number, value in enumerate(values[:_MAX_ENTRIES], 1):
        yield _argument(str(number), value, {**shown, "title": str(number)}, root=root, depth=depth)
    if rest := values[_MAX_ENTRIES:]:
        yield Argument(label=f"{len(rest):,} more", text=_json(rest))


def _argument(name: str, value: Any, schema: Schema, *, root: Schema, depth: int) -> Argument:
    title, description = schema.get("title"), schema.get("description")
    label = title if isinstance(title, str) and title else name.replace("_", " ").strip().capitalize() or name
    shown: dict[str, Any] = {
        "label": label,
        "name": "" if label == name else name,
        "description": description if isinstance(description, str) else "",
    }
    if schema.get("format") == "password" or schema.get("writeOnly") is True:
        return Argument(**shown, text=REDACTED)
    match value:
        case dict() | list() if value and depth < _MAX_DEPTH:
            read: Any = _members if isinstance(value, dict) else _entries
            return Argument(**shown, children=list(read(value, schema, root=root, depth=depth + 1)))
        case str() if value:
            return Argument(**shown, text=value)
        case bool():
            return Argument(**shown, text="Yes" if value else "No")
        case "" | None | [] | {}:
            return Argument(**shown, note="empty text" if value == "" else "none" if value is None else "empty")
    return Argument(**shown, text=_json(value))


def _resolved(schema: Any, root: Schema) -> Schema:
    """Return a schema without a reference, or the first of its alternatives that says something about the value."""
    shown = _object(schema)
    reference = shown.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        found: Any = root
        for part in reference.removeprefix("#/").split("/"):
            found = _object(found).get(part)
        shown = {**_object(found), **shown}
    for combination in _COMBINATIONS:
        alternatives = shown.get(combination)
        if isinstance(alternatives, list):
            fitting = (_object(entry) for entry in alternatives)
            chosen = next((entry for entry in fitting if {"properties", "items", "$ref"} & entry.keys()), {})
            # Not followed further: schemas may refer to themselves.
            return {**(_resolved({"$ref": chosen["$ref"]}, root) if "$ref" in chosen else chosen), **shown}
    return shown


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
