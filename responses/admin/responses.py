# mypy: allow-subclassing-any
"""Admin pages of responses: the list, the page of a response, and the fragments that both load."""

import re
from collections.abc import Sequence
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

from console.widgets import copyable
from conversations.models import Placement, Section
from responses.admin import cells
from responses.admin.response.chain import chain_view
from responses.admin.response.documents import document_view, snippet
from responses.admin.response.events import event_log_json
from responses.admin.response.tabs import TABS, header
from responses.admin.response.timeline import span_details
from responses.admin.response_list import actions, changelist
from responses.admin.response_list.columns import COLUMNS, choose_columns, chosen_columns
from responses.admin.response_list.histogram import histogram
from responses.admin.row_pages import RowPages
from responses.models import Response, ToolCall
from responses.runs import selectors
from responses.runs.recorder import preview
from tenants.console.content_access import HIDDEN, audit_read, audit_team_reads
from tenants.console.viewer import Viewer, viewer_of

# Items per section and tool calls of an expanded row.
MAX_LINES = 20
_ICONS = {
    "message": "chat",
    "reasoning": "psychology",
    "function_call": "function",
    "function_call_output": "output",
    "mcp_call": "cable",
    "web_search_call": "travel_explore",
    "file_search_call": "manage_search",
    "code_interpreter_call": "terminal",
    "image_generation_call": "image",
    "compaction": "compress",
}


@require_safe
def summary(request: HttpRequest, viewer: Viewer, response: Response) -> HttpResponse:
    """Serve the content of an expanded row of the list: one line per item and tool call.

    Content is masked for users who may not read it.
    """
    inputs = selectors.own_items(response=response, section=Section.INPUT, limit=MAX_LINES)
    outputs = selectors.own_items(response=response, section=Section.OUTPUT, limit=MAX_LINES)
    calls = ToolCall.objects.filter(response_id=response.pk, team_id=response.team_id).order_by("turn", "id")
    is_readable = viewer.may_read(response.team_id)
    if is_readable and (inputs or outputs):
        audit_read(viewer, response, team_id=response.team_id)

    def lines(placements: Sequence[Placement]) -> list[dict[str, str]]:
        found = []
        for body in (placement.item.body for placement in placements):
            kind, author = body["type"], body.get("role") or body.get("name")
            # Calls and their outputs have no preview: show the beginning of the arguments or the output.
            text = preview(body) or str(body.get("arguments") or body.get("output") or "")[:120]
            label = f"{kind.replace('_', ' ')} · {author}" if author else kind.replace("_", " ")
            shown = text if is_readable or not text else HIDDEN
            found.append({"icon": _ICONS.get(kind, "data_object"), "kind": label, "text": shown})
        return found

    context = {
        "response": response,
        "id_link": copyable(response.pk, href=cells.url(response.pk)),
        "input": lines(inputs),
        "output": lines(outputs),
        "calls": [{"call": call, "took": cells.elapsed(call.started_at, call.ended_at)} for call in calls[:MAX_LINES]],
        "error": response.error,
        "readable": is_readable,
    }
    return TemplateResponse(request, "admin/responses/response/summary.html", context)


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
