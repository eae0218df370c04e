"""Registry of admin pages that belong to no model. Each page is a function registered under its route:

    @page("live/", name="live", viewers=EVERY_ROLE)
    def live(request: HttpRequest, viewer: Viewer) -> HttpResponse:
        return render(request, "console/live/page.html", title="Running jobs", live=…)

`server.urls` serves them below /admin/ under names such as `console:live`, with the admin's sign-in and layout.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from tenants.console.roles import EVERY_ROLE, Roles
from tenants.console.viewer import Viewer, viewer_of

View = Callable[..., HttpResponseBase]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolePage:
    """A page and the roles that may open it."""

    route: str
    name: str
    view: View
    viewers: Roles

    def serve(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Return the page. Raises `PermissionDenied` for other roles."""
        viewer = viewer_of(request)
        if not viewer.may(self.viewers):
            raise PermissionDenied
        return self.view(request, viewer, *args, **kwargs)


_pages: dict[str, ConsolePage] = {}


def page(route: str, *, name: str, viewers: Roles = EVERY_ROLE) -> Callable[[View], View]:
    """Register a function as the page `/admin/<route>`, for these roles and for administrators."""

    def register(view: View) -> View:
        # Duplicates are rejected when the process starts: otherwise, one page would silently replace the other.
        if name in _pages:
            raise ValueError(f"There are two pages named '{name}'.")
        _pages[name] = ConsolePage(route=route, name=name, view=view, viewers=viewers)
        return view

    return register


def page_urls() -> list[URLPattern]:
    """Return the URL patterns of all pages."""
    return [
        path(console_page.route, admin.site.admin_view(console_page.serve), name=console_page.name)
        for console_page in _pages.values()
    ]


def may_open(viewer: Viewer, name: str) -> bool:
    """Return true if the user may open a page."""
    return viewer.may(_pages[name].viewers)


def render(request: HttpRequest, template: str, *, title: str, **context: Any) -> TemplateResponse:
    """Render a page in the admin's layout; `is_fullwidth=False` limits its width."""
    wide = {"is_fullwidth": "1"} if context.pop("is_fullwidth", True) else {}
    return TemplateResponse(request, template, {**admin.site.each_context(request), "title": title, **wide, **context})
