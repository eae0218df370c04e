"""Knows every address of the admin, and what of a team is asked for at each: for tests that open all of them.

Addresses come out of the resolver, so that no new page is forgotten; one whose arguments nobody has named here is an
error that says so.
"""

import asyncio
import re
from collections.abc import AsyncIterable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.apps import apps
from django.contrib import admin
from django.db import models
from django.urls import URLPattern, URLResolver, get_resolver

from tenants import scope
from tenants.models import Team

_ID = re.compile(r"\b[a-z]+[-_][0-9a-f]{36}\b")
_PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>|\(\?P<(\w+)>")
# Signing out ends the crawl, and the last is Django's way to a 404.
_LEFT_OUT = {"admin:logout", "admin:None", "admin:jsi18n"}


@dataclass(frozen=True, kw_only=True)
class Place:
    """An address pattern below /admin/."""

    name: str
    route: str

    @property
    def parameters(self) -> list[str]:
        """The names of what stands in it."""
        return [one or other for one, other in _PARAMETER.findall(self.route)]

    @property
    def model(self) -> type[models.Model] | None:
        """The table whose page it is, or is about."""
        parts = self.route.split("/")
        try:
            return apps.get_model(parts[1], parts[2])
        except (LookupError, IndexError, ValueError):
            return None

    def filled(self, values: Mapping[str, object]) -> str:
        """The address with these values."""
        url = re.sub(r"<(?:\w+:)?(\w+)>", lambda found: str(values[found[1]]), self.route)
        url = re.sub(r"\(\?P<(\w+)>[^)]*\)", lambda found: str(values[found[1]]), url)
        return "/" + url.replace("^", "").replace("$", "")


def places() -> list[Place]:
    """Every address below /admin/."""
    found = {place.route: place for place in _walk(get_resolver().url_patterns, "", "")}
    return [place for place in found.values() if place.route.startswith("admin/") and place.name not in _LEFT_OUT]


def _walk(patterns: Sequence[URLPattern | URLResolver], prefix: str, namespace: str) -> Iterator[Place]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            inner = ":".join(part for part in (namespace, pattern.namespace) if part)
            yield from _walk(pattern.url_patterns, prefix + str(pattern.pattern), inner)
        else:
            yield Place(name=f"{namespace}:{pattern.name}", route=prefix + str(pattern.pattern))


@dataclass(kw_only=True, repr=False, eq=False)
class Subject:
    """A team whose data nobody else may see: its rows by table, and the words that stand in all of them."""

    team: Team
    words: Sequence[str]
    rows: dict[type[models.Model], list[Any]] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, team: Team, *, words: Sequence[str]) -> "Subject":
        """The team as it is stored."""
        subject = cls(team=team, words=words)
        with scope.team(team.pk):
            for model in apps.get_models():
                if rows := _rows(model, team):
                    subject.rows[model] = rows
                    subject.ids |= set(_ID.findall(" ".join(f"{row.pk} {getattr(row, 'id', '')}" for row in rows)))
        return subject

    def fingerprint(self) -> dict[str, list[Any]]:
        """What its tables hold, to see whether anything has changed. Who reads is noted, and when somebody came."""
        with scope.team(self.team.pk):
            return {
                model._meta.label: list(_of_team(model, self.team).values(*_columns(model)))
                for model in self.rows
                if model._meta.model_name != "auditevent"
            }


def _columns(model: type[models.Model]) -> list[str]:
    names = [one.attname for one in model._meta.concrete_fields]
    return [name for name in names if name not in {"last_login", "last_used_at"}]


def _rows(model: type[models.Model], team: Team) -> list[Any]:
    names = {one.name for one in model._meta.get_fields()}
    if not model._meta.managed or not (model is Team or "team" in names or model._meta.label == "auth.User"):
        return []
    return list(_of_team(model, team))


def _of_team(model: type[models.Model], team: Team) -> models.QuerySet[Any]:
    path = {"tenants.Team": "pk", "auth.User": "memberships__team_id"}.get(model._meta.label, "team_id")
    return model._default_manager.filter(**{path: team.pk}).order_by("pk")


