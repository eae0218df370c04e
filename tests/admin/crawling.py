"""URLs of all admin pages with arguments that belong to one team, for tests that open all of them.

The URLs come from the resolver, so that no new page is missed. A URL parameter without values in `ARGUMENTS` is an
error.
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

_ID = re.compile(r"\b[a-z]+[-_][0-9a-v]{20,36}\b")
_PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>|\(\?P<(\w+)>")
# Signing out would end the crawl. `admin:None` is Django's catch-all pattern for 404 pages.
_LEFT_OUT = {"admin:logout", "admin:None", "admin:jsi18n"}


@dataclass(frozen=True, kw_only=True)
class AdminRoute:
    """URL pattern below /admin/."""

    name: str
    route: str

    @property
    def parameters(self) -> list[str]:
        """Return the names of the URL parameters."""
        return [first or other for first, other in _PARAMETER.findall(self.route)]

    @property
    def model(self) -> type[models.Model] | None:
        """Return the model of the page, or None for a page without one."""
        parts = self.route.split("/")
        try:
            return apps.get_model(parts[1], parts[2])
        except (LookupError, IndexError, ValueError):
            return None

    def filled(self, values: Mapping[str, object]) -> str:
        """Return the URL with parameter values."""
        # Groups of regular expressions first: their names are written like parameters.
        url = re.sub(r"\(\?P<(\w+)>[^)]*\)", lambda found: str(values[found[1]]), self.route)
        url = re.sub(r"<(?:\w+:)?(\w+)>", lambda found: str(values[found[1]]), url)
        return "/" + url.replace("^", "").replace("$", "")


def admin_routes() -> list[AdminRoute]:
    """Return every URL pattern below /admin/."""
    found = {place.route: place for place in _walk(get_resolver().url_patterns, "", "")}
    return [place for place in found.values() if place.route.startswith("admin/") and place.name not in _LEFT_OUT]


def _walk(patterns: Sequence[URLPattern | URLResolver], prefix: str, namespace: str) -> Iterator[AdminRoute]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            inner = ":".join(part for part in (namespace, pattern.namespace) if part)
            yield from _walk(pattern.url_patterns, prefix + str(pattern.pattern), inner)
        else:
            yield AdminRoute(name=f"{namespace}:{pattern.name}", route=prefix + str(pattern.pattern))


@dataclass(kw_only=True, repr=False, eq=False)
class TeamData:
    """Data of a team: its rows by model, their ids, and marker words that occur in all texts."""

    team: Team
    markers: Sequence[str]
    rows: dict[type[models.Model], list[Any]] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, team: Team, *, markers: Sequence[str], most: int | None = None) -> "TeamData":
        """Read the rows of a team, at most `most` of each model."""
        data = cls(team=team, markers=markers)
        with scope.team(team.pk):
            for model in apps.get_models():
                if rows := _rows(model, team, most):
                    data.rows[model] = rows
                    data.ids |= set(_ID.findall(" ".join(f"{row.pk} {getattr(row, 'id', '')}" for row in rows)))
        return data

    def fingerprint(self) -> dict[str, list[Any]]:
        """Return the contents of the team's tables, to detect changes."""
        # Reading writes audit events and time stamps of last use, so these are left out.
        with scope.team(self.team.pk):
            return {
                model._meta.label: list(_of_team(model, self.team).values(*_columns(model)))
                for model in self.rows
                if model._meta.model_name != "auditevent"
            }


def _columns(model: type[models.Model]) -> list[str]:
    names = [first.attname for first in model._meta.concrete_fields]
    return [name for name in names if name not in {"last_login", "last_used_at"}]


def _rows(model: type[models.Model], team: Team, most: int | None) -> list[Any]:
    names = {first.name for first in model._meta.get_fields()}
    if not model._meta.managed or not (model is Team or "team" in names or model._meta.label == "auth.User"):
        return []
    return list(_of_team(model, team)[:most])


def _of_team(model: type[models.Model], team: Team) -> models.QuerySet[Any]:
    path = {"tenants.Team": "pk", "auth.User": "memberships__team_id"}.get(model._meta.label, "team_id")
    return model._default_manager.filter(**{path: team.pk}).order_by("pk")


def unknown_address(place: AdminRoute) -> str:
    """Return the URL of a route with ids that do not exist."""
    numbers = set(re.findall(r"<int:(\w+)>", place.route))
    return place.filled({name: UNKNOWN_NUMBER if name in numbers else UNKNOWN_ID for name in place.parameters})


