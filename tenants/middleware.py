"""Middleware of the admin: row-level security by team, and enforcement of second factors."""

from collections.abc import Callable

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from tenants import scope
from tenants.console.viewer import lacks_second_factor, viewer_of


class TeamScopeMiddleware:
    """Limits an admin request to the rows that its user may see: of all teams for staff, of their teams for members.

    Row-level security enforces the limit even where a page forgets to filter. The whole request is one transaction, so
    that a page that raises leaves no partial changes.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if not request.path.startswith("/admin/"):
            return self.get_response(request)
        # The viewer is read once per request; pages check permissions without further queries.
        with scope.team(*viewer_of(request).visible_teams):
            return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> None:
        """Roll back the transaction of a request that failed."""
        # Django converts exceptions to a 500 response before they could pass through `__call__`.
        if request.path.startswith("/admin/"):
            transaction.set_rollback(True)


class SecondFactorMiddleware:
    """If second factors are required, redirects users without one to the page where they can add one."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.path.startswith("/admin/") and lacks_second_factor(request):
            messages.warning(request, "This platform requires a second factor. Add one to continue.")
            return HttpResponseRedirect(reverse("mfa_index"))
        return self.get_response(request)
