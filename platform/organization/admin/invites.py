# mypy: allow-subclassing-any
"""Admin pages of all invitations, for administrators. Leads have those of their team on its page (`team_invites`)."""

from collections.abc import Iterable
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin import display, register
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.safestring import SafeString
from typing_extensions import override
from unfold.widgets import UnfoldAdminSelectWidget

from console.widgets import badge, column, copyable, id_column, time_column
from organization.admin.team_invites import link_of, role_label
from tenants import invitations, scope
from tenants.console.permissions import PlatformOnly
from tenants.console.roles import ADMINISTRATORS_ONLY
from tenants.console.viewer import viewer_of
from tenants.invitations import ProjectRole
from tenants.members import public_role
from tenants.models import Invite, Role, Team

_TONES = {"pending": "info", "accepted": "success", "expired": "warning"}


class InviteForm(forms.ModelForm[Invite]):
    """A new invitation."""

    team = forms.ModelChoiceField(
        Team.objects.all(), required=False, widget=UnfoldAdminSelectWidget, empty_label="No team"
    )
    role = forms.ChoiceField(choices=Role.choices, initial=Role.DEVELOPER, widget=UnfoldAdminSelectWidget)

    class Meta:
        model = Invite
        fields = ["email"]

    def clean_email(self) -> str:
        """Refuse the address of a user."""
        email: str = self.cleaned_data["email"]
        if User.objects.filter(email__iexact=email).exists():
            raise ValidationError("A user has this e-mail address already. Add the user to a team instead.")
        return email


def _with_teams(rows: Iterable[Any]) -> list[Any]:
    """Return invitations with `team_roles`: the name of each team with the role in it."""
    found = list(rows)
    names = dict(
        Team.objects.filter(pk__in={project["id"] for row in found for project in row.projects}).values_list(
            "pk", "name"
        )
    )
    for row in found:
        row.team_roles = [
            f"{names.get(project['id'], project['id'])} ({role_label(project['role'])})" for project in row.projects
        ]
    return found


@register(Invite)
class InviteAdmin(PlatformOnly):
    """Invitations: the page of a pending one shows the link to pass on."""

    empty_text = "An invite lets a colleague create an account."
    add_label = "Invite a colleague"

    viewers = ADMINISTRATORS_ONLY
    managers = ADMINISTRATORS_ONLY
    form = InviteForm
    list_display = ["email", "state", "teams", "created", "expires"]
    search_fields = ["email", "id"]
    ordering = ["-created_at", "-id"]
    state = column("Status", lambda row: badge(invitations.status_of(row), _TONES[invitations.status_of(row)]))
    teams = column("Teams", lambda row: ", ".join(row.team_roles) or "–")
    public_id = id_column()
    account = column("Account", lambda row: row.accepted_by.get_username() if row.accepted_by else "–")
    created = time_column("Created", "created_at", ordering="created_at")
    expires = time_column("Expires", "expires_at", ordering="expires_at")

    @display(description="Link")
    def address(self, row: Invite) -> SafeString | str:
        if invitations.status_of(row) != "pending":
            return "–"
        return copyable(link_of(row))

    @override
    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        changelist: Any = super().get_changelist_instance(request)
        changelist.result_list = _with_teams(changelist.result_list)
        return changelist  # type: ignore[no-any-return]  # the template's own attributes

    @override
    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return an invitation with the names of its teams."""
        row = super().get_object(request, object_id, from_field)
        return None if row is None else _with_teams([row])[0]

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[tuple[Any, Any]]:
        if obj is None:
            return [(None, {"fields": ["email", "team", "role"]})]
        shown = [("email", "state"), "address", "teams", ("created", "expires"), ("public_id", "account")]
        return [(None, {"fields": shown})]

    @override
    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @override
    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return viewer_of(request).may(ADMINISTRATORS_ONLY) and (obj is None or obj.accepted_at is None)

    @override
    def save_model(self, request: HttpRequest, obj: Invite, form: Any, change: Any) -> None:
        team = form.cleaned_data["team"]
        projects = [ProjectRole(team=team, role=public_role(form.cleaned_data["role"]))] if team else []
        made = invitations.create_invite(email=obj.email, projects=projects, actor=viewer_of(request).actor)
        obj.pk = made.pk

    @override
    def response_add(self, request: HttpRequest, obj: Invite, post_url_continue: Any = None) -> HttpResponse:
        messages.success(request, "Invited. Copy the link and send it to the person.")
        return HttpResponseRedirect(self.page_of(obj))

    @override
    def delete_model(self, request: HttpRequest, obj: Invite) -> None:
        with scope.every_team():
            invitations.delete_invite(invite=obj, actor=viewer_of(request).actor)

    @override
    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Invite]) -> None:
        # Accepted ones are records and remain.
        for invite in queryset.filter(accepted_at=None):
            self.delete_model(request, invite)
