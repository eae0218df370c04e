# mypy: allow-subclassing-any
"""Admin of responses: the filters, columns, actions and pages of the list, and the page of a response.

The list reads its rows by a bounded scan (`console.scans`). The pages of a response are in `responses.admin.response`.
"""

import re
from collections.abc import Sequence
from datetime import UTC, timedelta
from decimal import Decimal
from typing import Any

from django.contrib.admin import register
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.views.decorators.http import require_safe
from typing_extensions import override

from console.filters import (
    ChoiceFilter,
    ChoicesFilter,
    ConditionFilter,
    IndexHint,
    RelatedFilter,
    TextConditionFilter,
    choice_filter,
    exact,
    text_filter,
)
from console.scans import ScannedChangeList, plan_scan
from console.tables import Cell
from console.widgets import TimeFilter, ago, duration
from core.clock import now
from responses.admin import cells, export
from responses.admin.outcome_histogram import outcome_histogram
from responses.admin.response import chain, documents, events, tabs, timeline
from responses.admin.response.actions import ResponseActions, compare_selected
from responses.admin.response.summary import summary
from responses.models import HAS_METADATA, RUNNING, UNSUCCESSFUL, Mode, Response, Status, ToolCall, of_request
from tenants.console.content_access import HIDDEN, audit_read, audit_team_reads, with_readable
from tenants.console.list_columns import ChosenColumns, ListColumn
from tenants.console.row_pages import RowPages
from tenants.console.viewer import viewer_of

# -- filters -----------------------------------------------------------------------------------------------------------

_MAX_CALLS = 5_000
"""Maximum number of tool calls, newest first, that a filter by tool considers."""
_LONGEST_RUN = timedelta(days=1)
"""A filter by tool looks for the tool calls of a response up to this time after its creation."""
_RUNNING, _UNSUCCESSFUL = IndexHint(rank=0), IndexHint(rank=8, is_by_time=True)
# Not ordered by time.
_METADATA = IndexHint(rank=5, is_for_rare_values=True)
_TOOL = IndexHint(rank=6)


class TeamFilter(ConditionFilter, RelatedFilter):
    """Responses of a team."""

    lookup = "team_id"
    # Every index is used with the team, so that only rows of the team count towards the scan limit.
    index = IndexHint(rank=10, is_by_time=True, joins_every_lookup=True)


class ApiKeyFilter(ConditionFilter, RelatedFilter):
    """Responses that were created with an API key."""

    lookup, index = "api_key_id", IndexHint(rank=7, is_by_time=True)


class StatusFilter(ConditionFilter, ChoicesFilter):
    """Responses with one of the chosen statuses."""

    lookup = "status__in"

    @override
    def hint(self) -> IndexHint | None:
        # There are partial indexes for running and for unsuccessful responses; completed ones are too frequent to need
        # one.
        chosen = set(self.value())
        is_running, is_unsuccessful = chosen.issubset(RUNNING), chosen.issubset(UNSUCCESSFUL)
        return _RUNNING if is_running else _UNSUCCESSFUL if is_unsuccessful else None


class WaitingFilter(ChoiceFilter):
    """Responses that wait for decisions of people. In the API, they are in progress."""

    title, parameter_name, index = "waits for", "waits", _RUNNING
    options = (("approval", "Approval"),)

    @staticmethod
    @override
    def condition_for(chosen: str) -> Q:
        return Q(status=Status.IN_PROGRESS, waits_until__isnull=False)


class ToolFilter(TextConditionFilter):
    """Responses that called a tool, found through the newest calls of the tool. `column` of the calls has its name."""

    index = _TOOL
    column: str

    @override
    def condition(self, span: TimeFilter | None) -> Q | None:
        if not self.text or span is None:
            return None
        calls = ToolCall.objects.filter(**{self.column: self.text})
        teams = viewer_of(span.request).team_ids()
        if teams is not None:
            calls = calls.filter(team_id__in=teams)
        if span.since is not None:
            calls = calls.filter(started_at__gte=span.since)
        if span.until is not None:
            # A run that began at the end of the range may call the tool long after the range.
            calls = calls.filter(started_at__lte=span.until + _LONGEST_RUN)
        return Q(pk__in=calls.order_by("-started_at").values("response_id")[:_MAX_CALLS])


