# mypy: allow-subclassing-any
"""Members tab of a team's page, with the actions of its leads: add, change and remove members."""

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

MAX_MEMBERS = 200
_CONTENT = (("", "Role default"), ("yes", "Always"), ("no", "After a reveal"))
_READS: dict[str, bool | None] = {"": None, "yes": True, "no": False}
LAST_LEAD = "A team needs at least one lead. Make another member a lead first."


class PersonForm(forms.Form):
    """A new member. The person is entered by name: leads must not see a list of all users."""

    person = forms.CharField(max_length=254)
    role = forms.ChoiceField(choices=Role.choices, initial=Role.DEVELOPER)


class MemberForm(forms.Form):
    """Changes of a member."""

    member = forms.IntegerField()
    role = forms.ChoiceField(choices=Role.choices)
    content = forms.ChoiceField(choices=_CONTENT, required=False)


def tab_url(team: Team, name: str) -> str:
    """Return the URL of a tab of the team's page."""
    return f"{reverse('admin:tenants_team_change', args=[team.pk])}?tab={name}"


@tab("members", title="Members", template="admin/tenants/team/members.html")
def members_of(request: HttpRequest, team: Team) -> dict[str, Any]:
    """Return the context of the members tab."""
    # One more than is shown, to know whether the list is cut.
    found = Membership.objects.filter(team=team).select_related("user").order_by("user__username")[: MAX_MEMBERS + 1]
    rows = list(found)
    content = {value: key for key, value in _READS.items()}
    return {
        "rows": [{"member": row, "content": content[row.view_content]} for row in rows[:MAX_MEMBERS]],
        "is_cut": len(rows) > MAX_MEMBERS,
        "most": MAX_MEMBERS,
        "roles": Role.choices,
        "contents": _CONTENT,
        "may_manage": may(request, LEADS, team),
        "form": PersonForm(),
    }


class MemberActions(ModelAdmin):
    """View that handles the forms of the members tab."""

    def members_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Add, change or remove a member, as the field `do` says. Only for leads of this team and administrators."""
        team = self.get_object(request, object_id)
        if team is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[no-any-return]
        if not may(request, LEADS, team):
            raise PermissionDenied
        # A reload after a redirect does not submit the form again.
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
            messages.error(request, LAST_LEAD)
        return back

    def _add(self, request: HttpRequest, team: Team) -> None:
        form = PersonForm(request.POST)
        # Unknown and inactive users get the same message, so that leads cannot probe for accounts.
        person = members.find_person(form.cleaned_data["person"].strip()) if form.is_valid() else None
        if person is None:
            messages.error(request, "There is no active user with exactly this username or e-mail address.")
            return
        role = Role(form.cleaned_data["role"])
        if members.add_member(team=team, user=person, role=role, actor=actor(request)) is None:
            messages.info(request, f"{person.get_username()} is already a member.")
        else:
            messages.success(request, f"{person.get_username()} is now a member of {team.name}.")

    def _change(self, request: HttpRequest, team: Team) -> None:
        form = MemberForm(request.POST)
        member = self._member(team, request.POST.get("member"))
        if member is None or not form.is_valid():
            messages.error(request, "Nothing was changed.")
            return
        reads = _READS[form.cleaned_data["content"]]
        role = Role(form.cleaned_data["role"])
        members.change_member(member=member, role=role, view_content=reads, actor=actor(request))
        messages.success(request, f"{member.user.get_username()} is now {role.label.lower()} of {team.name}.")

    def _remove(self, request: HttpRequest, team: Team) -> HttpResponse | None:
        """Remove a member if the request confirms it, otherwise return the confirmation page."""
        member = self._member(team, request.POST.get("member"))
        if member is None:
            messages.error(request, "Nothing was changed.")
            return None
        # The confirmation page posts the same form with `sure`.
        if "sure" not in request.POST:
            context = {**self.admin_site.each_context(request), "opts": self.opts, "title": "Remove this member?"}
            context |= {"team": team, "member": member, "back": tab_url(team, "members")}
            return TemplateResponse(request, "admin/tenants/team/remove.html", context)
        members.remove_member(member=member, actor=actor(request))
        messages.success(request, f"{member.user.get_username()} is no longer a member of {team.name}.")
        return None

    def _member(self, team: Team, pk: str | None) -> Membership | None:
        return Membership.objects.filter(team=team, pk=pk).first() if pk and pk.isdigit() else None
