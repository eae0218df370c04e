# mypy: allow-subclassing-any
"""Admin pages of API keys.

Keys are created, rotated, disabled and revoked, but never deleted, as usage and audit records refer to them. A secret
is shown once, when it is created.
"""

from collections.abc import Iterable
from typing import Any

from django.contrib import messages
from django.contrib.admin import display, register
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from typing_extensions import override
from unfold.enums import ActionVariant

from console.filters import RelatedFilter, SelectFilter
from console.widgets import badge, column, id_column, key_cell, time_column, two_lines
from core.clock import now
from organization.admin.key_figures import add_figures, limits_cell, spend_cell
from organization.admin.key_forms import KeyForm, NewKeyForm, RotateKeyForm, initial_from, model_names_of
from tenants import scope, services
from tenants.console.audited_admin import AuditedAdmin
from tenants.console.permissions import TeamScoped
from tenants.console.roles import CONTRIBUTORS, LEADS, OPERATORS
from tenants.console.row_actions import RowAction
from tenants.console.viewer import Viewer, viewer_of
from tenants.models import ApiKey, KeySource, Role

KEY_MANAGERS = LEADS | OPERATORS
_DEVELOPERS = frozenset({Role.DEVELOPER})
# Fields of the form for a new key that are stored unchanged.
_STORED = ("name", "purpose", "scopes", "allowed_models", "tools", "allowed_addresses")


def _created_by(viewer: Viewer, key: ApiKey) -> bool:
    return key.created_by_id == viewer.user_id and viewer.may(_DEVELOPERS, key)


def may_manage_key(viewer: Viewer, key: ApiKey) -> bool:
    """Return true for users who may change, disable and revoke a key: leads, operators and the key's developer."""
    return viewer.may(KEY_MANAGERS, key) or _created_by(viewer, key)


def _may_change(viewer: Viewer, key: ApiKey) -> bool:
    # A revoked key remains for the records that refer to it.
    return key.revoked_at is None and may_manage_key(viewer, key)


def may_rotate_key(viewer: Viewer, key: ApiKey) -> bool:
    """Return true for users who may rotate a key: leads and the key's developer."""
    # Not operators: they would see the new secret and could act as the team.
    return viewer.may(LEADS, key) or _created_by(viewer, key)


