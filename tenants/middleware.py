"""Who gets as far as the pages of the site, and which teams these may see."""

from collections.abc import Callable

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from tenants import scope
from tenants.console.viewer import lacks_second_factor, viewer


class TeamScopeMiddleware:
    """Opens row-level security for the whole of a page's request: all teams for staff, their own for members.

    Everybody else sees no row, whatever a page may forget to filter. The request is one transaction: a page that raises
    leaves nothing half written.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if not request.path.startswith("/admin/"):
            return self.get_response(request)
        # Read here once for the whole request; pages decide by it without another query.
        with scope.team(*viewer(request).visible_teams):
            return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> None:
        """Roll back: by the time the exception would pass through `__call__`, it has become a 500 page."""
        if request.path.startswith("/admin/"):
            transaction.set_rollback(True)


class SecondFactorMiddleware:
    """Where the operator requires it, leads people without a second factor to the page where they get one.

    Who came through the OpenID Connect provider has been asked there.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.path.startswith("/admin/") and lacks_second_factor(request):
            messages.warning(request, "This platform requires a second factor. Add one, and go on.")
            return HttpResponseRedirect(reverse("mfa_index"))
        return self.get_response(request)
