# mypy: allow-subclassing-any
"""Who may do what in the admin: the one place where roles become permissions.

Administrators (superusers) may do everything that a page offers. Members see the rows of their teams, read-only; on a
page that names `managers`, those roles also write. The database enforces the same once more (`TeamScopeMiddleware`).
"""

from collections.abc import Set as AbstractSet
from typing import Any

from django.db.models import Model, QuerySet
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from tenants.models import Role, Team

EVERY_ROLE = frozenset(Role)
NOBODY: frozenset[Role] = frozenset()


def teams_of(request: HttpRequest, roles: AbstractSet[Role] = EVERY_ROLE) -> list[str]:
    """The teams in which the user has one of these roles. No query: the middleware has read the memberships."""
    if not request.user.is_authenticated:
        return []
    return [membership.team_id for membership in request.user.memberships.all() if membership.role in roles]


def may(request: HttpRequest, roles: AbstractSet[Role], row: Model | None = None) -> bool:
    """Whether the user may: administrators always, others where one of their roles is among these.

    Without a row: in any team. With a row that belongs to no team: administrators only.
    """
    if request.user.is_superuser:
        return True
    teams = teams_of(request, roles)
    return bool(teams) if row is None else _team_of(row) in teams


def _team_of(row: Model) -> str | None:
    return row.pk if isinstance(row, Team) else getattr(row, "team_id", None)


class ByRole:
    """The permissions of a page or an inline by role; comes before Django's class in the bases."""

    viewers: AbstractSet[Role] = EVERY_ROLE
    managers: AbstractSet[Role] = NOBODY

    def has_module_permission(self, request: HttpRequest) -> bool:
        return may(request, self.viewers)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, self.viewers, obj)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, self.managers, obj)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, self.managers, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, NOBODY, obj)


class TeamScoped(ByRole, ModelAdmin):
    """A page of rows that belong to teams; `team_field` leads from a row to its team's id."""

    team_field = "team_id"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        if request.user.is_superuser:
            return rows
        return rows.filter(**{f"{self.team_field}__in": teams_of(request, self.viewers)})


class PlatformOnly(ByRole, ModelAdmin):
    """A page for administrators: what it shows belongs to no team."""

    viewers = NOBODY