class ToolTypeFilter(ToolFilter):
    """Responses that called a tool of a type."""

    title, parameter_name, column = "tool type", "tool_type", "kind"


class ToolNameFilter(ToolFilter):
    """Responses that called a tool with a name."""

    title, parameter_name, column = "tool name", "tool", "name"


class MetadataFilter(TextConditionFilter):
    """Responses with a metadata pair (`key=value`) or with a metadata key."""

    title, parameter_name = "metadata (key=value)", "metadata"

    @override
    def hint(self) -> IndexHint | None:
        # Under row-level security PostgreSQL uses the index only if the containment operator is marked leakproof. Only
        # a superuser can do that (`launcher.postgres`).
        with connection.cursor() as cursor:
            cursor.execute("SELECT bool_and(proleakproof) FROM pg_proc WHERE proname = 'jsonb_contains'")
            (is_leakproof,) = cursor.fetchone()
        return _METADATA if is_leakproof else None

    @override
    def condition_for(self, value: str) -> Q:
        key, equals, expected = value.partition("=")
        return HAS_METADATA & (
            Q(metadata__contains={key.strip(): expected.strip()}) if equals else Q(metadata__has_key=value)
        )


_MODES = {
    "sync": Q(background=False, mode=Mode.JSON),
    "stream": Q(background=False, mode=Mode.STREAM),
    "background": Q(background=True),
}
_SECONDS = (1, 3, 10, 30, 60, 300, 1800)
_DURATIONS = [(str(s * 1000), f"{s} s or more" if s < 60 else f"{s // 60} min or more") for s in _SECONDS]
_TOKENS = [(str(count), f"{count:,} or more") for count in (1_000, 10_000, 50_000, 100_000, 500_000)]
_COSTS = [(step, f"${step} or more") for step in ("0.001", "0.01", "0.1", "1", "10")]

FILTERS = [
    ("created_at", TimeFilter),
    ("status", StatusFilter),
    WaitingFilter,
    ("team", TeamFilter),
    ("api_key", ApiKeyFilter),
    exact("model", "model", hint=IndexHint(rank=9, is_by_time=True)),
    choice_filter("mode", "mode", [(name, name.capitalize()) for name in _MODES], lambda chosen: _MODES[chosen]),
    exact("error_code", "error code", hint=IndexHint(rank=3)),
    ToolTypeFilter,
    ToolNameFilter,
    choice_filter(
        "in_conversation",
        "in a conversation",
        [("yes", "Yes"), ("no", "No")],
        lambda chosen: Q(conversation_id__isnull=chosen == "no"),
    ),
    exact("conversation", "conversation ID", lookup="conversation_id", hint=IndexHint(rank=2)),
    exact("end_user", "end user", hint=IndexHint(rank=4)),
    MetadataFilter,
    choice_filter("least_ms", "latency", _DURATIONS, lambda chosen: Q(duration_ms__gte=int(chosen))),
    choice_filter("least_input", "input tokens", _TOKENS, lambda chosen: Q(input_tokens__gte=int(chosen))),
    choice_filter("least_output", "output tokens", _TOKENS, lambda chosen: Q(output_tokens__gte=int(chosen))),
    choice_filter("least_cost", "cost", _COSTS, lambda chosen: Q(cost__gte=Decimal(chosen))),
    text_filter("request", "request ID", of_request, hint=IndexHint(rank=1)),
]

# -- columns -----------------------------------------------------------------------------------------------------------
# A page shows fifty rows, so the cells are simple: they use classes of list.css instead of the theme's, and no widgets.

# Longer names do not fit into their column in most windows, so they get a tooltip.
_SHORT = 14


def _two(first: Cell, second: Cell) -> Cell:
    return format_html("{}<small>{}</small>", first, second) if second else first


