"""The playground: a page that asks our own API from the browser, and shows what comes as it comes.

The page gets a key of its own that lives for an hour and may read and make responses of one team; it stands in the
answer to one POST and in the memory of the page. What is asked is asked, stored and billed like anything else.
"""

import json
from datetime import timedelta
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse
from django.urls import reverse

from console import markdown
from console.widgets import size
from kernel.clock import now
from kernel.errors import BadRequest
from responses.admin import cells
from responses.admin.search.id_lookup import rows_of
from responses.models import Response
from responses.models.vector_stores import VectorStore
from responses.requests import rebuild
from tenants import scope, services
from tenants.console.audited_admin import actor
from tenants.console.content_access import audit_read, hidden_notice, may_read
from tenants.console.roles import CONTRIBUTORS, may, teams_for
from tenants.console.site import page, render
from tenants.models import ApiKey, KeySource, Model, Scope, Team

KEY_LIVES = timedelta(hours=1)
MOST_OPENED = 1_000_000
_SHOWN_STORES = 200
_SHOWN_TEAMS = 500
_SCOPES = (Scope.RESPONSES_READ.value, Scope.RESPONSES_WRITE.value)
_NAME_LENGTH = 120
_GONE = "There is no response of this id that you can open here."


@page("playground/", name="playground", viewers=CONTRIBUTORS)
def playground(request: HttpRequest) -> HttpResponse:
    """The page; `?from=` fills it with the request of a response, `?team=` chooses for whom to ask."""
    teams = list(teams_for(request, CONTRIBUTORS)[:_SHOWN_TEAMS])
    opened = _opened(request)
    wanted = opened["team_id"] if opened and "team_id" in opened else request.GET.get("team", "")
    team = next((each for each in teams if each.pk == wanted), None)
    if team is None and wanted:
        team = teams_for(request, CONTRIBUTORS).filter(pk=wanted).first()
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
    return render(
        request,
        "console/playground.html",
        title="Playground",
        teams=teams,
        team=team,
        models=_models(team),
        stores=_stores(team),
        data=data,
        opened=opened or {},
    )


@page("playground/key/", name="playground_key", viewers=CONTRIBUTORS)
def mint(request: HttpRequest) -> HttpResponse:
    """A key for the page, whose secret is in this answer and nowhere else."""
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    team = teams_for(request, CONTRIBUTORS).filter(pk=request.POST.get("team", "")).first()
    if team is None:
        raise PermissionDenied
    made = services.create_key(
        team=team,
        name=f"Playground of {request.user.get_username()}"[:_NAME_LENGTH],
        scopes=_SCOPES,
        expires_at=now() + KEY_LIVES,
        source=KeySource.PLAYGROUND,
        actor=actor(request),
        created_by=request.user.pk,
    )
    # Pages of the admin are never cached.
    return JsonResponse({"id": made.key.pk, "key": made.secret, "lives": int(KEY_LIVES.total_seconds())})


@page("playground/revoke/", name="playground_revoke", viewers=CONTRIBUTORS)
def revoke(request: HttpRequest) -> HttpResponse:
    """Revoke a key that this page was given; of nobody else's and of no other kind."""
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    keys = ApiKey.objects.filter(source=KeySource.PLAYGROUND, created_by_id=request.user.pk)
    key = keys.filter(pk=request.POST.get("key", "")).first()
    if key is None:
        raise Http404
    services.revoke_key(key=key, actor=actor(request))
    return HttpResponse(status=204)


@page("playground/render/", name="playground_render", viewers=CONTRIBUTORS)
def rendered(request: HttpRequest) -> HttpResponse:
    """The Markdown of an answer that has ended, as HTML that is safe to show. Nothing is kept."""
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    return HttpResponse(markdown.render(request.POST.get("text", "")))


@page("playground/ended/<str:response_id>/", name="playground_ended", viewers=CONTRIBUTORS)
def ended(request: HttpRequest, response_id: str) -> HttpResponse:
    """What is known of a response behind its end: what it cost."""
    row = rows_of(request, Response).filter(pk=response_id).first()
    if row is None:
        raise Http404
    return JsonResponse({"cost": cells.paid(row) if row.cost is not None else ""})


def _opened(request: HttpRequest) -> dict[str, Any] | None:
    """What the page shows of the response that it is opened from: the body of its request, or why there is none."""
    wanted = request.GET.get("from", "").strip().replace("\0", "")
    if not wanted:
        return None
    row: Response | None = rows_of(request, Response).defer(None).filter(pk=wanted).first()
    if row is None or not may(request, CONTRIBUTORS, row):
        return {"problem": _GONE}
    if not may_read(request, row.team_id):
        return {"team_id": row.team_id, "hidden": hidden_notice(request, row.team_id)}
    try:
        body = rebuild.rebuild_request(row)
    except BadRequest as refused:
        return {"team_id": row.team_id, "problem": refused.message}
    length = len(json.dumps(body))
    if length > MOST_OPENED:
        return {"team_id": row.team_id, "problem": f"Its request has {size(length)}: too much for a page."}
    audit_read(request, row, team_id=row.team_id)
    return {"team_id": row.team_id, "body": body, "id": row.pk, "url": cells.url(row.pk)}


def _models(team: Team | None) -> list[str]:
    """The names of the models that a team may use, as far as they have names."""
    if team is None:
        return []
    # With fewer teams in sight, models that belong to other teams would look like everybody's.
    with scope.every_team():
        visible = Q(teams__isnull=True) | Q(teams=team.pk)
        named = Model.objects.filter(visible, enabled=True).exclude(name="*")
        return sorted(set(named.values_list("name", flat=True)))


def _stores(team: Team | None) -> list[VectorStore]:
    if team is None:
        return []
    rows = VectorStore.objects.filter(team_id=team.pk).only("id", "name").order_by("-created_at", "-id")
    return list(rows[:_SHOWN_STORES])
