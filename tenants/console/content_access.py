"""Access to content: prompts, outputs, and the arguments and outputs of tools.

Reading content is a separate permission (`view_content`). Users without it see everything else, with dots in place of
content. By giving a reason they can reveal the content of one team for 30 minutes. Reveals, and every reading by users
who are not members of the team, are recorded in the audit log.
"""

from collections.abc import Iterable
from datetime import timedelta
from itertools import chain
from typing import Any

from django import forms
from django.db.models import BooleanField, ExpressionWrapper, F, Model, Q, QuerySet, Value
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.http import url_has_allowed_host_and_scheme

from core.clock import now
from core.db.row_security import EVERY_TEAM
from tenants import scope
from tenants.audit import audit, audit_teams
from tenants.console.audited_admin import audit_row
from tenants.console.roles import EVERY_ROLE
from tenants.console.site import page, render
from tenants.console.viewer import Viewer
from tenants.models import AuditEvent, Reveal, Team

HIDDEN = "•••"
# Within this time, repeated readings of one object are also recorded only once.
REVEALED_FOR = timedelta(minutes=30)
_READ = "content.viewed"


def with_readable(viewer: Viewer, rows: QuerySet[Any]) -> QuerySet[Any]:
    """Annotate rows with `readable`: true if the viewer may read the content of the row.

    List columns use the annotation because they have no access to the viewer.
    """
    readable = Value(value=True) if EVERY_TEAM in viewer.reading else Q(team_id__in=viewer.reading)
    rows = rows.annotate(readable=ExpressionWrapper(readable, output_field=BooleanField()))
    return rows  # noqa: RET504 - the stubs call an annotated query set Any


def audit_read(viewer: Viewer, row: Model, *, team_id: str) -> None:
    """Record that a user reads content of a team without being a member, at most once per object within 30 minutes.

    Every page that shows content must call this.
    """
    if team_id in viewer.roles:
        return
    since = now() - REVEALED_FOR
    recent = AuditEvent.objects.filter(team_id=team_id, occurred_at__gte=since, action=_READ, actor=viewer.actor)
    if not recent.filter(target=str(row.pk)).exists():
        audit_row(viewer, row, "viewed", action=_READ, team_id=team_id)


def read_allowed(viewer: Viewer, row: Any) -> bool:
    """Return true if the user may read the content of this row of a team, and record that they read it."""
    if not viewer.may_read(row.team_id):
        return False
    audit_read(viewer, row, team_id=row.team_id)
    return True


def audit_team_reads(viewer: Viewer, team_ids: Iterable[str]) -> None:
    """Record that a user reads excerpts of many objects: one line with the teams of which the user is not a member.

    Teams whose line the user has written within 30 minutes are left out.
    """
    foreign = {team_id for team_id in team_ids if team_id not in viewer.roles}
    if not foreign:
        return
    with scope.every_team():
        recent = AuditEvent.objects.filter(occurred_at__gte=now() - REVEALED_FOR, action=_READ, actor=viewer.actor)
        of_one = recent.filter(team_id__in=foreign, target=F("team_id")).values_list("team_id", flat=True)
        of_several = recent.filter(team=None, team_ids__overlap=list(foreign)).values_list("team_ids", flat=True)
        new = foreign - {*of_one, *chain.from_iterable(ids or () for ids in of_several)}
        if len(new) == 1:
            (team_id,) = new
            audit(team_id=team_id, actor=viewer.actor, action=_READ, target=team_id)
        elif new:
            audit_teams(team_ids=new, actor=viewer.actor, action=_READ, target="teams")


class RevealForm(forms.Form):
    """Form with the team to reveal, the reason, and the page to return to."""

    team = forms.CharField(max_length=64)
    reason = forms.CharField(max_length=500, min_length=5)
    next = forms.CharField(max_length=2000, required=False)


@page("content/reveal/", name="reveal", viewers=EVERY_ROLE)
def reveal(request: HttpRequest, viewer: Viewer) -> HttpResponse:
    """Reveal the content of a team to the user for 30 minutes. Raises 404 for teams that they cannot see."""
    form = RevealForm(request.POST or None)
    if request.method != "POST" or not form.is_valid():
        title = "Reveal content"
        return render(request, "console/reveal.html", title=title, form=form, is_fullwidth=False)
    cleaned = form.cleaned_data
    team = Team.objects.filter(pk=cleaned["team"]).first()
    if team is None or not viewer.may(EVERY_ROLE, team):
        raise Http404
    if not viewer.may_read(team.pk):
        with scope.every_team():
            until = now() + REVEALED_FOR
            row = Reveal.objects.create(team=team, user_id=viewer.user_id, reason=cleaned["reason"], until=until)
            after = {"reason": row.reason, "until": until.isoformat()}
            audit_row(viewer, row, "revealed", action="content.revealed", after=after, target=team.pk)
    # `next` comes from the client, who must not be led to another site.
    target = cleaned["next"]
    is_local = url_has_allowed_host_and_scheme(target, allowed_hosts={request.get_host()})
    return HttpResponseRedirect(target if is_local else "/admin/")
