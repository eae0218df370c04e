# mypy: allow-subclassing-any
"""Admin pages of API keys.

Keys are created, rotated, disabled and revoked, but never deleted, as usage and audit records refer to them. A secret
is shown once, when it is created.
"""

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.contrib.admin import display, register
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from typing_extensions import override
from unfold.contrib.filters.admin import AutocompleteSelectFilter, DropdownFilter

from console.widgets import badge, copyable, two_lines, when
from kernel.clock import now
from tenants import services
from tenants.admin.key_actions import KEY_MANAGERS, KeyActions, may_manage_key
from tenants.admin.key_forms import KeyForm, NewKeyForm, initial_from, model_names_of
from tenants.console.audited_admin import AuditedAdmin, actor
from tenants.console.roles import CONTRIBUTORS, TeamScoped, everywhere, may, teams_for, teams_of
from tenants.models import ApiKey, KeySource, Scope, ToolKind


class StatusFilter(DropdownFilter):
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


class SourceFilter(DropdownFilter):
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


def state_of(key: ApiKey) -> SafeString:
    """Return a badge with the effective status of a key."""
    # In the order in which authentication checks them: the first one that applies is what clients get.
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


class KeyColumns:
    """Columns of a key."""

    @display(description="Name", ordering="name")
    def named(self, key: ApiKey) -> SafeString:
        return two_lines(key.name, key.purpose)

    @display(description="Key")
    def key(self, key: ApiKey) -> SafeString:
        return format_html('<code class="c-code">{}…{}</code>', key.prefix, key.last_four)

    @display(description="ID")
    def public_id(self, key: ApiKey) -> SafeString:
        return copyable(key.pk)

    @display(description="Created by")
    def owner(self, key: ApiKey) -> str:
        return key.created_by.get_username() if key.created_by else "–"

    @display(description="Status")
    def state(self, key: ApiKey) -> SafeString:
        return state_of(key)

    @display(description="Old secret")
    def old_secret(self, key: ApiKey) -> SafeString | str:
        if key.old_until is None:
            return "–"
        verb = "works until" if key.old_until > now() else "expired"
        used = f"last used {key.old_used_at:%Y-%m-%d %H:%M} UTC" if key.old_used_at else "not used since the rotation"
        return two_lines(f"{key.old_name} {verb} {key.old_until:%Y-%m-%d %H:%M} UTC", used)

    @display(description="Permissions")
    def permissions(self, key: ApiKey) -> SafeString:
        limits = f"{self.model_list(key)} models, {self.tool_list(key)} tools"
        return two_lines(_shortened(self.scope_list(key)), _shortened(limits))

    @display(description="Scopes")
    def scope_list(self, key: ApiKey) -> str:
        return "all" if Scope.ALL.value in key.scopes else ", ".join(key.scopes)

    @display(description="Models")
    def model_list(self, key: ApiKey) -> str:
        return ", ".join(key.allowed_models) if key.allowed_models else "all"

    @display(description="Tools")
    def tool_list(self, key: ApiKey) -> str:
        return "all" if ToolKind.ALL.value in key.tools else ", ".join(key.tools) or "none"

    @display(description="Allowed IP addresses")
    def address_list(self, key: ApiKey) -> str:
        return ", ".join(key.allowed_addresses) if key.allowed_addresses else "any"

    @display(description="Last used", ordering="last_used_at")
    def last_used(self, key: ApiKey) -> Any:
        return when(key.last_used_at) if key.last_used_at else "never"

    @display(description="IP address")
    def last_origin(self, key: ApiKey) -> SafeString | str:
        if not key.last_used_address and not key.last_used_agent:
            return "–"
        return two_lines(key.last_used_address or "unknown", _shortened(key.last_used_agent, 32))

    @display(description="Expires", ordering="expires_at")
    def expires(self, key: ApiKey) -> Any:
        return when(key.expires_at) if key.expires_at else "never"

    @display(description="Created", ordering="created_at")
    def created(self, key: ApiKey) -> Any:
        return when(key.created_at)


def _shortened(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


@register(ApiKey)
class KeyAdmin(KeyActions, KeyColumns, AuditedAdmin, TeamScoped):
    """API keys. Leads manage the keys of their team, developers their own. Operators disable any, but create none."""

    managers = KEY_MANAGERS
    form = KeyForm
    actions = None
    list_display = ["named", "key", "team", "owner", "state", "permissions", "last_used", "last_origin", "expires"]
    list_filter = [StatusFilter, ("team", AutocompleteSelectFilter), SourceFilter]
    list_filter_submit = True
    list_fullwidth = True
    list_select_related = ["team", "created_by"]
    # Prefix and last four characters are what users see of a key in logs.
    search_fields = ["name", "purpose", "prefix", "last_four", "id"]
    ordering = ["-created_at", "-id"]
    show_facets = admin.ShowFacets.NEVER
    actions_row = ["revoke"]
    actions_detail = ["rotate", "clone", "disable", "enable", "revoke"]
    readonly_fields = [
        "key", "state", "team", "public_id", "scope_list", "model_list", "tool_list", "address_list", "expires",
        "created", "owner", "last_used", "last_origin", "old_secret",
    ]  # fmt: skip

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
        return may(request, CONTRIBUTORS)

    @override
    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @override
    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        if obj is None:
            return may(request, KEY_MANAGERS | CONTRIBUTORS)
        return obj.revoked_at is None and may_manage_key(request, obj)

    # -- creation ------------------------------------------------------------------------------------------------------

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """Show the form; on success, show the secret once."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        names = model_names_of(None if everywhere(request, CONTRIBUTORS) else teams_of(request, CONTRIBUTORS))
        teams, initial = teams_for(request, CONTRIBUTORS), self._initial(request)
        form = NewKeyForm(request.POST or None, teams=teams, models=names, initial=initial)
        if request.method == "POST" and form.is_valid():
            return self.show_secret(request, self._create(request, form), "Copy your new key")
        context = {**self._context(request, "Create an API key"), "form": form}
        return TemplateResponse(request, "admin/tenants/apikey/add.html", context)

    def _initial(self, request: HttpRequest) -> dict[str, Any]:
        source = self.get_object(request, request.GET.get("clone", ""))
        if source is not None and may(request, CONTRIBUTORS, source):
            return initial_from(source)
        return {"team": request.GET.get("team")}

    def _create(self, request: HttpRequest, form: NewKeyForm) -> services.NewKey:
        cleaned = form.cleaned_data
        return services.create_key(
            team=cleaned["team"],
            name=cleaned["name"],
            purpose=cleaned["purpose"],
            scopes=cleaned["scopes"],
            allowed_models=cleaned["allowed_models"],
            tools=cleaned["tools"],
            allowed_addresses=cleaned["allowed_addresses"],
            expires_at=form.expires_at(now()),
            actor=actor(request),
            created_by=request.user.pk,
        )
