# mypy: allow-subclassing-any
"""Permissions in the admin, derived from roles.

Administrators (superusers) may do everything that a page offers. Operators and platform auditors see every team,
members the rows of their own teams. The roles in `managers` of a page may also write. Row-level security enforces the
same limits in the database (`TeamScopeMiddleware`). Reading content is a separate permission, see
`tenants.console.content_access`.
"""

from collections.abc import Set as AbstractSet
from typing import Any

from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from typing_extensions import override

from console.widgets import ConsoleAdmin
from tenants.console.viewer import viewer
from tenants.models import Role, StaffRole, Team

AnyRole = Role | StaffRole
Roles = AbstractSet[AnyRole]

STAFF: frozenset[AnyRole] = frozenset(StaffRole)
MEMBERS: frozenset[AnyRole] = frozenset(Role)
EVERY_ROLE: frozenset[AnyRole] = STAFF | MEMBERS
# Administrators pass every check, so an empty set leaves only them.
ADMINISTRATORS_ONLY: frozenset[AnyRole] = frozenset()
LEADS: frozenset[AnyRole] = frozenset({Role.TEAM_LEAD})
OPERATORS: frozenset[AnyRole] = frozenset({StaffRole.OPERATOR})
CONTRIBUTORS: frozenset[AnyRole] = frozenset({Role.TEAM_LEAD, Role.DEVELOPER})


def everywhere(request: HttpRequest, roles: Roles = EVERY_ROLE) -> bool:
    """Return true if the user has one of the roles in every team. Administrators always do, staff by their role."""
    who = viewer(request)
    return who.is_administrator or who.staff in roles


def teams_of(request: HttpRequest, roles: Roles = EVERY_ROLE) -> list[str]:
    """Return the ids of the teams in which the user has one of these roles."""
    return [team_id for team_id, role in viewer(request).roles.items() if role in roles]


def teams_for(request: HttpRequest, roles: Roles = EVERY_ROLE) -> QuerySet[Team]:
    """Return the teams that the user may choose in a form, ordered by name."""
    teams = Team.objects.order_by("name")
    return teams if everywhere(request, roles) else teams.filter(pk__in=teams_of(request, roles))


def may(request: HttpRequest, roles: Roles, row: Model | None = None) -> bool:
    """Return true if the user has one of these roles in the team of `row`. Administrators always pass.

    Without a row, a role in any team suffices. For a row without a team, only administrators and staff pass.
    """
    if everywhere(request, roles):
        return True
    teams = teams_of(request, roles)
    return bool(teams) if row is None else (row.pk if isinstance(row, Team) else getattr(row, "team_id", None)) in teams


class ByRole:
    """Permissions of an admin page or inline by role. Must precede Django's class in the list of bases."""

    viewers: Roles = EVERY_ROLE
    managers: Roles = ADMINISTRATORS_ONLY

    def has_module_permission(self, request: HttpRequest) -> bool:
        return may(request, self.viewers)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, self.viewers, obj)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, self.managers, obj)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, self.managers, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, ADMINISTRATORS_ONLY, obj)

    def _get_obj_does_not_exist_redirect(self, request: HttpRequest, *args: Any) -> HttpResponse:
        """Raise a 404 for an object that does not exist for the user. Django would redirect to the home page."""
        raise Http404


class TeamScoped(ByRole, ConsoleAdmin):
    """Admin page of rows that belong to teams. `team_field` is the lookup of the team's id."""

    team_field = "team_id"

    @override
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        if everywhere(request, self.viewers):
            return rows
        return rows.filter(**{f"{self.team_field}__in": teams_of(request, self.viewers)})

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        # Users may only choose teams whose rows they manage.
        if db_field.name == "team":
            kwargs["queryset"] = teams_for(request, self.managers)
        return super().formfield_for_foreignkey(db_field, request, **kwargs)


class PlatformOnly(ByRole, ConsoleAdmin):
    """Admin page of objects that belong to no team: staff view them, operators manage them."""

    viewers = STAFF
    managers = OPERATORS
