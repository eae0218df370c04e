# mypy: allow-subclassing-any
"""The list of responses: what the agents asked and what they got, row by row."""

from typing import Any, cast

from django.contrib.admin import display
from django.contrib.admin.utils import unquote
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from typing_extensions import override
from unfold.sections import TemplateSection

from console.widgets import LogAdmin, TimeFilter, made_at
from responses.admin import cells
from responses.admin.response_list import filters, histogram
from responses.admin.response_list.changelist import AimedList, LookingList
from responses.admin.response_list.export import may_export
from responses.admin.response_list.summary import summary
from responses.admin.response_list.time_range import near
from responses.models import Response
from tenants.console.content_access import audit_team_reads
from tenants.console.roles import TeamScoped
from tenants.console.viewer import viewer

_WITHOUT_ROWS = {"responses_response_histogram", "responses_response_export"}


_PARAMETERS = {
    "period",
    *(f"created_at_{end}_{part}" for end in ("from", "to") for part in (0, 1)),
    "status__exact",
    "team__id__exact",
    "api_key__id__exact",
    *(one.parameter_name for one in filters.SIMPLE),
}


class ItemsSection(TemplateSection):
    """What a row shows when it is opened, fetched then."""

    template_name = "admin/responses/response/row.html"


class ResponseList(LogAdmin, TeamScoped):
    """The columns, the filters and the search of the list."""

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
        ("status", filters.ByStatus),
        ("team", filters.ByTeam),
        ("api_key", filters.ByKey),
        *filters.SIMPLE,
    ]
    search_fields = ["id"]
    search_help_text = "An exact id: resp_…, the response before it, or a request's req_…"
    ordering = ["-created_at", "-id"]
    sortable_by = ()

    @override
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        # The list shows previews; bodies of requests stay where they are.
        return super().get_queryset(request).defer("parameters", "options", "metadata")

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Nothing but the filters: whoever may not read what was said must not find out by asking for its words."""
        return lookup in _PARAMETERS

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[AimedList]:
        """What looks for the rows; without rows for those who only want the filters."""
        match = request.resolver_match
        return AimedList if match is not None and match.url_name in _WITHOUT_ROWS else LookingList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        wanted = search_term.strip().replace("\x00", "")
        if not wanted:
            return queryset, False
        if wanted.startswith("resp_"):
            return queryset.filter(Q(pk=wanted) | Q(previous_response_id=wanted)), False
        moment = made_at(wanted) if wanted.startswith("req_") else None
        if moment is None:
            return queryset.none(), False
        return queryset.filter(created_at__range=near(moment), request_id=wanted), False

    @override
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        context = {"may_export": may_export(request), **(extra_context or {})}
        answer = super().changelist_view(request, context)
        shown = getattr(answer, "context_data", None) or {}
        if "cl" in shown:
            audit_team_reads(viewer(request), {row.team_id for row in shown["cl"].result_list if row.readable})
        return answer  # type: ignore[no-any-return]  # Unfold has no types

    # -- beside the rows -----------------------------------------------------------------------------------------------

    @override
    def get_urls(self) -> list[URLPattern]:
        site = self.admin_site
        return [
            path("histogram/", site.admin_view(self.histogram_view), name="responses_response_histogram"),
            path("<path:object_id>/summary/", site.admin_view(self.summary_view), name="responses_response_summary"),
            *super().get_urls(),
        ]

    def histogram_view(self, request: HttpRequest) -> HttpResponse:
        """The responses of the list by time and outcome, which the page asks for once it is there."""
        rows = cast("AimedList", self.get_changelist_instance(request))
        found = histogram.drawn(rows)
        return TemplateResponse(request, "admin/responses/response/histogram.html", {"histogram": found})

    def summary_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """The items and calls of a response in short, which a row asks for when it is opened."""
        response = self.seen(request, object_id)
        return TemplateResponse(request, "admin/responses/response/summary.html", summary(request, response))

    def seen(self, request: HttpRequest, object_id: str) -> Response:
        """A response that the user may see; the 404 of an unknown id for any other."""
        rows = TeamScoped.get_queryset(self, request).select_related("team", "api_key")
        found: Response | None = rows.filter(pk=unquote(object_id).replace("\x00", "")).first()
        if found is None or not self.has_view_permission(request, found):
            raise Http404
        return found

    # -- columns -------------------------------------------------------------------------------------------------------

    @display(description="Time")
    def time(self, response: Response) -> Any:
        return cells.moment(response)

    @display(description="Status")
    def state(self, response: Response) -> Any:
        return cells.state(response)

    @display(description="Response")
    def response(self, response: Response) -> Any:
        return cells.previews(response, readable=getattr(response, "readable", False))

    @display(description="Team and key")
    def caller(self, response: Response) -> Any:
        return cells.caller(response)

    @display(description="Model")
    def served(self, response: Response) -> Any:
        return cells.served(response)

    @display(description="Conversation")
    def conversation(self, response: Response) -> Any:
        return cells.conversation(response)

    @display(description="Tokens in / out")
    def tokens(self, response: Response) -> Any:
        return cells.tokens(response)

    @display(description="Tools")
    def tools(self, response: Response) -> str:
        return str(response.tool_calls or "–")

    @display(description="Cost")
    def paid(self, response: Response) -> str:
        return cells.paid(response)

    @display(description="Took")
    def took(self, response: Response) -> Any:
        return cells.took(response)
