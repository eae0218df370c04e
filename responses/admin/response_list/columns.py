# mypy: allow-subclassing-any
"""Response list: columns, filters and search."""

from typing import Any, cast

from django.contrib.admin import display
from django.contrib.admin.utils import unquote
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from typing_extensions import override
from unfold.sections import TemplateSection

from console.widgets import LogAdmin, TimeFilter, created_at_of
from responses.admin import cells
from responses.admin.response_list import filters, histogram
from responses.admin.response_list.changelist import FilteredChangeList, ResponseChangeList
from responses.admin.response_list.export import may_export
from responses.admin.response_list.summary import summary
from responses.admin.response_list.time_range import creation_window
from responses.models import Response
from tenants.console.content_access import audit_team_reads
from tenants.console.roles import TeamScoped
from tenants.console.viewer import viewer

# Views that need the parsed filters but render no rows.
_WITHOUT_ROWS = {"responses_response_histogram", "responses_response_export"}


_PARAMETERS = {
    "period",
    *(f"created_at_{end}_{part}" for end in ("from", "to") for part in (0, 1)),
    "status__exact",
    "team__id__exact",
    "api_key__id__exact",
    *(spec.parameter_name for spec in filters.PLAIN_FILTERS),
}


class ItemsSection(TemplateSection):
    """Expanded row; its content is loaded when the row is opened."""

    template_name = "admin/responses/response/row.html"


class ResponseList(LogAdmin, TeamScoped):
    """Read-only change list of the responses of the user's teams."""

    list_display = [
        "time",
        "state",
        "response",
        "caller",
        "served",
        "conversation",
        "tokens",
        "tools",
        "paid",
        "took",
    ]
    list_display_links = ["time"]
    list_prefetch = ("team", "api_key")
    list_sections = [ItemsSection]
    list_before_template = "admin/responses/response/above.html"
    list_filter = [
        ("created_at", TimeFilter),
        ("status", filters.ResponseStatusFilter),
        ("team", filters.TeamFilter),
        ("api_key", filters.ApiKeyFilter),
        *filters.PLAIN_FILTERS,
    ]
    search_fields = ["id"]
    search_help_text = "Exact ID: resp_… (also finds responses that continue it) or req_…"
    ordering = ["-created_at", "-id"]
    sortable_by = ()

    @override
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        # The list shows previews only. The request bodies may be large, so they are not fetched.
        return super().get_queryset(request).defer("parameters", "options", "metadata")

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Allow only the lookups of the filters."""
        # Django would accept any local field. A user without access to the content could guess it with a lookup such as
        # `input_preview__contains`.
        return lookup in _PARAMETERS

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[FilteredChangeList]:
        """Return the change list class: without rows for the histogram and the export."""
        match = request.resolver_match
        return FilteredChangeList if match is not None and match.url_name in _WITHOUT_ROWS else ResponseChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip().replace("\x00", "")
        if not term:
            return queryset, False
        if term.startswith("resp_"):
            return queryset.filter(Q(pk=term) | Q(previous_response_id=term)), False
        # Request ids have no index. The time stamp in the id limits the search to a range of the time index.
        moment = created_at_of(term) if term.startswith("req_") else None
        if moment is None:
            return queryset.none(), False
        return queryset.filter(created_at__range=creation_window(moment), request_id=term), False

    @override
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        context = {"may_export": may_export(request), **(extra_context or {})}
        page = super().changelist_view(request, context)
        # A redirect has no context data.
        shown = getattr(page, "context_data", None) or {}
        if "cl" in shown:
            audit_team_reads(viewer(request), {row.team_id for row in shown["cl"].result_list if row.readable})
        return page  # type: ignore[no-any-return]  # Unfold has no types

    # -- loaded by the page --------------------------------------------------------------------------------------------

    @override
    def get_urls(self) -> list[URLPattern]:
        site = self.admin_site
        return [
            path("histogram/", site.admin_view(self.histogram_view), name="responses_response_histogram"),
            path("<path:object_id>/summary/", site.admin_view(self.summary_view), name="responses_response_summary"),
            *super().get_urls(),
        ]

    def histogram_view(self, request: HttpRequest) -> HttpResponse:
        """Render the histogram, which the page loads after the list."""
        rows = cast("FilteredChangeList", self.get_changelist_instance(request))
        found = histogram.build_histogram(rows)
        return TemplateResponse(request, "admin/responses/response/histogram.html", {"histogram": found})

    def summary_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Render the items and tool calls of a response, loaded when its row is opened."""
        response = self.get_visible(request, object_id)
        return TemplateResponse(request, "admin/responses/response/summary.html", summary(request, response))

    def get_visible(self, request: HttpRequest, object_id: str) -> Response:
        """Return a response that the user may see. Raises Http404 for an unknown id or another team's response."""
        rows = TeamScoped.get_queryset(self, request).select_related("team", "api_key")
        found: Response | None = rows.filter(pk=unquote(object_id).replace("\x00", "")).first()
        if found is None or not self.has_view_permission(request, found):
            raise Http404
        return found

    # -- columns -------------------------------------------------------------------------------------------------------

    @display(description="Time")
    def time(self, response: Response) -> Any:
        return cells.created(response)

    @display(description="Status")
    def state(self, response: Response) -> Any:
        return cells.status_and_mode(response)

    @display(description="Response")
    def response(self, response: Response) -> Any:
        return cells.previews(response, readable=getattr(response, "readable", False))

    @display(description="Team and key")
    def caller(self, response: Response) -> Any:
        return cells.caller(response)

    @display(description="Model")
    def served(self, response: Response) -> Any:
        return cells.model(response)

    @display(description="Conversation")
    def conversation(self, response: Response) -> Any:
        return cells.conversation(response)

    @display(description="Tokens (in / out)")
    def tokens(self, response: Response) -> Any:
        return cells.tokens(response)

    @display(description="Tools")
    def tools(self, response: Response) -> str:
        return str(response.tool_calls or "–")

    @display(description="Cost")
    def paid(self, response: Response) -> str:
        return cells.cost(response)

    @display(description="Duration")
    def took(self, response: Response) -> Any:
        return cells.latency(response)
