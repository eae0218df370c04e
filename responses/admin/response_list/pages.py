# mypy: allow-subclassing-any
"""Admin pages of responses: the list, the page of a response, and the fragments that its tabs load."""

from collections.abc import Callable
from typing import Any

from django.contrib.admin import register
from django.contrib.admin.utils import unquote
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from typing_extensions import override

from responses.admin.conversations.chain import chain_view
from responses.admin.response.events import event_log_json
from responses.admin.response.header import header_context
from responses.admin.response.json_tabs import document
from responses.admin.response.snippets import snippet
from responses.admin.response.span_details import span_details
from responses.admin.response.tabs import selected_tab, tabs_for
from responses.admin.response_list.actions import ResponseListWithActions
from responses.models import Response
from tenants.console.content_access import audit_read, may_read
from tenants.console.roles import TeamScoped

FragmentView = Callable[..., HttpResponse]
FRAGMENTS: tuple[tuple[str, str, FragmentView], ...] = (
    ("span", "spans/<str:key>/", span_details),
    ("log", "log/", event_log_json),
    ("chain", "chain/", chain_view),
    ("document", "documents/<str:name>/", document),
    ("snippet", "snippets/<str:name>/", snippet),
)
"""Fragments of the response page: name, route below the page, view."""


@register(Response)
class ResponseAdmin(ResponseListWithActions):
    @override
    def get_urls(self) -> list[URLPattern]:
        fragments = [
            path(
                f"<path:object_id>/{route}",
                self.admin_site.admin_view(self._fragment_view(view)),
                name=f"responses_response_{name}",
            )
            for name, route, view in FRAGMENTS
        ]
        return [*fragments, *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Render the page with the tab named by `?tab=`, or only the tab for an htmx request."""
        if request.method not in {"GET", "HEAD"}:
            return HttpResponseNotAllowed(["GET", "HEAD"])
        response = self._visible(request, object_id)
        if response is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        tabs = tabs_for(request, response)
        tab = selected_tab(request, tabs)
        if tab.has_content and response.stored and may_read(request, response.team_id):
            audit_read(request, response, team_id=response.team_id)
        panel = {"original": response, "tab": tab, **tab.read(request, response)}
        if is_fragment_request(request):
            return TemplateResponse(request, tab.template, panel)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": response.pk,
            "is_fullwidth": "1",
            "tabs": tabs,
            **header_context(request, response),
            **panel,
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/responses/response/detail.html", context)

    def _fragment_view(self, view: FragmentView) -> FragmentView:
        def serve(request: HttpRequest, object_id: str, **kwargs: str) -> HttpResponse:
            if request.method not in {"GET", "HEAD"}:
                return HttpResponseNotAllowed(["GET", "HEAD"])
            response = self._visible(request, object_id)
            if response is None:
                raise Http404
            return view(request, response, **kwargs)

        return serve

    def _visible(self, request: HttpRequest, object_id: str) -> Response | None:
        rows = TeamScoped.get_queryset(self, request).select_related("team", "api_key")
        found: Response | None = rows.filter(pk=unquote(object_id)).first()
        return found if found is not None and self.has_view_permission(request, found) else None


def is_fragment_request(request: HttpRequest) -> bool:
    """Return whether htmx requests only a part of the page."""
    # A history restore also has the HX-Request header, but replaces the whole page.
    return "HX-Request" in request.headers and "HX-History-Restore-Request" not in request.headers
