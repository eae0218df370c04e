"""Which teams the pages of the site may see."""

from collections.abc import Callable

from django.db import transaction
from django.db.models import prefetch_related_objects
from django.http import HttpRequest, HttpResponse

from tenants import scope


class TeamScopeMiddleware:
    """Opens row-level security for the whole of a page's request: all teams for administrators, their own for members.

    Everybody else sees no row, whatever a page may forget to filter. The request is one transaction: a page that raises
    leaves nothing half written.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if not request.path.startswith("/admin/"):
            return self.get_response(request)
        with scope.team(*_visible_teams(request)):
            return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> None:
        """Roll back: by the time the exception would pass through `__call__`, it has become a 500 page."""
        if request.path.startswith("/admin/"):
            transaction.set_rollback(True)


def _visible_teams(request: HttpRequest) -> list[str]:
    user = request.user
    if not user.is_authenticated:
        return []
    # Read here once for the whole request; `tenants.admin.roles` decides by them without another query.
    with scope.every_team():
        prefetch_related_objects([user], "memberships")
    if user.is_superuser:
        return ["*"]
    return [membership.team_id for membership in user.memberships.all()]
