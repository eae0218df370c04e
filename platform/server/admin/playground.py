"""Playground: a page that calls the platform's own API from the browser and shows the events as they arrive.

The page gets an API key that is valid for an hour and may read and create responses of one team. Its secret exists only
in the answer to one POST and in the memory of the page. Requests are stored and billed like any others.
"""

import json
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse
from django.views.decorators.http import require_POST

from console import markdown
from console.widgets import size
from core.clock import now
from core.errors import BadRequest
from responses.admin import cells
from responses.models import Response
from responses.models.vector_stores import VectorStore
from responses.requests import rebuild
from server.admin.search.lookup import rows_of
from tenants import scope, services
from tenants.console.content_access import audit_read
from tenants.console.roles import CONTRIBUTORS
from tenants.console.site import page, render
from tenants.console.viewer import Viewer
from tenants.models import ApiKey, KeySource, Model, Scope, Team

KEY_LIFETIME = timedelta(hours=1)
MAX_REQUEST_CHARACTERS = 1_000_000
_SHOWN_STORES = 200
_SHOWN_TEAMS = 500
# The minimum for the page, which lists no other objects and manages nothing.
_SCOPES = (Scope.RESPONSES_READ.value, Scope.RESPONSES_WRITE.value)
# The column length of `ApiKey.name`: usernames may be longer.
_NAME_LENGTH = 120
_NOT_FOUND = "Response not found."


@page("playground/", name="playground", viewers=CONTRIBUTORS)
def playground(request: HttpRequest, viewer: Viewer) -> HttpResponse:
    """Serve the page. `?from=` fills it with the request of a response, `?team=` selects the team."""
    teams = list(viewer.teams(CONTRIBUTORS)[:_SHOWN_TEAMS])
    opened = _opened_response(request, viewer)
    team_id = opened["team_id"] if opened and "team_id" in opened else request.GET.get("team", "")
    team = next((row for row in teams if row.pk == team_id), None)
    if team is None and team_id:
        # A user may see more teams than the list shows: the team asked for is looked up separately.
        team = viewer.teams(CONTRIBUTORS).filter(pk=team_id).first()
        teams += [team] if team else []
    team = team or (teams[0] if teams else None)
    data = {
        "team": team.pk if team else "",
        "opened": opened.get("body") if opened else None,
        "mint": reverse("console:playground_key"),
        "revoke": reverse("console:playground_revoke"),
        "render": reverse("console:playground_render"),
        "ended": reverse("console:playground_ended", args=["ID"]),
        "go": reverse("console:go", args=["ID"]),
        "here": reverse("console:playground"),
    }
    stores = VectorStore.objects.filter(team_id=team.pk if team else "")
    return render(
        request,
        "console/playground.html",
        title="Playground",
        teams=teams,
        team=team,
        models=_models(team),
        stores=list(stores.only("id", "name").order_by("-created_at", "-id")[:_SHOWN_STORES]) if team else [],
        data=data,
        opened=opened or {},
    )


@page("playground/key/", name="playground_key", viewers=CONTRIBUTORS)
@require_POST
def create_key(request: HttpRequest, viewer: Viewer) -> HttpResponse:
    """Create an API key for the page. Its secret is in this answer and nowhere else."""
    team = viewer.teams().filter(pk=request.POST.get("team", "").replace("\x00", "")).first()
    if team is None:
        raise Http404
    if not viewer.may(CONTRIBUTORS, team):
        raise PermissionDenied
    spec = services.KeySpec(
        name=f"Playground of {request.user.get_username()}"[:_NAME_LENGTH],
        scopes=_SCOPES,
        expires_at=now() + KEY_LIFETIME,
        source=KeySource.PLAYGROUND,
        created_by=viewer.user_id,
    )
    made = services.create_key(team=team, spec=spec, actor=viewer.actor)
    # Responses of the admin are never cached, so no cache stores the secret.
    return JsonResponse({"id": made.key.pk, "key": made.secret, "lives": int(KEY_LIFETIME.total_seconds())})


@page("playground/revoke/", name="playground_revoke", viewers=CONTRIBUTORS)
@require_POST
def revoke(request: HttpRequest, viewer: Viewer) -> HttpResponse:
    """Revoke a playground key of the current user. Raises 404 for any other key."""
    keys = ApiKey.objects.filter(source=KeySource.PLAYGROUND, created_by_id=viewer.user_id)
    key = keys.filter(pk=request.POST.get("key", "")).first()
    if key is None:
        raise Http404
    services.revoke_key(key=key, actor=viewer.actor)
    return HttpResponse(status=HTTPStatus.NO_CONTENT)


@page("playground/render/", name="playground_render", viewers=CONTRIBUTORS)
@require_POST
def render_markdown(request: HttpRequest, viewer: Viewer) -> HttpResponse:
    """Render the Markdown of a finished answer as sanitised HTML. Nothing is stored."""
    return HttpResponse(markdown.render(request.POST.get("text", "")))


@page("playground/ended/<str:response_id>/", name="playground_ended", viewers=CONTRIBUTORS)
def ended(request: HttpRequest, viewer: Viewer, response_id: str) -> HttpResponse:
    """Return the cost of a finished response. The API does not report it."""
    row = rows_of(request, Response).filter(pk=response_id).first()
    if row is None:
        raise Http404
    return JsonResponse({"cost": cells.cost(row)})


def _opened_response(request: HttpRequest, viewer: Viewer) -> dict[str, Any] | None:
    """Return the request body of the response that `?from=` names, or the reason why it cannot be shown.

    None without `?from=`.
    """
    response_id = request.GET.get("from", "").strip().replace("\0", "")
    if not response_id:
        return None
    # The list of responses defers the parameters, which rebuilding the request needs.
    row: Response | None = rows_of(request, Response).defer(None).filter(pk=response_id).first()
    if row is None or not viewer.may(CONTRIBUTORS, row):
        return {"problem": _NOT_FOUND}
    if not viewer.may_read(row.team_id):
        return {"team_id": row.team_id, "hidden_team": row.team_id}
    try:
        body = rebuild.rebuild_request(row)
    except BadRequest as refused:
        return {"team_id": row.team_id, "problem": refused.message}
    # The body is embedded in the page as JSON and copied into form fields.
    length = len(json.dumps(body))
    if length > MAX_REQUEST_CHARACTERS:
        return {"team_id": row.team_id, "problem": f"The request is too large for the playground ({size(length)})."}
    audit_read(viewer, row, team_id=row.team_id)
    return {"team_id": row.team_id, "body": body, "id": row.pk, "url": cells.url(row.pk)}


def _models(team: Team | None) -> list[str]:
    """Return the names of the models that a team may use, without wildcard entries."""
    if team is None:
        return []
    # In a narrower scope, assignments to other teams are invisible, and their models would look unrestricted.
    with scope.every_team():
        visible = Q(teams__isnull=True) | Q(teams=team.pk)
        named = Model.objects.filter(visible, enabled=True).exclude(name="*")
        return sorted(set(named.values_list("name", flat=True)))