class StatusFilter(SelectFilter):
    """Filters keys by status. "grace" means that the old secret still works after a rotation."""

    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [(value, value.capitalize()) for value in ("active", "grace", "disabled", "expired", "revoked")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        present = now()
        valid = queryset.filter(Q(expires_at=None) | Q(expires_at__gt=present), revoked_at=None)
        match self.value():
            case "active":
                return valid.filter(disabled_at=None)
            case "grace":
                return valid.filter(disabled_at=None, old_until__gt=present)
            case "disabled":
                return valid.filter(disabled_at__isnull=False)
            case "expired":
                return queryset.filter(expires_at__lte=present, revoked_at=None)
            case "revoked":
                return queryset.filter(revoked_at__isnull=False)
        return queryset


class SourceFilter(SelectFilter):
    """Filters keys by origin. Short-lived keys of the playground are hidden by default."""

    title = "origin"
    parameter_name = "source"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [("playground", "Playground"), ("all", "All")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        match self.value():
            case "all":
                return queryset
            case "playground":
                return queryset.filter(source=KeySource.PLAYGROUND)
        return queryset.filter(source=KeySource.PERSON)


def _owner(key: ApiKey) -> str:
    return key.created_by.get_username() if key.created_by else ""


def state_of(key: ApiKey) -> SafeString:
    """Return a badge with the effective status of a key."""
    # In the order in which authentication checks them: clients get the error of the first one that applies.
    present = now()
    if key.revoked_at is not None:
        return badge("revoked", "danger", f"since {key.revoked_at:%Y-%m-%d %H:%M} UTC")
    if key.expires_at is not None and key.expires_at <= present:
        return badge("expired", "warning", f"since {key.expires_at:%Y-%m-%d %H:%M} UTC")
    if key.disabled_at is not None:
        return badge("disabled", "warning", f"since {key.disabled_at:%Y-%m-%d %H:%M} UTC")
    if key.team.suspended_at is not None:
        return badge("team suspended", "danger", f"since {key.team.suspended_at:%Y-%m-%d %H:%M} UTC")
    if key.old_until is not None and key.old_until > present:
        return badge("grace", "info", f"The old secret works until {key.old_until:%Y-%m-%d %H:%M} UTC.")
    return badge("active", "success")


@register(ApiKey)
class KeyAdmin(AuditedAdmin, TeamScoped):
    """API keys. Leads manage the keys of their team, developers their own. Operators disable any, but create none."""

    empty_text = "Clients of the API authenticate with a key of a team."
    add_label = "Create an API key"

    managers = KEY_MANAGERS
    form = KeyForm
    list_display = ["named", "key", "team_and_owner", "state", "spend", "limit_list", "last_used", "expires"]
    list_filter = [StatusFilter, ("team", RelatedFilter), SourceFilter]
    list_filter_submit = True
    list_fullwidth = True
    list_select_related = ["team", "created_by"]
    # Logs show the prefix and the last four characters of a key.
    search_fields = ["name", "purpose", "prefix", "last_four", "id"]
    ordering = ["-created_at", "-id"]
    actions_row = ["revoke"]
    actions_detail = ["limits", "rotate", "clone", "disable", "enable", "revoke"]
    readonly_fields = [
        "key", "state", "team", "public_id", "scope_list", "model_list", "tool_list", "address_list", "expires",
        "created", "owner", "last_used", "last_origin", "old_secret",
    ]  # fmt: skip
    named = column("Name", lambda key: two_lines(key.name, key.purpose), ordering="name")
    key = column("Key", key_cell)
    public_id = id_column()
    team_and_owner = column("Team", lambda key: two_lines(key.team.name, _owner(key)), ordering="team__name")
    spend = column("Spend (7 days)", spend_cell)
    limit_list = column("Limits", limits_cell)
    owner = column("Created by", lambda key: _owner(key) or "–")
    state = column("Status", state_of)
    scope_list = column("Scopes", lambda key: "all" if "*" in key.scopes else ", ".join(key.scopes))
    model_list = column("Models", lambda key: ", ".join(key.allowed_models or ()) or "all")
    tool_list = column("Tools", lambda key: "all" if "*" in key.tools else ", ".join(key.tools) or "none")
    address_list = column("Allowed IP addresses", lambda key: ", ".join(key.allowed_addresses or ()) or "any")
    last_used = time_column("Last used", "last_used_at", missing="never", ordering="last_used_at")
    expires = time_column("Expires", "expires_at", missing="never", ordering="expires_at")
    created = time_column("Created", "created_at", ordering="created_at")

    @display(description="Old secret")
    def old_secret(self, key: ApiKey) -> SafeString | str:
        if key.old_until is None:
            return "–"
        verb = "works until" if key.old_until > now() else "expired"
        used = f"last used {key.old_used_at:%Y-%m-%d %H:%M} UTC" if key.old_used_at else "not used since the rotation"
        return two_lines(f"{key.old_name} {verb} {key.old_until:%Y-%m-%d %H:%M} UTC", used)

    @display(description="IP address")
    def last_origin(self, key: ApiKey) -> SafeString | str:
        if not key.last_used_address and not key.last_used_agent:
            return "–"
        return two_lines(key.last_used_address or "unknown", Truncator(key.last_used_agent).chars(32))

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Return the list, with the spending and the limits of the keys of its page attached."""
        changelist = super().get_changelist_instance(request)
        add_figures(changelist.result_list)
        return changelist  # type: ignore[no-any-return]  # Unfold has no types

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[tuple[Any, Any]]:
        writable = ["scopes", "allowed_models", "tools", "expires_at", "allowed_addresses"]
        shown = ["scope_list", "model_list", "tool_list", "expires", "address_list"]
        fields = writable if self.has_change_permission(request, obj) else shown
        return [
            (None, {"fields": [("key", "state"), ("team", "public_id"), ("name", "purpose"), *fields]}),
            ("History", {"fields": [("created", "owner"), ("last_used", "last_origin"), "old_secret"]}),
        ]

    # -- permissions ---------------------------------------------------------------------------------------------------

    @override
    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return viewer_of(request).may(CONTRIBUTORS)

    @override
    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @override
    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        if obj is None:
            return viewer_of(request).may(KEY_MANAGERS | CONTRIBUTORS)
        return _may_change(viewer_of(request), obj)

    # -- creation ------------------------------------------------------------------------------------------------------

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """Show the form; on success, show the secret once."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        viewer = viewer_of(request)
        names = model_names_of(viewer.team_ids(CONTRIBUTORS))
        cloned = self.get_object(request, request.GET.get("clone", ""))
        if cloned is not None and viewer.may(CONTRIBUTORS, cloned):
            initial = initial_from(cloned)
        else:
            initial = {"team": request.GET.get("team")}
        teams = viewer.teams(CONTRIBUTORS)
        form = NewKeyForm(request.POST or None, teams=teams, models=names, initial=initial)
        if request.method == "POST" and form.is_valid():
            # One transaction: a key must not exist without the limits that it was to have.
            team = form.cleaned_data["team"]
            with scope.team(team.pk):
                fields = {name: form.cleaned_data[name] for name in _STORED}
                spec = services.KeySpec(**fields, expires_at=form.expires_at(now()), created_by=viewer.user_id)
                made = services.create_key(team=team, spec=spec, actor=viewer.actor)
                form.save_limits(key=made.key, actor=viewer.actor)
            return self.show_secret(request, made, "Copy your new key")
        return self.render(request, "admin/tenants/apikey/add.html", "Create an API key", form=form)

    def show_secret(self, request: HttpRequest, new: services.NewKey, title: str) -> HttpResponse:
        """Return the only page that shows this secret."""
        # No redirect after the POST: the secret would have to be stored in between.
        return self.render(
            request,
            "admin/tenants/apikey/created.html",
            title,
            new=new,
            secret=new.secret,
            api=request.build_absolute_uri("/v1"),
            model=next(iter(new.key.allowed_models or model_names_of([new.key.team_id])), "your-model"),
            url=self.page_of(new.key),
        )

    # -- actions -------------------------------------------------------------------------------------------------------

    @RowAction(title="Limits", icon="speed", permits=_may_change)
    def limits(self, request: HttpRequest, key: ApiKey) -> HttpResponse:
        """Redirect to the page of the key's limits."""
        return HttpResponseRedirect(f"{reverse('console:limits', args=[key.team_id])}?key={key.pk}")

    @RowAction(
        title="Rotate",
        icon="autorenew",
        permits=lambda viewer, key: key.revoked_at is None and may_rotate_key(viewer, key),
        question="Rotate this key?",
        button="Rotate key",
        template="admin/tenants/apikey/rotate.html",
        form=RotateKeyForm,
    )
    def rotate(self, request: HttpRequest, key: ApiKey, form: RotateKeyForm) -> HttpResponse:
        """Rotate the key and show the new secret once."""
        rotated = services.rotate_key(key=key, grace=form.grace_period(), actor=viewer_of(request).actor)
        return self.show_secret(request, rotated, "Copy the new secret")

    @RowAction(title="Clone", icon="content_copy", permits=lambda viewer, key: viewer.may(CONTRIBUTORS, key))
    def clone(self, request: HttpRequest, key: ApiKey) -> HttpResponse:
        """Redirect to the form of a new key, prefilled from this one."""
        return HttpResponseRedirect(f"{reverse('admin:tenants_apikey_add')}?clone={key.pk}")

    @RowAction(
        title="Disable",
        icon="pause",
        permits=lambda viewer, key: key.disabled_at is None and _may_change(viewer, key),
        question="Disable this key?",
        button="Disable key",
        button_variant="danger",
        template="admin/tenants/apikey/switch.html",
    )
    def disable(self, request: HttpRequest, key: ApiKey) -> None:
        """Disable the key."""
        self._switch(request, key, enabled=False)

    @RowAction(
        title="Enable",
        icon="play_arrow",
        permits=lambda viewer, key: key.disabled_at is not None and _may_change(viewer, key),
        question="Enable this key?",
        button="Enable key",
        template="admin/tenants/apikey/switch.html",
    )
    def enable(self, request: HttpRequest, key: ApiKey) -> None:
        """Enable the key."""
        self._switch(request, key, enabled=True)

    def _switch(self, request: HttpRequest, key: ApiKey, *, enabled: bool) -> None:
        services.enable_key(key=key, enabled=enabled, actor=viewer_of(request).actor)
        state = "enabled" if enabled else "disabled"
        messages.success(request, f"The key {key} was {state}. This takes effect everywhere within two seconds.")

    @RowAction(
        title="Revoke",
        icon="block",
        permits=_may_change,
        question="Revoke this key?",
        button="Revoke key",
        button_variant="danger",
        template="admin/tenants/apikey/revoke.html",
        variant=ActionVariant.DANGER,
        list_roles=KEY_MANAGERS | CONTRIBUTORS,
    )
    def revoke(self, request: HttpRequest, key: ApiKey) -> None:
        """Revoke the key."""
        if services.revoke_key(key=key, actor=viewer_of(request).actor):
            messages.success(request, f"The key {key} was revoked. It stops working everywhere within two seconds.")
        else:
            messages.info(request, f"The key {key} was already revoked.")
