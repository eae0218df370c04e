# mypy: allow-subclassing-any
"""Admin pages of teams and their members."""

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin import display, register
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Count
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.safestring import SafeString
from typing_extensions import override

from console.filters import RelatedFilter
from console.widgets import badge, changelist_url, column, id_column, link, time_column, tone, two_lines
from core.http.query import row_number
from organization.admin import team_invites
from organization.admin.key_forms import tool_kinds
from organization.admin.team_tabs import CONTENT, READS, SETTINGS, tab_url, tabs_for
from tenants import members, services
from tenants.console.audited_admin import AuditedAdmin
from tenants.console.permissions import TeamScoped
from tenants.console.roles import ADMINISTRATORS_ONLY, LEADS, OPERATORS
from tenants.console.viewer import viewer_of
from tenants.models import Membership, Role, Team

LAST_LEAD = "A team needs at least one lead. Make another member a lead first."
# Leads of more teams find the others in the list of teams.
_MAX_INVITING = 10
ROLE_TONES = {Role.TEAM_LEAD.value: "primary", Role.DEVELOPER.value: "info"}


class TeamForm(forms.ModelForm[Team]):
    """Name and settings of a team."""

    tools = tool_kinds()

    class Meta:
        model = Team
        fields = [
            "name",
            "weight",
            "disconnect_grace_seconds",
            "log_retention_hours",
            "embedding_model",
            "image_model",
            "summary_model",
            "model_policy",
            "model_names",
            "allow_fallback_models",
            "tools",
            "reject_unavailable_tools",
            "continue_without_mcp_servers",
            "require_approval",
            "wait_for_approval",
            "full_text_search",
        ]
        labels = {
            "disconnect_grace_seconds": "Grace after disconnect (seconds)",
            "log_retention_hours": "Event log retention (hours)",
            "continue_without_mcp_servers": "Continue without MCP servers that fail",
        }


class MembershipForm(forms.ModelForm[Membership]):
    """Role of a member and their right to read content."""

    class Meta:
        model = Membership
        fields = ["user", "team", "role", "view_content"]

    def clean_role(self) -> str:
        """Refuse to demote the last lead of a team."""
        role: str = self.cleaned_data["role"]
        if self.instance.pk and role != Role.TEAM_LEAD:
            stored = Membership.objects.get(pk=self.instance.pk)
            if _is_last_lead(stored):
                raise forms.ValidationError(LAST_LEAD)
        return role


class PersonForm(forms.Form):
    """A new member. The person is entered by name: leads must not see a list of all users."""

    person = forms.CharField(max_length=254)
    role = forms.ChoiceField(choices=Role.choices, initial=Role.DEVELOPER)


class MemberForm(forms.Form):
    """Changes of a member."""

    role = forms.ChoiceField(choices=Role.choices)
    content = forms.ChoiceField(choices=CONTENT, required=False)


