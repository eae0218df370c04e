# mypy: allow-subclassing-any
"""Base classes of admin pages whose permissions are derived from roles.

Row-level security enforces the same limits in the database (`TeamScopeMiddleware`).
"""

from collections.abc import Iterable
from typing import Any

from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from typing_extensions import override

from console.widgets import ConsoleAdmin
from tenants.console.roles import ADMINISTRATORS_ONLY, EVERY_ROLE, OPERATORS, STAFF, Roles
from tenants.console.row_actions import RowActions
from tenants.console.viewer import viewer_of


class ByRole:
    """Permissions of an admin page or inline by role. Must precede Django's class in the list of bases.

    The roles in `viewers` may open the page, those in `managers` may also write.
    """

    viewers: Roles = EVERY_ROLE
    managers: Roles = ADMINISTRATORS_ONLY

    def has_module_permission(self, request: HttpRequest) -> bool:
        return viewer_of(request).may(self.viewers)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return viewer_of(request).may(self.viewers, obj)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return viewer_of(request).may(self.managers, obj)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return viewer_of(request).may(self.managers, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return viewer_of(request).may(ADMINISTRATORS_ONLY, obj)

    def _get_obj_does_not_exist_redirect(self, request: HttpRequest, *args: Any) -> HttpResponse:
        """Raise a 404 for an object that does not exist for the user. Django would redirect to the home page."""
        raise Http404


class TeamScoped(ByRole, RowActions, ConsoleAdmin):
    """Admin page of rows that belong to teams. `team_field` is the lookup of the team's id."""

    team_field = "team_id"

    @override
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        teams = viewer_of(request).team_ids(self.viewers)
        return rows if teams is None else rows.filter(self.condition_of(teams))

    def condition_of(self, teams: Iterable[str]) -> Q:
        """Return the condition for the rows of teams."""
        return Q(**{f"{self.team_field}__in": teams})

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        # Users may only choose teams whose rows they manage.
        if db_field.name == "team":
            kwargs["queryset"] = viewer_of(request).teams(self.managers)
        return super().formfield_for_foreignkey(db_field, request, **kwargs)


class PlatformOnly(ByRole, RowActions, ConsoleAdmin):
    """Admin page of objects that belong to no team: staff view them, operators manage them."""

    viewers = STAFF
    managers = OPERATORS
