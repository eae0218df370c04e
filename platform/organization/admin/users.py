# mypy: allow-subclassing-any
"""Admin pages of users. Permissions follow from memberships and staff roles; Django's groups are not used."""

from typing import Any

# The first four imports register the models that this module unregisters.
import allauth.account.admin
import allauth.mfa.admin
import allauth.socialaccount.admin
import allauth.usersessions.admin  # noqa: F401
from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount, SocialApp, SocialToken
from allauth.usersessions.models import UserSession
from django.contrib import admin, messages
from django.contrib.admin import display, register
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from typing_extensions import override
from unfold.admin import TabularInline
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from console.widgets import badge, column, time_column
from tenants.console.audited_admin import AuditedAdmin, audit_row
from tenants.console.permissions import ByRole, PlatformOnly
from tenants.console.roles import ADMINISTRATORS_ONLY
from tenants.console.row_actions import RowAction
from tenants.console.viewer import viewer_of
from tenants.models import Membership, StaffMember

# Credentials and sessions are shown and removed only on the user's page. Django's groups have no effect here.
admin.site.unregister([User, Group, EmailAddress, Authenticator, UserSession, SocialAccount, SocialApp, SocialToken])


_FACTORS = {Authenticator.Type.TOTP: "app", Authenticator.Type.WEBAUTHN: "passkey"}


class TeamInline(ByRole, TabularInline):
    """Teams of a user."""

    viewers = ADMINISTRATORS_ONLY
    model = Membership
    extra = 0
    autocomplete_fields = ["team"]
    verbose_name = "team"
    verbose_name_plural = "teams"


class StaffInline(ByRole, TabularInline):
    """Role of a user on the whole platform."""

    viewers = ADMINISTRATORS_ONLY
    model = StaffMember
    extra = 0
    max_num = 1
    verbose_name = "role on the platform"
    verbose_name_plural = "role on the platform (sees every team)"


@register(User)
class UserAdmin(AuditedAdmin, PlatformOnly, DjangoUserAdmin):  # type: ignore[type-arg]  # not generic at run time
    """Users: administrators, staff and members of teams. Only administrators assign roles."""

    empty_text = "Users sign in to this console."
    add_label = "Add a user"

    managers = ADMINISTRATORS_ONLY
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_display = ["username", "email", "kind", "teams", "factors", "is_active", "seen"]
    actions_detail = ["sign_out"]
    list_filter = ["is_active", "is_staff", "is_superuser"]
    search_fields = ["username", "email", "first_name", "last_name"]
    filter_horizontal = ()
    inlines = [StaffInline, TeamInline]
    fieldsets = (
        (None, {"fields": ["username", "password"]}),
        ("Person", {"fields": [("first_name", "last_name"), "email"]}),
        ("Access", {"fields": ["is_active", "is_staff", "is_superuser"]}),
    )
    add_fieldsets = ((None, {"fields": ["username", "email", "password1", "password2", "is_staff"]}),)
    list_prefetch = ("memberships__team", "authenticator_set")
    teams = column(
        "Teams", lambda user: ", ".join(str(membership.team) for membership in user.memberships.all()) or "–"
    )
    seen = time_column("Last seen", "last_login", missing="never", ordering="last_login")

    @override
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).select_related("staff_member")

    @override
    def get_inlines(self, request: HttpRequest, obj: Any) -> list[Any]:
        # Roles refer to the user, who must exist first.
        return self.inlines if obj else []

    @override
    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> HttpResponse:
        response = super().user_change_password(request, id, form_url)
        # The view also handles its own errors; only a redirect means that the password was changed.
        changed = self.get_object(request, id) if request.method == "POST" and response.status_code == 302 else None
        if changed is not None:
            audit_row(viewer_of(request), changed, "password_changed")
        return response

    @display(description="Access")
    def kind(self, user: User) -> SafeString:
        if user.is_superuser:
            return badge("administrator", "primary")
        staff = getattr(user, "staff_member", None)
        if staff is not None and user.is_staff:
            return badge(staff.get_role_display().lower(), "warning")
        return badge("member", "info") if user.is_staff else badge("no sign-in")

    @display(description="Second factor")
    def factors(self, user: Any) -> SafeString | str:
        # Recovery codes only replace another factor.
        kinds = {authenticator.type for authenticator in user.authenticator_set.all()} - {
            Authenticator.Type.RECOVERY_CODES
        }
        return format_html_join(" ", "{}", ((badge(_FACTORS[kind], "success"),) for kind in sorted(kinds))) or "–"

    # -- sign out ------------------------------------------------------------------------------------------------------

    @RowAction(
        title="Sign out and reset",
        icon="logout",
        permits=lambda viewer, user: viewer.may(ADMINISTRATORS_ONLY),
        question=lambda user: f"Sign out {user.get_username()}?",
        template="admin/auth/user/sign_out.html",
        path="sign-out",
    )
    def sign_out(self, request: HttpRequest, user: User) -> None:
        """End all sessions and optionally remove the second factors."""
        ended = 0
        # One by one: `end` also deletes the session itself, which a bulk delete of these rows would leave alive.
        for session in UserSession.objects.filter(user=user):
            session.end()
            ended += 1
        factors = Authenticator.objects.filter(user=user).delete()[0] if "factors" in request.POST else 0
        audit_row(viewer_of(request), user, "signed_out", after={"sessions": ended, "second_factors_removed": factors})
        messages.success(request, f"Ended {ended} sessions and removed {factors} second factors.")
