# mypy: allow-subclassing-any
"""Filters of the response list.

A filter is a condition and a hint whether an index serves it (`index_hint`). Of the active filters, one is looked up by
its index and the others are evaluated on the rows it returns, up to a limit
(`responses.admin.response_list.changelist`).
"""

from collections.abc import Callable
from decimal import Decimal
from enum import IntEnum
from typing import Any

from django.db import connection
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from typing_extensions import override
from unfold.contrib.filters.admin import (
    AutocompleteSelectFilter,
    DropdownFilter,
    MultipleChoicesDropdownFilter,
    TextFilter,
)

from console.widgets import created_at_of
from responses.admin.response_list.time_range import TimeRange, creation_window
from responses.models import RUNNING, UNSUCCESSFUL, Mode, ToolCall
from tenants.console.roles import everywhere, teams_of

MAX_CALLS = 5_000
"""Newest tool calls that a filter by tool considers."""


class IndexHint(IntEnum):
    """Index that serves a filter, most selective first: of the active filters, the lowest hint is looked up."""

    RUNNING = 0
    REQUEST = 1
    CONVERSATION = 2
    ERROR = 3
    END_USER = 4
    METADATA = 5
    TOOL = 6
    KEY = 7
    STATUS = 8
    MODEL = 9
    TEAM = 10


_RUNNING, _UNWELL = ({status.value for status in kind} for kind in (RUNNING, UNSUCCESSFUL))


class ConditionFilter:
    """Mixin for filters that return a condition. Comes before Unfold's filter class in the bases."""

    index_hint: IndexHint | None = None
    value: Callable[[], Any]  # provided by Unfold's filter

    def condition(self, span: TimeRange) -> Q | None:
        """Return the condition of the filter, or None if it is not set."""
        raise NotImplementedError

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the query set unchanged."""
        # The change list collects the conditions itself, to choose the one that the index lookup uses.
        return queryset


class ExactValueFilter(ConditionFilter, TextFilter):
    """Text box that matches the exact value of a column."""

    column = ""

    @override
    def condition(self, span: TimeRange) -> Q | None:
        value = (self.value() or "").strip().replace("\x00", "")
        return self.condition_for(value, span) if value else None

    def condition_for(self, value: str, span: TimeRange) -> Q:
        """Return the condition for rows with this value."""
        return Q(**{self.column: value})


class ChoiceFilter(ConditionFilter, DropdownFilter):
    """Drop-down list of conditions."""

    choices_of: tuple[tuple[str, str], ...] = ()

    @override
    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return self.choices_of

    @override
    def condition(self, span: TimeRange) -> Q | None:
        chosen = self.value()
        return self.condition_for(chosen) if chosen in dict(self.choices_of) else None

    def condition_for(self, chosen: str) -> Q:
        """Return the condition for this choice."""
        raise NotImplementedError


class TeamFilter(ConditionFilter, AutocompleteSelectFilter):
    index_hint = IndexHint.TEAM

    @override
    def condition(self, span: TimeRange) -> Q | None:
        return Q(team_id=self.value()) if self.value() else None


class ApiKeyFilter(ConditionFilter, AutocompleteSelectFilter):
    index_hint = IndexHint.KEY

    @override
    def condition(self, span: TimeRange) -> Q | None:
        return Q(api_key_id=self.value()) if self.value() else None


class ResponseStatusFilter(ConditionFilter, MultipleChoicesDropdownFilter):
    """Responses with one of the chosen statuses."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        chosen = set(self.value() or ())
        is_running, is_unsuccessful = chosen <= _RUNNING, chosen <= _UNWELL
        # There are partial indexes for running and for unsuccessful responses; completed ones are too frequent to need
        # one.
        self.index_hint = (
            None if not chosen else IndexHint.RUNNING if is_running else IndexHint.STATUS if is_unsuccessful else None
        )

    @override
    def condition(self, span: TimeRange) -> Q | None:
        return Q(status__in=self.value()) if self.value() else None


class ModelFilter(ExactValueFilter):
    title, parameter_name, column, index_hint = "model", "model", "model", IndexHint.MODEL


class ErrorCodeFilter(ExactValueFilter):
    title, parameter_name, column, index_hint = "error code", "error_code", "error_code", IndexHint.ERROR


class ConversationIdFilter(ExactValueFilter):
    title, parameter_name, column, index_hint = (
        "conversation ID",
        "conversation",
        "conversation_id",
        IndexHint.CONVERSATION,
    )


class ResponseEndUserFilter(ExactValueFilter):
    """The `user` or `safety_identifier` that the client sent."""

    title, parameter_name, column, index_hint = "end user", "end_user", "end_user", IndexHint.END_USER