@register(Team)
class TeamAdmin(AuditedAdmin, TeamScoped):
    """Teams, each with a page of tabs. They cannot be deleted, as responses, usage records and audit events remain."""

    empty_text = "A team has its own API keys, budgets and data."
    add_label = "Create a team"

    managers = OPERATORS
    form = TeamForm
    change_form_outer_before_template = "admin/tenants/team/tabs.html"
    team_field = "pk"
    list_display = ["name", "public_id", "state", "members", "keys", "grace", "log_retention", "created"]
    search_fields = ["name", "id"]
    ordering = ["name"]
    readonly_fields = ["public_id", "created"]
    # `distinct`, as the two joins multiply each other's rows.
    list_annotations = {
        "members": Count("memberships", distinct=True),
        "keys": Count("api_keys", distinct=True),
    }
    public_id = id_column()
    grace = column(
        "Grace after disconnect",
        lambda team: "to the end" if team.disconnect_grace_seconds is None else f"{team.disconnect_grace_seconds} s",
    )
    log_retention = column("Event log retention", lambda team: f"{team.log_retention_hours} h")
    members = column("Members", lambda team: _linked("tenants_membership", team, team.members))
    keys = column("Keys", lambda team: _linked("tenants_apikey", team, team.keys))
    created = time_column("Created", "created_at", ordering="created_at")
    fieldsets = [
        (None, {"fields": ["name", ("public_id", "created")]}),
        (
            "Runs and logs",
            {"fields": [("disconnect_grace_seconds", "log_retention_hours"), "weight", "full_text_search"]},
        ),
        ("Models", {"fields": ["model_policy", "model_names", "allow_fallback_models"]}),
        ("Vector stores", {"fields": ["embedding_model"]}),
        (
            "Hosted tools",
            {"fields": ["tools", "reject_unavailable_tools", "continue_without_mcp_servers", "image_model"]},
        ),
        ("Approvals", {"fields": ["require_approval", "wait_for_approval"]}),
        ("Reasoning", {"fields": ["summary_model"]}),
    ]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return self.readonly_fields if obj else []

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[tuple[Any, Any]]:
        if obj is None:
            return [(None, {"fields": ["name"]}), *self.fieldsets[1:]]
        return self.fieldsets

    @override
    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    # -- the tabs ------------------------------------------------------------------------------------------------------

    def get_urls(self) -> list[URLPattern]:
        views = {"members": self.members_view, "suspend": self.suspend_view}
        own = [
            path(f"<path:object_id>/{name}/", self.admin_site.admin_view(view), name=f"tenants_team_{name}")
            for name, view in views.items()
        ]
        return [*own, *super().get_urls()]

    @override
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show one of the tabs. Only the settings tab contains the form of Django's change view."""
        team = self.get_object(request, unquote(object_id))
        if team is None or not self.has_view_permission(request, team):
            return super().change_view(request, object_id, form_url, extra_context)  # type: ignore[no-any-return]
        tabs = tabs_for(viewer_of(request), team)
        named = {tab.name: tab for tab in tabs}
        chosen = named.get(request.GET.get("tab", ""), tabs[0])
        context = {"tabs": tabs, "chosen": chosen, "team": team}
        if request.method == "POST" or chosen.name == SETTINGS:
            context["chosen"] = named[SETTINGS]
            return super().change_view(request, object_id, form_url, {**(extra_context or {}), **context})  # type: ignore[no-any-return]
        context |= {"original": team, "is_fullwidth": "1", **chosen.fill(viewer_of(request), team)}
        return self.render(request, "admin/tenants/team/page.html", team.name, **context)

    def members_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Add, invite, change or remove a member, depending on the field `do`. For leads of this team."""
        team = self.get_or_404(request, object_id)
        if not viewer_of(request).may(LEADS, team):
            raise PermissionDenied
        pk = row_number(request.POST.get("member", ""))
        member: Any = Membership.objects.filter(team=team, pk=pk).first() if pk is not None else None
        try:
            match request.POST.get("do"):
                case "add":
                    self._add_member(request, team)
                case "uninvite":
                    team_invites.delete_invitation(request, team, request.POST.get("invite", ""))
                case "change" | "remove" if member is None:
                    messages.error(request, "Nothing was changed.")
                case "change":
                    self._change_member(request, team, member)
                # The confirmation page posts the same form with `sure`.
                case "remove" if "sure" not in request.POST:
                    return self.render(
                        request,
                        "admin/tenants/team/remove.html",
                        "Remove this member?",
                        team=team,
                        member=member,
                        posted={"do": "remove", "member": member.pk, "sure": "1"},
                        button="Remove member",
                        icon="person_remove",
                        variant="danger",
                        back=tab_url(team, "members"),
                    )
                case "remove":
                    members.remove_member(member=member, actor=viewer_of(request).actor)
                    messages.success(request, f"{member.user.get_username()} is no longer a member of {team.name}.")
        except members.LastLead:
            messages.error(request, LAST_LEAD)
        # A reload after a redirect does not submit the form again.
        return HttpResponseRedirect(tab_url(team, "members"))

    def _add_member(self, request: HttpRequest, team: Team) -> None:
        form = PersonForm(request.POST)
        if not form.is_valid():
            messages.error(request, team_invites.NO_USER)
            return
        name = form.cleaned_data["person"].strip()
        person = members.find_person(name)
        if person is None:
            team_invites.invite_person(request, team, name, Role(form.cleaned_data["role"]))
        elif members.add_member(
            team=team, user=person, role=Role(form.cleaned_data["role"]), actor=viewer_of(request).actor
        ):
            messages.success(request, f"{person.get_username()} is now a member of {team.name}.")
        else:
            messages.info(request, f"{person.get_username()} is already a member.")

    def _change_member(self, request: HttpRequest, team: Team, member: Membership) -> None:
        form = MemberForm(request.POST)
        if not form.is_valid():
            messages.error(request, "Nothing was changed.")
            return
        role, reads = Role(form.cleaned_data["role"]), READS[form.cleaned_data["content"]]
        members.change_member(member=member, role=role, view_content=reads, actor=viewer_of(request).actor)
        messages.success(request, f"{member.user.get_username()} is now {role.label.lower()} of {team.name}.")

    def suspend_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the confirmation page; on POST, suspend or resume the team."""
        team = self.get_or_404(request, object_id)
        if not viewer_of(request).may(OPERATORS, team):
            raise PermissionDenied
        if request.method != "POST":
            verb = "Resume" if team.suspended_at else "Suspend"
            return self.render(
                request,
                "admin/tenants/team/suspend.html",
                f"{verb} this team?",
                team=team,
                original=team,
                posted={"do": verb.lower()},
                button=f"{verb} team",
                icon="play_arrow" if team.suspended_at else "pause",
                variant="primary" if team.suspended_at else "danger",
                back=tab_url(team, "danger"),
            )
        # Explicit and not a toggle: a page that is out of date must not do the opposite of what it shows.
        suspends = request.POST.get("do") == "suspend"
        services.suspend_team(team=team, suspended=suspends, actor=viewer_of(request).actor)
        result = "was suspended. Its keys stop working" if suspends else "was resumed. Its keys work again"
        messages.success(request, f"The team {team.name} {result} everywhere within two seconds.")
        return HttpResponseRedirect(tab_url(team, "danger"))

    # -- columns -------------------------------------------------------------------------------------------------------

    @display(description="Status")
    def state(self, team: Team) -> SafeString:
        if team.suspended_at is None:
            return badge("active", "success")
        return badge("suspended", "danger", f"since {team.suspended_at:%Y-%m-%d %H:%M} UTC")


