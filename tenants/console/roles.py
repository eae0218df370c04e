# mypy: allow-subclassing-any
"""Who may do what in the admin: the one place where roles become permissions.

Administrators (superusers) may do everything that a page offers. Operators and platform auditors see every team,
members the rows of their own; on a page that names `managers`, those roles also write. The database enforces the same
once more (`TeamScopeMiddleware`). Who may read content is decided in `tenants.console.content_access`.
"""

from collections.abc import Set as AbstractSet
from typing import Any

from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from unfold.admin import ModelAdmin

from tenants.console.viewer import viewer
from tenants.models import Role, StaffRole, Team

AnyRole = Role | StaffRole
Roles = AbstractSet[AnyRole]

STAFF: frozenset[AnyRole] = frozenset(StaffRole)
MEMBERS: frozenset[AnyRole] = frozenset(Role)
EVERY_ROLE: frozenset[AnyRole] = STAFF | MEMBERS
ADMINISTRATORS_ONLY: frozenset[AnyRole] = frozenset()
LEADS: frozenset[AnyRole] = frozenset({Role.TEAM_LEAD})
OPERATORS: frozenset[AnyRole] = frozenset({StaffRole.OPERATOR})
CONTRIBUTORS: frozenset[AnyRole] = frozenset({Role.TEAM_LEAD, Role.DEVELOPER})


def everywhere(request: HttpRequest, roles: Roles = EVERY_ROLE) -> bool:
    """Whether the user may in every team: administrators always, staff where their role is named."""
    who = viewer(request)
    return who.is_administrator or who.staff in roles


def teams_of(request: HttpRequest, roles: Roles = EVERY_ROLE) -> list[str]:
    """The teams of which the user is a member with one of these roles."""
    return [team_id for team_id, role in viewer(request).roles.items() if role in roles]


def teams_for(request: HttpRequest, roles: Roles = EVERY_ROLE) -> QuerySet[Team]:
    """The teams that the user may choose in a form, by name."""
    teams = Team.objects.order_by("name")
    return teams if everywhere(request, roles) else teams.filter(pk__in=teams_of(request, roles))


def may(request: HttpRequest, roles: Roles, row: Model | None = None) -> bool:
    """Whether the user may: administrators always, others where one of their roles is among these.

    Without a row: in any team. With a row that belongs to no team: administrators and staff only.
    """
    if everywhere(request, roles):
        return True
    teams = teams_of(request, roles)
    return bool(teams) if row is None else _team_of(row) in teams


def _team_of(row: Model) -> str | None:
    return row.pk if isinstance(row, Team) else getattr(row, "team_id", None)


class ByRole:
    """The permissions of a page or an inline by role; comes before Django's class in the bases."""

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
        """What is not there, or not for the user, is a 404; Django would lead to the home page."""
        raise Http404


class TeamScoped(ByRole, ModelAdmin):
    """A page of rows that belong to teams; `team_field` leads from a row to its team's id."""

    team_field = "team_id"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        if everywhere(request, self.viewers):
            return rows
        return rows.filter(**{f"{self.team_field}__in": teams_of(request, self.viewers)})


class PlatformOnly(ByRole, ModelAdmin):
    """A page of what belongs to no team: staff look at it, operators keep it."""

    viewers = STAFF
    managers = OPERATORS
