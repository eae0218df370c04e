# mypy: allow-subclassing-any
"""The tab of a team's members, and what leads do there: add somebody by name, change a role, remove."""

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.admin import ModelAdmin

from tenants import members
from tenants.admin.team_tabs import tab
from tenants.console.audited_admin import actor
from tenants.console.roles import LEADS, may
from tenants.models import Membership, Role, Team

MOST = 200
_CONTENT = (("", "As the role has it"), ("yes", "Always"), ("no", "After a reveal"))
_READS: dict[str, bool | None] = {"": None, "yes": True, "no": False}
_LAST = "A team keeps at least one lead. Make somebody else a lead first."


class PersonForm(forms.Form):
    """Who is to belong to the team, and as what. People are named, never listed."""

    person = forms.CharField(max_length=254)
    role = forms.ChoiceField(choices=Role.choices, initial=Role.DEVELOPER)


class MemberForm(forms.Form):
    """What becomes of a member."""

    member = forms.IntegerField()
    role = forms.ChoiceField(choices=Role.choices)
    content = forms.ChoiceField(choices=_CONTENT, required=False)


def tab_url(team: Team, name: str) -> str:
    """The address of a tab."""
    return f"{reverse('admin:tenants_team_change', args=[team.pk])}?tab={name}"


@tab("members", title="Members", template="admin/tenants/team/members.html")
def members_of(request: HttpRequest, team: Team) -> dict[str, Any]:
    """The members by name, and for leads the forms."""
    found = Membership.objects.filter(team=team).select_related("user").order_by("user__username")[: MOST + 1]
    rows = list(found)
    content = {value: key for key, value in _READS.items()}
    return {
        "rows": [{"member": row, "content": content[row.view_content]} for row in rows[:MOST]],
        "is_cut": len(rows) > MOST,
        "most": MOST,
        "roles": Role.choices,
        "contents": _CONTENT,
        "may_manage": may(request, LEADS, team),
        "form": PersonForm(),
    }


class MemberActions(ModelAdmin):
    """What the forms of the tab do."""

    def members_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """POST only: `do` says what. Only leads of this very team (and administrators) get here."""
        team = self.get_object(request, object_id)
        if team is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[no-any-return]
        if not may(request, LEADS, team):
            raise PermissionDenied
        back = HttpResponseRedirect(tab_url(team, "members"))
        if request.method != "POST":
            return back
        try:
            match request.POST.get("do"):
                case "add":
                    self._add(request, team)
                case "change":
                    self._change(request, team)
                case "remove":
                    return self._remove(request, team) or back
        except members.LastLead:
            messages.error(request, _LAST)
        return back

    def _add(self, request: HttpRequest, team: Team) -> None:
        form = PersonForm(request.POST)
        person = members.find_person(form.cleaned_data["person"].strip()) if form.is_valid() else None
        if person is None:
            messages.error(request, "Nobody with exactly this username or e-mail address may sign in.")
            return
        role = Role(form.cleaned_data["role"])
        if members.add_member(team=team, user=person, role=role, actor=actor(request)) is None:
            messages.info(request, f"{person.get_username()} is a member already.")
        else:
            messages.success(request, f"{person.get_username()} is a member of {team.name} now.")

    def _change(self, request: HttpRequest, team: Team) -> None:
        form = MemberForm(request.POST)
        member = self._member(team, request.POST.get("member"))
        if member is None or not form.is_valid():
            messages.error(request, "Nothing was changed.")
            return
        reads = _READS[form.cleaned_data["content"]]
        role = Role(form.cleaned_data["role"])
        members.change_member(member=member, role=role, view_content=reads, actor=actor(request))
        messages.success(request, f"{member.user.get_username()} is {role.label.lower()} of {team.name}.")

    def _remove(self, request: HttpRequest, team: Team) -> HttpResponse | None:
        """Ask first, unless the question was answered."""
        member = self._member(team, request.POST.get("member"))
        if member is None:
            messages.error(request, "Nothing was changed.")
            return None
        if "sure" not in request.POST:
            context = {**self.admin_site.each_context(request), "opts": self.opts, "title": "Remove this member?"}
            context |= {"team": team, "member": member, "back": tab_url(team, "members")}
            return TemplateResponse(request, "admin/tenants/team/remove.html", context)
        members.remove_member(member=member, actor=actor(request))
        messages.success(request, f"{member.user.get_username()} is no member of {team.name} any more.")
        return None

    def _member(self, team: Team, pk: str | None) -> Membership | None:
        return Membership.objects.filter(team=team, pk=pk).first() if pk and pk.isdigit() else None
