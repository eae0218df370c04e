"""Which teams the pages of the site may see."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from tenants import scope
from tenants.models import Membership


class TeamScopeMiddleware:
    """Opens row-level security for the whole of a page's request: all teams for administrators, their own for members.

    Everybody else sees no row, whatever a page may forget to filter.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if not request.path.startswith("/admin/"):
            return self.get_response(request)
        with scope.team(*_visible_teams(request)):
            return self.get_response(request)


def _visible_teams(request: HttpRequest) -> list[str]:
    if request.user.is_authenticated and request.user.is_superuser:
        return ["*"]
    if not request.user.is_authenticated:
        return []
    with scope.every_team():
        return list(Membership.objects.filter(user=request.user).values_list("team_id", flat=True))