UNKNOWN_ID, UNKNOWN_NUMBER = "unknown_01", 2_000_000_000
Values = Callable[[TeamData], Sequence[object]]
_SAMPLES = 2


def _of(label: str) -> Values:
    def given(data: TeamData) -> Sequence[object]:
        return [row.pk for row in data.rows.get(apps.get_model(label), [])[:_SAMPLES]]

    return given


# Values of URL parameters. Add an entry for each parameter of a new page.
ARGUMENTS: Mapping[str, Values] = {
    "public_id": lambda data: sorted({row.pk for rows in data.rows.values() for row in rows[:1] if _is_id(row.pk)}),
    "object_id": _of("responses.Response"),
    "app_label": lambda data: ["tenants", "responses", "conversations", "auth"],
    "content_type_id": lambda data: [1],
    "response_id": _of("responses.Response"),
    "conversation_id": _of("conversations.Conversation"),
    "team_id": _of("tenants.Team"),
    "model_id": lambda data: [1],
    "upstream_id": lambda data: ["upst_unknown"],
    "item_id": lambda data: [row.id for row in data.rows[apps.get_model("conversations.Item")][:_SAMPLES]],
    "key": _of("conversations.Item"),
    "number": lambda data: [0, 1],
    "pk": _of("responses.ToolCall"),
    "field": lambda data: ["arguments", "output"],
    "name": lambda data: ["request", "response", "curl", "python"],
    "what": lambda data: ["cancel", "requeue", "fail"],
    "file_id": _of("conversations.File"),
    "decision_id": _of("responses.Decision"),
}


def _is_id(value: object) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def addresses(place: AdminRoute, data: TeamData) -> list[str]:
    """Return the URLs of a route with values of the team."""
    values = [_values(place, name, data) for name in place.parameters]
    most = max(map(len, values), default=1)
    if any(not given for given in values):
        return []
    return [
        place.filled({name: given[index % len(given)] for name, given in zip(place.parameters, values, strict=True)})
        for index in range(most)
    ]


def _values(place: AdminRoute, name: str, data: TeamData) -> Sequence[object]:
    if name in {"object_id", "id"} and (model := place.model) is not None:
        return [row.pk for row in _spread(data.rows.get(model, []))] or ["1"]
    if name not in ARGUMENTS:
        message = f"{place.route} ({place.name}): add values of <{name}> to ARGUMENTS in tests/admin/crawling.py"
        raise LookupError(message)
    return list(ARGUMENTS[name](data))


def _spread(rows: Sequence[Any]) -> Sequence[Any]:
    """Return the first and the last row."""
    return rows if len(rows) < _SAMPLES else [rows[0], rows[-1]]


def queries(data: TeamData) -> list[dict[str, str]]:
    """Return query strings that refer to data of the team."""
    team, response = data.team.pk, _of("responses.Response")(data)[0]
    key = _of("tenants.ApiKey")(data)[0]
    return [
        {},
        {"team": team, "team__id__exact": team, "period": "30d", "days": "30"},
        {"q": str(response), "id": str(response), "response": str(response), "from": str(response)},
        {"key": str(key), "api_key": str(key), "q": "PLAT-1204", "period": "30d", "format": "csv"},
    ]


def actions() -> Iterator[tuple[type[models.Model], str]]:
    """Yield every bulk action of every list."""
    for model, page in admin.site._registry.items():
        for action in page.actions or ():
            yield model, action if isinstance(action, str) else action.__name__


def body(answer: Any) -> bytes:
    """Return the body and the headers of an HTTP response."""
    if not answer.streaming:
        content = answer.content
    elif answer.is_async:
        content = asyncio.run(_collected(answer.streaming_content))
    else:
        content = b"".join(answer.streaming_content)
    return bytes(content) + str(answer.headers).encode()


async def _collected(pieces: AsyncIterable[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


def leaks(answer: Any, data: TeamData, *, asked: str = "") -> list[str]:
    """Return the team's markers and ids that an HTTP response contains, except the ids in `asked`."""
    content = body(answer).decode(errors="replace")
    markers = [word for word in data.markers if word in content]
    return markers + sorted((set(_ID.findall(content)) & data.ids) - set(_ID.findall(asked)))
