# mypy: allow-subclassing-any
"""Teams and their members."""

from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin import display, register
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from typing_extensions import override
from unfold.admin import TabularInline

from kernel.console import copyable, tone, two_lines, when
from tenants.admin.audited import Audited
from tenants.admin.key_forms import tool_kinds
from tenants.admin.roles import ByRole, TeamScoped
from tenants.models import Membership, Role, Team

ROLE_TONES = {Role.TEAM_LEAD.value: "primary", Role.DEVELOPER.value: "info"}


class MemberInline(ByRole, TabularInline):
    """The members of a team."""

    model = Membership
    extra = 0
    autocomplete_fields = ["user"]
    verbose_name = "member"
    verbose_name_plural = "members"


class TeamForm(forms.ModelForm[Team]):
    """A team's name and settings, with their units."""

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
            "log_retention_hours": "Event log kept (hours)",
        }


@register(Team)
class TeamAdmin(Audited, TeamScoped):
    """Teams. They are never deleted here: their responses, ledger and audit log stay."""

    form = TeamForm
    team_field = "pk"
    actions = None
    list_display = ["name", "public_id", "members", "keys", "grace", "log_retention", "created"]
    search_fields = ["name", "id"]
    ordering = ["name"]
    show_facets = admin.ShowFacets.NEVER
    inlines = [MemberInline]
    readonly_fields = ["public_id", "created"]
    fieldsets = [
        (None, {"fields": ["name", ("public_id", "created")]}),
        ("Runs and logs", {"fields": [("disconnect_grace_seconds", "log_retention_hours"), "full_text_search"]}),
        ("Vector stores", {"fields": ["embedding_model"]}),
        ("Tools of the server", {"fields": ["tools", "image_model"]}),
    ]

    @override
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
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

    @display(description="Event log kept")
    def log_retention(self, team: Team) -> str:
        return f"{team.log_retention_hours} h"

    @display(description="Created", ordering="created_at")
    def created(self, team: Team) -> Any:
        return when(team.created_at)


@register(Membership)
class MemberAdmin(Audited, TeamScoped):
    """Who belongs to which team, and as what."""

    actions = None
    list_display = ["person", "team", "role_badge", "signs_in", "joined"]
    list_filter = ["role"]
    search_fields = ["user__username", "user__email", "team__name"]
    list_select_related = ["user", "team"]
    ordering = ["team__name", "user__username"]
    show_facets = admin.ShowFacets.NEVER
    autocomplete_fields = ["user", "team"]
    fields = ["user", "team", "role"]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return ["user", "team"] if obj else []

    @display(description="Person", ordering="user__username")
    def person(self, member: Membership) -> SafeString:
        return two_lines(member.user.get_full_name() or member.user.get_username(), member.user.email)

    @display(description="Role", ordering="role")
    def role_badge(self, member: Membership) -> SafeString:
        return tone(ROLE_TONES, member.role)

    @display(description="May sign in here", boolean=True)
    def signs_in(self, member: Membership) -> bool:
        return member.user.is_active and member.user.is_staff

    @display(description="Joined", ordering="created_at")
    def joined(self, member: Membership) -> Any:
        return when(member.created_at)


def _linked(page: str, team: Team, count: int) -> SafeString:
    url = reverse(f"admin:{page}_changelist")
    return format_html('<a class="c-link" href="{}?team__id__exact={}">{}</a>', url, team.pk, count)
