# mypy: allow-subclassing-any
"""Admin pages of teams and their members."""

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin import display, register
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from typing_extensions import override

from console.widgets import badge, copyable, tone, two_lines, when
from tenants import members, services
from tenants.admin.key_forms import tool_kinds
from tenants.admin.team_members import LAST_LEAD, MemberActions, tab_url
from tenants.admin.team_tabs import SETTINGS, tabs_for
from tenants.console.audited_admin import AuditedAdmin, actor
from tenants.console.roles import ADMINISTRATORS_ONLY, LEADS, OPERATORS, TeamScoped, may
from tenants.models import Membership, Role, Team

ROLE_TONES = {Role.TEAM_LEAD.value: "primary", Role.DEVELOPER.value: "info"}


class TeamForm(forms.ModelForm[Team]):
    """Name and settings of a team."""

    tools = tool_kinds()

    class Meta:
        model = Team
        fields = [
            "name",
            "disconnect_grace_seconds",
            "log_retention_hours",
            "embedding_model",
            "image_model",
            "tools",
            "full_text_search",
        ]
        labels = {
            "disconnect_grace_seconds": "Grace after disconnect (seconds)",
            "log_retention_hours": "Event log retention (hours)",
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


@register(Team)
class TeamAdmin(MemberActions, AuditedAdmin, TeamScoped):
    """Teams, each with a page of tabs. They cannot be deleted, as responses, usage records and audit events remain."""

    managers = OPERATORS
    form = TeamForm
    change_form_outer_before_template = "admin/tenants/team/tabs.html"
    team_field = "pk"
    list_display = ["name", "public_id", "state", "members", "keys", "grace", "log_retention", "created"]
    search_fields = ["name", "id"]
    ordering = ["name"]
    readonly_fields = ["public_id", "created"]
    fieldsets = [
        (None, {"fields": ["name", ("public_id", "created")]}),
        ("Runs and logs", {"fields": [("disconnect_grace_seconds", "log_retention_hours"), "full_text_search"]}),
        ("Vector stores", {"fields": ["embedding_model"]}),
        ("Hosted tools", {"fields": ["tools", "image_model"]}),
    ]

    @override
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        # `distinct`, as the two joins multiply each other's rows.
        rows = rows.annotate(members=Count("memberships", distinct=True), keys=Count("api_keys", distinct=True))
        return rows  # noqa: RET504 - the stubs call an annotated query set Any

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

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show one of the tabs. Only the settings tab contains the form of Django's change view."""
        team = self.get_object(request, unquote(object_id))
        if team is None or not self.has_view_permission(request, team):
            return super().change_view(request, object_id, form_url, extra_context)  # type: ignore[no-any-return]
        tabs = tabs_for(request, team)
        named = {tab.name: tab for tab in tabs}
        chosen = named.get(request.GET.get("tab", ""), tabs[0])
        context = {"tabs": tabs, "chosen": chosen, "team": team}
        if request.method == "POST" or chosen.name == SETTINGS:
            context["chosen"] = named[SETTINGS]
            return super().change_view(request, object_id, form_url, {**(extra_context or {}), **context})  # type: ignore[no-any-return]
        page = {**self.admin_site.each_context(request), "opts": self.opts, "original": team, "title": team.name}
        context |= {"is_fullwidth": "1", **chosen.fill(request, team)}
        return TemplateResponse(request, "admin/tenants/team/page.html", {**page, **context})

    def suspend_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the confirmation page; on POST, suspend or resume the team."""
        team = self.get_object(request, object_id)
        if team is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        if not may(request, OPERATORS, team):
            raise PermissionDenied
        if request.method != "POST":
            title = "Resume this team?" if team.suspended_at else "Suspend this team?"
            page = {**self.admin_site.each_context(request), "opts": self.opts, "title": title}
            context = {**page, "team": team, "original": team, "back": tab_url(team, "danger")}
            return TemplateResponse(request, "admin/tenants/team/suspend.html", context)
        # Explicit and not a toggle: a page that is out of date must not do the opposite of what it shows.
        suspends = request.POST.get("do") == "suspend"
        services.suspend_team(team=team, suspended=suspends, actor=actor(request))
        result = "was suspended. Its keys stop working" if suspends else "was resumed. Its keys work again"
        messages.success(request, f"The team {team.name} {result} everywhere within two seconds.")
        return HttpResponseRedirect(tab_url(team, "danger"))

    # -- columns -------------------------------------------------------------------------------------------------------

    @display(description="Status")
    def state(self, team: Team) -> SafeString:
        if team.suspended_at is None:
            return badge("active", "success")
        return badge("suspended", "danger", f"since {team.suspended_at:%Y-%m-%d %H:%M} UTC")

    @display(description="ID")
    def public_id(self, team: Team) -> SafeString:
        return copyable(team.pk)

    @display(description="Members")
    def members(self, team: Any) -> SafeString:
        return _linked("tenants_membership", team, team.members)

    @display(description="Keys")
    def keys(self, team: Any) -> SafeString:
        return _linked("tenants_apikey", team, team.keys)

    @display(description="Grace after disconnect")
    def grace(self, team: Team) -> str:
        seconds = team.disconnect_grace_seconds
        return "to the end" if seconds is None else f"{seconds} s"

    @display(description="Event log retention")
    def log_retention(self, team: Team) -> str:
        return f"{team.log_retention_hours} h"

    @display(description="Created", ordering="created_at")
    def created(self, team: Team) -> Any:
        return when(team.created_at)


@register(Membership)
class MemberAdmin(AuditedAdmin, TeamScoped):
    """Members of teams. Leads change and remove members here, and add them by name on the team's page."""

    managers = LEADS
    form = MembershipForm
    list_display = ["person", "team", "role_badge", "reads", "signs_in", "joined"]
    list_filter = ["role"]
    search_fields = ["user__username", "user__email", "team__name"]
    list_select_related = ["user", "team"]
    ordering = ["team__name", "user__username"]
    autocomplete_fields = ["user", "team"]
    fields = ["user", "team", "role", "view_content"]

    @override
    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, ADMINISTRATORS_ONLY)

    @override
    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse to remove the last lead of a team."""
        return may(request, LEADS, obj) and not (obj is not None and _is_last_lead(obj))

    @override
    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        try:
            # Repeated here under a lock: `has_delete_permission` is only a first look.
            members.check_not_last_lead(obj)
        except members.LastLead as last:
            raise PermissionDenied from last
        super().delete_model(request, obj)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        # `person` instead of `user`: Django would link to the user's page, which most roles may not open.
        return ["person", "team", "role", "view_content"] if obj else self.fields

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return ["person", "team"] if obj else []

    @display(description="Person", ordering="user__username")
    def person(self, member: Membership) -> SafeString:
        return two_lines(member.user.get_full_name() or member.user.get_username(), member.user.email)

    @display(description="Role", ordering="role")
    def role_badge(self, member: Membership) -> SafeString:
        return tone(ROLE_TONES, member.role)

    @display(description="Reads content")
    def reads(self, member: Membership) -> str:
        return "yes" if member.reads_content else "after a reveal"

    @display(description="Can sign in", boolean=True)
    def signs_in(self, member: Membership) -> bool:
        return member.user.is_active and member.user.is_staff

    @display(description="Joined", ordering="created_at")
    def joined(self, member: Membership) -> Any:
        return when(member.created_at)


def _is_last_lead(member: Membership) -> bool:
    others = Membership.objects.filter(team=member.team_id, role=Role.TEAM_LEAD).exclude(pk=member.pk)
    return member.role == Role.TEAM_LEAD and not others.exists()


def _linked(page: str, team: Team, count: int) -> SafeString:
    url = reverse(f"admin:{page}_changelist")
    return format_html('<a class="c-link" href="{}?team__id__exact={}">{}</a>', url, team.pk, count)
