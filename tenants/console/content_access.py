"""Who may read what was said: prompts, answers, arguments and outputs of tools.

A right of its own beside the roles (`view_content`). Who lacks it sees everything else, and dots where words would
stand; with a reason, the content of one team is shown to them for half an hour. That, and what anybody who is not a
member of the team reads, stands in the audit log.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django import forms
from django.core.exceptions import PermissionDenied
from django.db.models import BooleanField, ExpressionWrapper, Model, Q, QuerySet, Value
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.safestring import SafeString

from kernel.clock import now
from kernel.row_security import EVERY_TEAM
from tenants import scope
from tenants.audit import audit
from tenants.console.audited_admin import actor, audit_row
from tenants.console.roles import EVERY_ROLE, may
from tenants.console.site import page, render
from tenants.console.viewer import Viewer, viewer
from tenants.models import AuditEvent, Reveal, Team

HIDDEN = "•••"
REVEALED_FOR = timedelta(minutes=30)
_READ = "content.viewed"


def may_read(request: HttpRequest, team_id: str) -> bool:
    """Whether the content of a team may be shown to the user. No query."""
    return viewer(request).may_read(team_id)


def words(request: HttpRequest, team_id: str, text: str) -> str:
    """The text, or dots in its place."""
    return text if not text or may_read(request, team_id) else HIDDEN


def with_readable(request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
    """The rows, each with `readable`: columns of a list know no request."""
    reading = viewer(request).reading
    readable = Value(value=True) if EVERY_TEAM in reading else Q(team_id__in=reading)
    rows = rows.annotate(readable=ExpressionWrapper(readable, output_field=BooleanField()))
    return rows  # noqa: RET504 - the stubs call an annotated query set Any


def hidden_notice(request: HttpRequest, team_id: str) -> SafeString:
    """What a page shows in the place of content: why it is hidden, and the form that reveals it."""
    context = {"team_id": team_id, "next": request.get_full_path()}
    return render_to_string("console/hidden.html", context, request=request)


def audit_read(request: HttpRequest, row: Model, *, team_id: str) -> None:
    """Note in the audit log that somebody reads the content of a team without being its member: once in a while for
    each object. To be called by whatever page shows content."""
    if team_id in viewer(request).roles:
        return
    since = now() - REVEALED_FOR
    lately = AuditEvent.objects.filter(team_id=team_id, occurred_at__gte=since, action=_READ, actor=actor(request))
    if not lately.filter(target=str(row.pk)).exists():
        audit_row(request, row, "viewed", action=_READ, team_id=team_id)


def audit_team_reads(who: Viewer, team_ids: Iterable[str]) -> None:
    """The same for somebody who reads a little of whatever these teams do: a line for each team, once in a while."""
    strange = {team_id for team_id in team_ids if team_id not in who.roles}
    if not strange:
        return
    with scope.every_team():
        lately = AuditEvent.objects.filter(occurred_at__gte=now() - REVEALED_FOR, action=_READ, target__in=strange)
        noted = set(lately.filter(team_id__in=strange, actor=f"user:{who.name}").values_list("target", flat=True))
        for team_id in strange - noted:
            audit(team_id=team_id, actor=f"user:{who.name}", action=_READ, target=team_id)


class RevealForm(forms.Form):
    """Whose content, why, and where to go on."""

    team = forms.CharField(max_length=64)
    reason = forms.CharField(max_length=500, min_length=5)
    next = forms.CharField(max_length=2000, required=False)


@page("content/reveal/", name="reveal", viewers=EVERY_ROLE)
def reveal(request: HttpRequest) -> HttpResponse:
    """Show the content of a team to the user for half an hour. POST only; 403 for a team that they cannot see."""
    form = RevealForm(request.POST or None)
    if request.method != "POST" or not form.is_valid():
        title = "Reveal content"
        return render(request, "console/reveal.html", title=title, form=form, is_fullwidth=False)
    wanted = form.cleaned_data
    team = Team.objects.filter(pk=wanted["team"]).first()
    if team is None or not may(request, EVERY_ROLE, team):
        raise PermissionDenied
    if not may_read(request, team.pk):
        with scope.every_team():
            until = now() + REVEALED_FOR
            row = Reveal.objects.create(team=team, user_id=request.user.pk or 0, reason=wanted["reason"], until=until)
            after = {"reason": row.reason, "until": until.isoformat()}
            audit_row(request, row, "revealed", action="content.revealed", after=after, target=team.pk)
    onward = wanted["next"]
    is_ours = url_has_allowed_host_and_scheme(onward, allowed_hosts={request.get_host()})
    return HttpResponseRedirect(onward if is_ours else "/admin/")
