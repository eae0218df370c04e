"""First steps of a new installation: connect a model, create a team and a key, and watch the first request arrive.

They replace the home page of users without responses, are above it while there is no model, and are a page of their own
later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Any

from django.contrib import admin
from django.db.models import Model as DjangoModel
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from console.widgets import copyable, duration, when
from core.clock import now
from responses.admin import cells
from responses.models import Response
from tenants.console.site import page, render
from tenants.console.viewer import Viewer, viewer_of
from tenants.models import ApiKey, KeySource, Model, Team, Upstream

_NOW = "console/first_steps_now.html"
# The status with which htmx swaps the content and stops polling.
_STOP_POLLING = 286
# Responses that are listed as they arrive.
_MAX_ARRIVED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of the guide. `url` is empty if the user may not perform it."""

    title: str
    text: str
    link: str
    url: str
    is_done: bool


def is_model_missing(request: HttpRequest) -> bool:
    """Return whether there is no model yet, for users who may connect an upstream."""
    return _may_add(request, Upstream) and not _models().exists()


def first_steps(request: HttpRequest, *, since: datetime | None = None) -> dict[str, Any]:
    """Return the context of the guide. It lists the responses that arrive after `since`; None lists any."""
    viewer = viewer_of(request)
    rows = admin.site.get_model_admin(Response).get_queryset(request).order_by("-created_at", "-id")
    arrived = list(rows.filter(created_at__gte=since)[:_MAX_ARRIVED] if since else rows[:_MAX_ARRIVED])
    query = f"?since={int(since.timestamp() * 1000)}" if since else ""
    steps = _steps(request, viewer)
    return {
        "list": steps,
        "words": {2: "two", 3: "three", 4: "four"}[len(steps) + 1],
        "is_first": since is None,
        "is_over": bool(arrived) and arrived[0].ended_at is not None,
        "curl": _curl(request, viewer),
        "arrived": [
            {
                "id": copyable(row.pk, href=cells.url(row.pk)),
                "status": cells.status(row),
                "created": when(row.created_at),
                "model": row.model,
                "took": duration(row.duration_ms),
            }
            for row in arrived
        ],
        "poll_url": f"{reverse('console:first_steps')}{query}",
    }


@page("first-steps/", name="first_steps")
@require_safe
def first_steps_page(request: HttpRequest, viewer: Viewer) -> HttpResponse:
    """Render the guide, or for htmx the responses that have arrived."""
    if "HX-Request" in request.headers and "HX-History-Restore-Request" not in request.headers:
        found = first_steps(request, since=_since(request))
        status = _STOP_POLLING if found["is_over"] else HTTPStatus.OK
        return TemplateResponse(request, _NOW, {"steps": found, "is_update": True}, status=status)
    steps = first_steps(request, since=_since(request) or now())
    return render(request, "console/first_steps_page.html", title="First steps", steps=steps)


def _since(request: HttpRequest) -> datetime | None:
    text = request.GET.get("since", "")
    return datetime.fromtimestamp(int(text) / 1000, UTC) if text.isdecimal() and len(text) <= 13 else None


def _steps(request: HttpRequest, viewer: Viewer) -> Sequence[Step]:
    may_add = partial(_may_add, request)
    steps = [
        Step(
            title="Create a team",
            text="API keys, limits and stored data belong to a team."
            + ("" if may_add(Team) else " If you have no team, ask an administrator to create one."),
            link="Create team",
            url=reverse("admin:tenants_team_add") if may_add(Team) else "",
            is_done=viewer.teams().exists(),
        ),
        Step(
            title="Create an API key",
            text="The key is shown only once. Store it where your application can read it."
            + ("" if may_add(ApiKey) else " Team leads create API keys."),
            link="Create API key",
            url=reverse("admin:tenants_apikey_add") if may_add(ApiKey) else "",
            is_done=_keys(viewer).exists(),
        ),
    ]
    if may_add(Upstream):
        connect = Step(
            title="Connect a model server",
            text="The page tests the server, lists its models and sends a first request.",
            link="Add upstream",
            url=reverse("console:upstream_connect"),
            is_done=_models().exists(),
        )
        steps.insert(0, connect)
    return steps


def _may_add(request: HttpRequest, model: type[DjangoModel]) -> bool:
    return bool(admin.site.get_model_admin(model).has_add_permission(request))


def _models() -> QuerySet[Model]:
    return Model.objects.filter(enabled=True)


def _keys(viewer: Viewer) -> Any:
    keys, teams = ApiKey.objects.filter(source=KeySource.PERSON, revoked_at=None), viewer.team_ids()
    return keys if teams is None else keys.filter(team__in=teams)


def _curl(request: HttpRequest, viewer: Viewer) -> str:
    teams = viewer.team_ids()
    models = _models().exclude(name="*").order_by("name")
    if teams is not None:
        models = models.filter(Q(teams=None) | Q(teams__in=teams))
    model = models.values_list("name", flat=True).first() or "demo"
    return (
        f"curl {request.build_absolute_uri('/v1/responses')} \\\n"
        '  -H "Authorization: Bearer $API_KEY" \\\n  -H "Content-Type: application/json" \\\n'
        f"""  -d '{{"model": "{model}", "input": "What is 12*7?"}}'"""
    )