def _name(text: str) -> Cell:
    title = format_html(' title="{}"', text) if len(text) > _SHORT else ""
    return format_html('<span dir="auto"{}>{}</span>', title, text)


def _time(row: Response) -> Cell:
    at, today = row.created_at.astimezone(UTC), now()
    # Seconds are useful only for recent responses, and there is no room for both seconds and the day.
    form = "%H:%M:%S" if at.date() == today.date() else "%d %b %H:%M" if at.year == today.year else "%d %b %Y"
    whole, shown = f"{at:%Y-%m-%d %H:%M:%S} UTC", f"{at:{form}}"
    link = format_html('<a href="{}" title="{}">{}</a>', cells.url(row.pk), whole, shown)
    return _two(link, ago(at))


def _status(row: Response) -> Cell:
    return _two(cells.status(row), cells.mode(row))


def _text(row: Any, text: str) -> Cell:
    """Return a preview, masked unless the row is `readable`."""
    # An empty preview stays empty: a mask would suggest that there is text.
    return format_html('<span dir="auto">{}</span>', cells.preview(text) if row.readable or not text else HIDDEN)


def _output(row: Response) -> Cell:
    preview = _text(row, row.output_preview) if row.stored else "not stored"
    # The reason comes first: the preview may be long and is cut.
    reason = cells.error_or_reason(row)
    if not reason:
        return preview
    return format_html('<b class="c-tag {}">{}</b> {}', "danger" if row.error_code else "warning", reason, preview)


def _team(row: Response) -> Cell:
    return _two(_name(row.team.name), f"{row.api_key.prefix}…{row.api_key.last_four}")


def _model(row: Response) -> Cell:
    # Routes may map a model name to another name at the upstream.
    is_same = row.upstream_model == row.model
    return _two(_name(row.model), "" if is_same else _name(f"→ {row.upstream_model}"))


def _tokens(row: Response) -> Cell:
    cached = f"{row.cached_tokens:,} cached" if row.cached_tokens else ""
    return _two(f"{row.input_tokens:,} / {row.output_tokens:,}", cached)


COLUMNS: Sequence[ListColumn[Response]] = (
    ListColumn("Time", _time, name="time"),
    ListColumn("Status", _status, name="status"),
    ListColumn("Input", lambda row: _text(row, row.input_preview), name="input"),
    ListColumn("Output", _output, name="output"),
    ListColumn("Team", _team, name="team"),
    ListColumn("Model", _model, name="model"),
    ListColumn("Tokens", _tokens, name="tokens"),
    ListColumn("Cost", cells.cost, name="cost"),
    ListColumn("Duration", lambda row: duration(row.duration_ms), name="duration"),
    ListColumn("First token", lambda row: duration(row.first_token_ms), name="ttft"),
    ListColumn("ID", lambda row: row.pk, name="id", is_default=False),
    ListColumn("Conversation", cells.conversation, name="conversation", is_default=False),
    ListColumn("Turns", lambda row: f"{row.turns:,}", name="turns", is_default=False),
    ListColumn("Tool calls", cells.tools, name="tools", is_default=False),
    ListColumn("Reasoning tokens", lambda row: f"{row.reasoning_tokens:,}", name="reasoning", is_default=False),
    ListColumn("End user", lambda row: _name(row.end_user or "–"), name="user", is_default=False),
    ListColumn("Request ID", lambda row: row.request_id or "–", name="request", is_default=False),
)

# -- the list and the page of a response -------------------------------------------------------------------------------


def _compact(page: TemplateResponse) -> None:
    # Without this, a third of the page would be indentation from the theme's templates.
    page.content = re.sub(rb">\s+<", b">\n<", page.content)


