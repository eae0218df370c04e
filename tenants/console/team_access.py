# mypy: allow-subclassing-any
"""Shared parts of the admin pages of models, connectors and search engines, which all or some teams may use."""

from typing import Any

from django.http import HttpRequest
from django.utils.safestring import SafeString
from typing_extensions import override
from unfold.admin import TabularInline

from console.widgets import badge, column, first_of, time_column
from tenants.console.audited_admin import AuditedAdmin
from tenants.console.permissions import ByRole, PlatformOnly
from tenants.console.roles import ADMINISTRATORS_ONLY


def enabled_badge(row: Any) -> SafeString:
    """Return whether an object is enabled, as a badge."""
    return badge("enabled", "success") if row.enabled else badge("disabled")


class TeamsInline(ByRole, TabularInline):
    """Teams that may use an object. If the list is empty, every team may use it."""

    viewers = ADMINISTRATORS_ONLY
    extra = 0
    # A plain select would load all teams into every page.
    autocomplete_fields = ["team"]
    verbose_name = "team"
    verbose_name_plural = "allowed teams (none means every team)"

    @override
    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return false: teams are added and removed. A field for each team would need a query for each."""
        return False


class SharedObjectAdmin(AuditedAdmin, PlatformOnly):
    """Admin of an object with allowed teams."""

    list_prefetch: tuple[str, ...] = ("teams",)
    created = time_column("Created", "created_at", ordering="created_at")

    visible_to = column("Teams", lambda row: first_of([team.name for team in row.teams.all()], none="all teams"))
    state = column("Status", enabled_badge, ordering="enabled")