@register(Membership)
class MemberAdmin(AuditedAdmin, TeamScoped):
    """Members of teams. Leads change and remove members here, and add them by name on the team's page."""

    empty_text = "Members see the responses and the usage of their team."
    add_label = "Add a member"

    managers = LEADS
    form = MembershipForm
    list_display = ["person", "team", "role_badge", "reads", "signs_in", "joined"]
    list_filter = ["role", ("team", RelatedFilter)]
    list_filter_submit = True
    list_before_template = "admin/tenants/membership/invite.html"
    search_fields = ["user__username", "user__email", "team__name"]
    list_select_related = ["user", "team"]
    ordering = ["team__name", "user__username"]
    autocomplete_fields = ["user", "team"]
    fields = ["user", "team", "role", "view_content"]
    # `person` instead of `user`: Django would link to the user's page, which most roles may not open.
    person = column(
        "Person",
        lambda member: two_lines(member.user.get_full_name() or member.user.get_username(), member.user.email),
        ordering="user__username",
    )
    role_badge = column("Role", lambda member: tone(ROLE_TONES, member.role), ordering="role")
    reads = column("Reads content", lambda member: "yes" if member.reads_content else "after a reveal")
    joined = time_column("Joined", "created_at", ordering="created_at")

    @override
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Offer to invite people to the teams of a lead."""
        viewer = viewer_of(request)
        led = [] if viewer.sees_every_team else viewer.teams(LEADS)[:_MAX_INVITING]
        context = {"inviting": [(team.name, tab_url(team, "members")) for team in led]}
        return super().changelist_view(request, {**context, **(extra_context or {})})  # type: ignore[no-any-return]

    @override
    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return viewer_of(request).may(ADMINISTRATORS_ONLY)

    @override
    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse to remove the last lead of a team."""
        return viewer_of(request).may(LEADS, obj) and not (obj is not None and _is_last_lead(obj))

    @override
    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        try:
            # Repeated here under a lock: `has_delete_permission` is only a first look.
            members.check_not_last_lead(obj)
        except members.LastLead as last:
            raise PermissionDenied from last
        super().delete_model(request, obj)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return ["person", "team", "role", "view_content"] if obj else self.fields

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return ["person", "team"] if obj else []

    @display(description="Can sign in", boolean=True)
    def signs_in(self, member: Membership) -> bool:
        return member.user.is_active and member.user.is_staff


def _is_last_lead(member: Membership) -> bool:
    others = Membership.objects.filter(team=member.team_id, role=Role.TEAM_LEAD).exclude(pk=member.pk)
    return member.role == Role.TEAM_LEAD and not others.exists()


def _linked(page: str, team: Team, count: int) -> SafeString:
    return link(changelist_url(page, team__id__exact=team.pk), count)