@register(Response)
class ResponseAdmin(ChosenColumns, ResponseActions, RowPages):
    """Read-only list and pages of the responses of the user's teams."""

    empty_text = "Responses of the API appear here, newest first. Create one with an API key, or in the playground."

    list_filter = FILTERS
    list_columns = COLUMNS
    list_columns_name = "responses"
    list_prefetch = ("team", "api_key")
    # The list shows previews only. The request bodies may be large, so they are not fetched.
    list_defer = ("parameters", "options", "metadata", "spans")
    list_before_template = "admin/responses/response/above.html"
    search_fields = ["id"]
    search_help_text = "Exact ID: resp_… (also finds responses that continue it) or req_…"
    actions_detail = ["compare", "cancel", "retry", "delete"]
    # Django's own action is called `delete_selected`.
    selection_actions = {"cancel_selected": "cancel", "retry_selected": "retry", "erase_selected": "delete"}
    row_views = (
        ("summary", "summary/", summary),
        ("span", "spans/<str:key>/", timeline.span_details),
        ("log", "log/", events.event_log_json),
        ("chain", "chain/", chain.chain_view),
        ("document", "documents/<str:name>/", documents.document_view),
        ("snippet", "snippets/<str:name>/", documents.snippet),
    )

    # -- the list ------------------------------------------------------------------------------------------------------

    @override
    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ScannedChangeList]:
        return ScannedChangeList

    @override
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return with_readable(viewer_of(request), super().get_queryset(request))

    @override
    def search_condition(self, request: HttpRequest, term: str) -> Q:
        return Q(pk=term) | Q(previous_response_id=term) if term.startswith("resp_") else of_request(term)

    @override
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        viewer = viewer_of(request)
        context = {"may_export": viewer.may(export.EXPORTERS), **(extra_context or {})}
        page: Any = super().changelist_view(request, context)
        if "table" in (getattr(page, "context_data", None) or {}):
            audit_team_reads(viewer, {row.team_id for row in page.context_data["table"].rows if row.readable})
            page.add_post_render_callback(_compact)
        return page  # type: ignore[no-any-return]  # Unfold has no types

    @override
    def get_urls(self) -> list[URLPattern]:
        site = self.admin_site
        return [
            path("histogram/", site.admin_view(self.histogram_view), name="responses_response_histogram"),
            path("export/", site.admin_view(self.export_view), name="responses_response_export"),
            *super().get_urls(),
        ]

    def histogram_view(self, request: HttpRequest) -> HttpResponse:
        """Render the histogram, which the page loads after the list."""
        rows: Any = self.get_changelist_instance(request)
        context = {"histogram": outcome_histogram(rows)}
        return TemplateResponse(request, "admin/responses/response/histogram.html", context)

    def export_view(self, request: HttpRequest) -> StreamingHttpResponse:
        """Export the filtered responses as JSON Lines, newest first."""
        if not viewer_of(request).may(export.EXPORTERS):
            raise PermissionDenied
        rows: Any = self.get_changelist_instance(request)
        return export.export_responses(request, rows.plan)

    def export_selected(self, request: HttpRequest, queryset: QuerySet[Response]) -> StreamingHttpResponse:
        """Export the selected responses as JSON Lines."""
        return export.export_responses(request, plan_scan(queryset, [], is_bounded=False))

    @override
    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        exports = {"export_selected": (ResponseAdmin.export_selected, "export_selected", "Export as JSONL")}
        may_export = viewer_of(request).may(export.EXPORTERS)
        return {
            "compare_selected": (compare_selected, "compare_selected", "Compare"),
            **(exports if may_export else {}),
            **super().get_actions(request),
        }

    # -- the page of a response ----------------------------------------------------------------------------------------

    @override
    @method_decorator(require_safe)
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Render the page with the tab named by `?tab=`, or only the tab for an htmx request."""
        viewer, response = viewer_of(request), self.get_or_404(request, object_id)
        shown = [tab for tab in tabs.TABS if viewer.may(tab.viewers, response)]
        tab = next((tab for tab in shown if tab.name == request.GET.get("tab")), shown[0])
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
            tabs=shown,
            actions=[
                (action.method.row_action, reverse(f"admin:{action.action_name}", args=[response.pk]))
                for action in self.offered_actions(request, response)
            ],
            **tabs.header(request, viewer, response),
            **panel,
        )