Given = Callable[[Subject], Sequence[object]]
_SAMPLES = 2


def _of(label: str) -> Given:
    def given(subject: Subject) -> Sequence[object]:
        return [row.pk for row in subject.rows.get(apps.get_model(label), [])[:_SAMPLES]]

    return given


# What stands in addresses beside the row of their table. A new page says here what it takes.
ARGUMENTS: Mapping[str, Given] = {
    "public_id": lambda subject: sorted(
        {row.pk for rows in subject.rows.values() for row in rows[:1] if _is_id(row.pk)}
    ),
    "object_id": _of("responses.Response"),
    "app_label": lambda subject: ["tenants", "responses", "conversations", "auth"],
    "content_type_id": lambda subject: [1],
    "response_id": _of("responses.Response"),
    "conversation_id": _of("conversations.Conversation"),
    "team_id": _of("tenants.Team"),
    "model_id": lambda subject: [1],
    "upstream_id": lambda subject: ["upst_unknown"],
    "item_id": lambda subject: [row.id for row in subject.rows[apps.get_model("conversations.Item")][:_SAMPLES]],
    "key": _of("conversations.Item"),
    "number": lambda subject: [0, 1],
    "pk": _of("responses.ToolCall"),
    "field": lambda subject: ["arguments", "output"],
    "name": lambda subject: ["request", "response", "curl", "python"],
    "what": lambda subject: ["cancel", "requeue", "fail"],
    "file_id": _of("conversations.File"),
}


def _is_id(value: object) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def addresses(place: Place, subject: Subject) -> list[str]:
    """The addresses of a place that ask for something of the team."""
    values = [_values(place, name, subject) for name in place.parameters]
    most = max(map(len, values), default=1)
    if any(not given for given in values):
        return []
    return [
        place.filled({name: given[index % len(given)] for name, given in zip(place.parameters, values, strict=True)})
        for index in range(most)
    ]


def _values(place: Place, name: str, subject: Subject) -> Sequence[object]:
    if name in {"object_id", "id"} and (model := place.model) is not None:
        return [row.pk for row in _spread(subject.rows.get(model, []))] or ["1"]
    if name not in ARGUMENTS:
        message = f"{place.route} ({place.name}): say in tests/admin/crawling.py what <{name}> can be"
        raise LookupError(message)
    return list(ARGUMENTS[name](subject))


def _spread(rows: Sequence[Any]) -> Sequence[Any]:
    """The first row and the last."""
    return rows if len(rows) < _SAMPLES else [rows[0], rows[-1]]


def queries(subject: Subject) -> list[dict[str, str]]:
    """What lists and pages can be narrowed to by the one who asks."""
    team, response = subject.team.pk, _of("responses.Response")(subject)[0]
    key = _of("tenants.ApiKey")(subject)[0]
    return [
        {},
        {"team": team, "team__id__exact": team, "period": "30d", "days": "30"},
        {"q": str(response), "id": str(response), "response": str(response), "from": str(response)},
        {"key": str(key), "api_key": str(key), "q": "PLAT-1204", "period": "30d", "format": "csv"},
    ]


def actions() -> Iterator[tuple[type[models.Model], str]]:
    """Each action of each list, as an administrator would have it."""
    for model, page in admin.site._registry.items():
        for action in page.actions or ():
            yield model, action if isinstance(action, str) else action.__name__


def body(answer: Any) -> bytes:
    """All of an answer: what it says, and its headers."""
    if not answer.streaming:
        said = answer.content
    elif answer.is_async:
        said = asyncio.run(_collected(answer.streaming_content))
    else:
        said = b"".join(answer.streaming_content)
    return bytes(said) + str(answer.headers).encode()


async def _collected(pieces: AsyncIterable[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


def leaks(answer: Any, subject: Subject, *, asked: str = "") -> list[str]:
    """What of the team stands in an answer, apart from what was asked by name."""
    told = body(answer).decode(errors="replace")
    words = [word for word in subject.words if word in told]
    return words + sorted((set(_ID.findall(told)) & subject.ids) - set(_ID.findall(asked)))
