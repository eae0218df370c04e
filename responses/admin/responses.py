# mypy: allow-subclassing-any
"""Admin pages of responses: the list, the page of a response, and the fragments that both load."""

import re
from functools import partial
from typing import Any

from django.contrib.admin import register
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_safe
from typing_extensions import override

from responses.admin.response.chain import chain_view
from responses.admin.response.documents import document_view, snippet
from responses.admin.response.events import event_log_json
from responses.admin.response.summary import summary
from responses.admin.response.tabs import TABS, header
from responses.admin.response.timeline import span_details
from responses.admin.response_list import actions, changelist
from responses.admin.response_list.columns import COLUMNS, choose_columns, chosen_columns
from responses.admin.response_list.histogram import histogram
from responses.models import Response
from tenants.console.content_access import audit_read, audit_team_reads
from tenants.console.row_pages import RowPages
from tenants.console.viewer import viewer_of


def _compact(page: TemplateResponse) -> None:
    # A third of the page is indentation of the theme's templates.
    page.content = re.sub(rb">\s+<", b">\n<", page.content)


@register(Response)
class ResponseAdmin(RowPages):
    """Read-only list and pages of the responses of the user's teams."""

    list_prefetch = ("team", "api_key")
    # The list shows previews only. The request bodies may be large, so they are not fetched.
    list_defer = ("parameters", "options", "metadata", "spans")
    list_before_template = "admin/responses/response/above.html"
    list_filter = changelist.FILTERS
    search_fields = ["id"]
    search_help_text = "Exact ID: resp_… (also finds responses that continue it) or req_…"
    row_views = (
        ("summary", "summary/", summary),
        ("span", "spans/<str:key>/", span_details),
        ("log", "log/", event_log_json),
        ("chain", "chain/", chain_view),
        ("document", "documents/<str:name>/", document_view),
        ("snippet", "snippets/<str:name>/", snippet),
        *(
            (action.name, f"{action.name}/", partial(actions.perform_on_one, action))
            for action in actions.RESPONSE_ACTIONS
        ),
    )

    @override
    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        # Not every lookup of a column with a filter: the list reads bounded parts of its table.
        return lookup in changelist.PARAMETERS

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[changelist.ResponseChangeList]:
        return changelist.ResponseChangeList

    @override
    def search_condition(self, request: HttpRequest, term: str) -> Q:
        return Q(pk=term) | Q(previous_response_id=term) if term.startswith("resp_") else changelist.of_request(term)

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Return the actions for which the user has a role in at least one team."""
        return {
            name: (perform, name, title)
            for name, (title, roles, perform) in actions.SELECTION_ACTIONS.items()
            if viewer_of(request).may(roles)
        }

    @override
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        context = {"may_export": viewer_of(request).may(actions.EXPORTERS), **(extra_context or {})}
        page = super().changelist_view(request, context)
        # A redirect has no context data.
        shown = getattr(page, "context_data", None) or {}
        if "cl" in shown:
            rows = shown["cl"]
            rows.columns = chosen_columns(request)
            shown |= {"columns": rows.columns, "every_column": [(column, column in rows.columns) for column in COLUMNS]}
            audit_team_reads(viewer_of(request), {row.team_id for row in rows.result_list if row.readable})
            page.add_post_render_callback(_compact)
        return page  # type: ignore[no-any-return]  # Unfold has no types

    @override
    def get_urls(self) -> list[URLPattern]:
        site = self.admin_site
        return [
            path("histogram/", site.admin_view(self.histogram_view), name="responses_response_histogram"),
            path("columns/", site.admin_view(choose_columns), name="responses_response_columns"),
            path("export/", site.admin_view(self.export_view), name="responses_response_export"),
            *super().get_urls(),
        ]

    def histogram_view(self, request: HttpRequest) -> HttpResponse:
        """Render the histogram, which the page loads after the list."""
        rows: Any = self.get_changelist_instance(request)
        context = {"histogram": histogram(rows)}
        return TemplateResponse(request, "admin/responses/response/histogram.html", context)

    def export_view(self, request: HttpRequest) -> StreamingHttpResponse:
        """Export the filtered responses as JSON Lines, newest first, at most `actions.MAX_EXPORTED`."""
        if not viewer_of(request).may(actions.EXPORTERS):
            raise PermissionDenied
        rows: Any = self.get_changelist_instance(request)
        ids, _ = rows.plan.scan(limit=actions.MAX_EXPORTED)
        return actions.export(request, ids)

    @method_decorator(require_safe)
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Render the page with the tab named by `?tab=`, or only the tab for an htmx request."""
        viewer, response = viewer_of(request), self.get_visible(request, object_id)
        tabs = [tab for tab in TABS if viewer.may(tab.viewers, response)]
        tab = next((tab for tab in tabs if tab.name == request.GET.get("tab")), tabs[0])
        if tab.has_content and response.stored and viewer.may_read(response.team_id):
            audit_read(viewer, response, team_id=response.team_id)
        panel = {"original": response, "tab": tab, **tab.read(viewer, response, request.GET)}
        # A history restore also has the HX-Request header, but replaces the whole page.
        if "HX-Request" in request.headers and "HX-History-Restore-Request" not in request.headers:
            return TemplateResponse(request, tab.template, panel)
        return self.render(
            request,
            "admin/responses/response/detail.html",
            response.pk,
            is_fullwidth="1",
            tabs=tabs,
            **header(request, viewer, response),
            **panel,
        )
