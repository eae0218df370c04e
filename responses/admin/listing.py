# mypy: allow-subclassing-any
"""The list of responses: what the agents asked and what they got, row by row."""

from datetime import timedelta
from typing import Any

from django.contrib.admin import display
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from typing_extensions import override
from unfold.contrib.filters.admin import (
    AutocompleteSelectFilter,
    ChoicesDropdownFilter,
    MultipleChoicesDropdownFilter,
)

from kernel.console import LogAdmin, TimeFilter, exact, made_at
from responses.admin import cells
from responses.models import Response
from tenants.admin.roles import TeamScoped

# A request's id is made when its head arrives, the response when its body was read.
_UPLOAD = timedelta(hours=1)


class ResponseList(LogAdmin, TeamScoped):
    """The columns, the filters and the search of the list."""

    list_display = ["time", "state", "response", "caller", "served", "tokens", "tools", "took"]
    list_display_links = ["time"]
    list_prefetch = ("team", "api_key")
    list_filter = [
        ("created_at", TimeFilter),
        ("status", MultipleChoicesDropdownFilter),
        ("team", AutocompleteSelectFilter),
        ("api_key", AutocompleteSelectFilter),
        exact("model", "model"),
        ("mode", ChoicesDropdownFilter),
        exact("error_code", "error code"),
    ]
    search_fields = ["id"]
    search_help_text = "An exact id: resp_…, the response before it, or a request's req_…"
    ordering = ["-created_at", "-id"]
    sortable_by = ()

    @override
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        # The list shows previews; bodies of requests stay where they are.
        return super().get_queryset(request).defer("parameters", "options", "metadata")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        wanted = search_term.strip()
        if not wanted:
            return queryset, False
        if wanted.startswith("resp_"):
            return queryset.filter(Q(pk=wanted) | Q(previous_response_id=wanted)), False
        moment = made_at(wanted) if wanted.startswith("req_") else None
        if moment is None:
            return queryset.none(), False
        # Request ids have no index, but they tell their time, which has one.
        near = queryset.filter(created_at__range=(moment - timedelta(minutes=1), moment + _UPLOAD))
        return near.filter(request_id=wanted), False

    # -- columns -------------------------------------------------------------------------------------------------------

    @display(description="Time")
    def time(self, response: Response) -> Any:
        return cells.moment(response)

    @display(description="Status")
    def state(self, response: Response) -> Any:
        return cells.state(response)

    @display(description="Response")
    def response(self, response: Response) -> Any:
        return cells.previews(response)

    @display(description="Team and key")
    def caller(self, response: Response) -> Any:
        return cells.caller(response)

    @display(description="Model")
    def served(self, response: Response) -> Any:
        return cells.served(response)

    @display(description="Tokens in / out")
    def tokens(self, response: Response) -> Any:
        return cells.tokens(response)

    @display(description="Tools")
    def tools(self, response: Response) -> str:
        return str(response.tool_calls or "–")

    @display(description="Took")
    def took(self, response: Response) -> Any:
        return cells.took(response)