class RequestFilter(ExactValueFilter):
    """HTTP request that created the response."""

    title, parameter_name, index_hint = "request ID", "request", IndexHint.REQUEST

    @override
    def condition_for(self, value: str, span: TimeRange) -> Q:
        # Request ids have no index, but they contain a time stamp, and the creation time has one.
        moment = created_at_of(value) if value.startswith("req_") else None
        return Q(created_at__range=creation_window(moment), request_id=value) if moment else Q(pk__in=[])


class ResponseMetadataFilter(ExactValueFilter):
    """Metadata pair (`key=value`) or key."""

    title, parameter_name = "metadata (key=value)", "metadata"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Under row-level security PostgreSQL uses the index only if the containment operator is marked leakproof. Only
        # a superuser can do that (`launcher.database`).
        if self.value() and _containment_is_leakproof():
            self.index_hint = IndexHint.METADATA

    @override
    def condition_for(self, value: str, span: TimeRange) -> Q:
        key, equals, expected = value.partition("=")
        return Q(metadata__contains={key.strip(): expected.strip()}) if equals else Q(metadata__has_key=value)


class ModeFilter(ChoiceFilter):
    title, parameter_name = "mode", "mode"
    choices_of = (("sync", "Sync"), ("stream", "Stream"), ("background", "Background"))

    @override
    def condition_for(self, chosen: str) -> Q:
        if chosen == "background":
            return Q(background=True)
        return Q(background=False, mode=Mode.STREAM if chosen == "stream" else Mode.JSON)


class InConversationFilter(ChoiceFilter):
    title, parameter_name = "in a conversation", "in_conversation"
    choices_of = (("yes", "Yes"), ("no", "No"))

    @override
    def condition_for(self, chosen: str) -> Q:
        return Q(conversation_id__isnull=chosen == "no")


class MinimumFilter(ChoiceFilter):
    """Lower bound of a numeric column."""

    column = ""

    @override
    def condition_for(self, chosen: str) -> Q:
        return Q(**{f"{self.column}__gte": int(chosen)})


class MinimumDurationFilter(MinimumFilter):
    """Lower bound of the total duration in milliseconds."""

    title, parameter_name, column = "latency", "least_ms", "duration_ms"
    choices_of = tuple(
        (str(seconds * 1000), f"{seconds} s or more" if seconds < 60 else f"{seconds // 60} min or more")
        for seconds in (1, 3, 10, 30, 60, 300, 1800)
    )


_TOKENS = tuple((str(count), f"{count:,} or more") for count in (1_000, 10_000, 50_000, 100_000, 500_000))


class MinimumInputFilter(MinimumFilter):
    title, parameter_name, column, choices_of = "input tokens", "least_input", "input_tokens", _TOKENS


class MinimumOutputFilter(MinimumFilter):
    title, parameter_name, column, choices_of = "output tokens", "least_output", "output_tokens", _TOKENS


class MinimumCostFilter(MinimumFilter):
    """Lower bound of the cost in US dollars."""

    title, parameter_name, column = "cost", "least_cost", "cost"
    choices_of = tuple((step, f"${step} or more") for step in ("0.001", "0.01", "0.1", "1", "10"))

    @override
    def condition_for(self, chosen: str) -> Q:
        return Q(cost__gte=Decimal(chosen))


class _ToolCallFilter(ExactValueFilter):
    """Responses that called a tool, found through the newest calls of that tool."""

    index_hint = IndexHint.TOOL

    @override
    def condition_for(self, value: str, span: TimeRange) -> Q:
        calls = ToolCall.objects.filter(**{self.column: value})
        if not everywhere(span.request):
            calls = calls.filter(team_id__in=teams_of(span.request))
        if span.since is not None:
            calls = calls.filter(started_at__gte=span.since)
        if span.until is not None:
            # A run that began at the end of the range may call the tool long after it.
            calls = calls.filter(started_at__lte=span.until + span.longest_run)
        return Q(pk__in=calls.order_by("-started_at").values("response_id")[:MAX_CALLS])


class ToolKindFilter(_ToolCallFilter):
    title, parameter_name, column = "tool type", "tool_type", "kind"


class ToolNameFilter(_ToolCallFilter):
    title, parameter_name, column = "tool name", "tool", "name"


PLAIN_FILTERS: tuple[type[ExactValueFilter | ChoiceFilter], ...] = (
    ModelFilter,
    ModeFilter,
    ErrorCodeFilter,
    ToolKindFilter,
    ToolNameFilter,
    InConversationFilter,
    ConversationIdFilter,
    ResponseEndUserFilter,
    ResponseMetadataFilter,
    MinimumDurationFilter,
    MinimumInputFilter,
    MinimumOutputFilter,
    MinimumCostFilter,
    RequestFilter,
)
"""Filters that do not belong to a model field, in the order of the sidebar."""


def _containment_is_leakproof() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT bool_and(proleakproof) FROM pg_proc WHERE proname = 'jsonb_contains'")
        return bool(cursor.fetchone()[0])
