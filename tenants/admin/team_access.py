# mypy: allow-subclassing-any
"""What the platform offers to all teams or to some: models and connectors."""

from typing import Any

from django.contrib import admin
from django.contrib.admin import display
from django.utils.safestring import SafeString
from unfold.admin import TabularInline

from console.widgets import badge, when
from tenants.console.audited_admin import AuditedAdmin
from tenants.console.roles import ADMINISTRATORS_ONLY, ByRole, PlatformOnly


class TeamsInline(ByRole, TabularInline):
    """The teams that may use it; none: every team."""

    viewers = ADMINISTRATORS_ONLY
    extra = 0
    autocomplete_fields = ["team"]
    verbose_name = "team"
    verbose_name_plural = "teams that may use it (none: every team)"


class SharedObjectAdmin(AuditedAdmin, PlatformOnly):
    """Columns that say who may use a row, and whether anybody may. The list fetches `teams` beforehand."""

    actions = None
    show_facets = admin.ShowFacets.NEVER

    @display(description="Teams")
    def visible_to(self, row: Any) -> str:
        return ", ".join(team.name for team in row.teams.all()) or "every team"

    @display(description="Status", ordering="enabled")
    def state(self, row: Any) -> SafeString:
        return badge("enabled", "success") if row.enabled else badge("disabled")

    @display(description="Created", ordering="created_at")
    def created(self, row: Any) -> Any:
        return when(row.created_at)
