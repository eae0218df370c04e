# mypy: allow-subclassing-any
"""Tool calls: list, page of a call, and charts of volume, errors and durations."""

from datetime import datetime, timedelta
from typing import Any

from django.contrib.admin import display, register
from django.contrib.admin.views.main import ChangeList
from django.db.models import DurationField, ExpressionWrapper, F, Func, IntegerField, Q, QuerySet, Value
from django.db.models.functions import Coalesce, Length, Substr
from django.http import HttpRequest, HttpResponse, HttpResponseForbidden
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe
from typing_extensions import override

from billing.admin.usage import links
from console import charts
from console.charts import ChartPoint, Series
from console.filters import IndexHint, RelatedFilter, TextConditionFilter, exact, text_filter
from console.logs import LogAdmin
from console.widgets import (
    SHOWN_CHARACTERS,
    Shown,
    TimeFilter,
    badge,
    changelist_url,
    column,
    copyable,
    duration,
    size,
    state_words,
    time_column,
    tone,
    two_lines,
)
from core.clock import now
from core.periods import end_of_hour
from engine.calls.effects import effect_id
from responses.admin import cells
from responses.models import NOT_TIMED, ToolCall
from responses.rollups import queries
from responses.rollups.histograms import quantile
from responses.rollups.queries import RollupQuery, RollupRow
from responses.rollups.sources import TOOLS
from tenants.console.content_access import HIDDEN, read_allowed, with_readable
from tenants.console.permissions import TeamScoped
from tenants.console.viewer import viewer_of

_STATUS_TONES = {
    "completed": "success",
    "approved": "success",
    "denied": "warning",
    "failed": "danger",
    "refused": "danger",
    "abandoned": "warning",
    "outcome_unknown": "warning",
    "asked": "warning",
    "awaiting_decision": "warning",
    "pending": "info",
    "in_progress": "info",
    "returned": "info",
}
_MAX_TOOLS = 25
_SORTS = {"calls": "Calls", "failed": "Errors", "p50": "p50", "p95": "p95", "max": "Max"}
_MAX_ERROR = 160
_HOUR = timedelta(hours=1)
# Longer ranges are charted by day, so a chart has at most 72 bars by the hour.
_MAX_HOURLY = timedelta(days=3)
_BODIES = ("arguments", "output", "error")
_CHART_FILTERS = {"team__id__exact": "team_id", "kind": "kind", "name": "name", "status": "status"}


def _lasted(milliseconds: str) -> Q | None:
    """Return the condition for calls that took at least this many milliseconds; None if the text is not a number."""
    if not (milliseconds.isascii() and milliseconds.isdigit() and len(milliseconds) <= 9):
        return None
    waited = ExpressionWrapper(
        Coalesce(F("waited_ms"), 0) * Value(timedelta(milliseconds=1)), output_field=DurationField()
    )
    least = F("started_at") + timedelta(milliseconds=int(milliseconds)) + waited
    return Q(ended_at__gte=least) & ~Q(status__in=NOT_TIMED)


class KindFilter(TextConditionFilter):
    """Calls of tools of a kind."""

    title, parameter_name = "kind", "kind"

    @override
    def condition_for(self, value: str) -> Q:
        return Q(kind=value)

    @override
    def hint(self) -> IndexHint | None:
        # The index leaves out the calls of client tools, which are frequent.
        return None if self.text == "function" else IndexHint(rank=0)


def _bytes(field: str) -> Func:
    # PostgreSQL reads the length from the header of a value, without fetching a text that is stored out of line.
    return Func(F(field), function="octet_length", output_field=IntegerField())


@register(ToolCall)
class ToolCallAdmin(LogAdmin, TeamScoped):
    """Read-only list of tool calls."""

    empty_text = "Calls of hosted tools and MCP servers appear here once a response makes one."

    list_display = ["time", "tool", "team_name", "response_link", "state", "took", "sizes", "failure"]
    list_prefetch = ("team",)
    list_filter = [
        ("started_at", TimeFilter),
        ("team", RelatedFilter),
        exact("name", "tool", hint=IndexHint(rank=0)),
        KindFilter,
        exact("status", "status"),
        text_filter("min_ms", "minimum duration (ms)", _lasted),
    ]
    search_fields = ["call_id"]
    search_help_text = "Exact ID: call_…, or resp_… for all calls of a response"
    ordering = ["-started_at", "-id"]
    list_before_template = "admin/responses/toolcall/above.html"
    # Arguments and outputs may have megabytes, and the list shows their sizes only.
    list_defer = ("arguments", "output", "error", "result", "if_ended")
    list_annotations = {
        "bytes_in": _bytes("arguments"),
        "bytes_out": _bytes("output"),
        "error_preview": Substr("error", 1, _MAX_ERROR),
    }
    time = time_column("Time", "started_at")
    tool = column("Tool", lambda call: two_lines(call.name, state_words(call.kind)))
    team_name = column("Team", lambda call: call.team.name)
    state = column(
        "Status",
        lambda call: two_lines(tone(_STATUS_TONES, call.status), f"attempt {call.attempt}" if call.attempt > 1 else ""),
    )
    # Client tools may never return a result, and calls in progress have no end yet.
    took = column("Duration", lambda call: duration(call.duration_ms))
    sizes = column("Size (in / out)", lambda call: two_lines(*_sizes(call)))
    response_link = column("Response", lambda call: copyable(call.response_id, href=cells.url(call.response_id)))

    @override
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return with_readable(viewer_of(request), super().get_queryset(request))

    @override
    def search_condition(self, request: HttpRequest, term: str) -> Q:
        """Search by the id of a call or of a response."""
        if term.startswith("resp_"):
            return Q(response_id=term)
        # The index of call ids begins with the team, so the teams are listed even for staff.
        return Q(team_id__in=list(viewer_of(request).teams().values_list("pk", flat=True)), call_id=term)

    @override
    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        changelist: Any = super().get_changelist_instance(request)
        changelist.charts_url = f"{reverse('admin:responses_toolcall_charts')}{changelist.get_query_string()}"
        return changelist  # type: ignore[no-any-return]  # Unfold has no types

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.charts_view)
        return [path("charts/", view, name="responses_toolcall_charts"), *super().get_urls()]

    # -- above the list ------------------------------------------------------------------------------------------------

    def charts_view(self, request: HttpRequest) -> HttpResponse:
        """Render the charts for the filters of the list, loaded after the page. Read from the hourly sums."""
        if not self.has_view_permission(request):
            return HttpResponseForbidden()
        span = TimeFilter(
            ToolCall._meta.get_field("started_at"),  # noqa: SLF001 - Django's documented API for models
            request,
            {key: request.GET.getlist(key) for key in request.GET},
            ToolCall,
            self,
            "started_at",
        )
        # The sums are hourly, so the range is extended to whole hours.
        current_time = now()
        since = end_of_hour(span.since or current_time - timedelta(days=1)) - _HOUR
        until = end_of_hour(span.until or current_time)
        filters = {
            dimension: value.replace("\0", "")
            for name, dimension in _CHART_FILTERS.items()
            if (value := request.GET.get(name, "").strip())
        }
        teams = viewer_of(request).team_ids()

        def fetch(by: list[str], bucket: str = "") -> list[RollupRow]:
            return queries.fetch_rows(
                RollupQuery(
                    source=TOOLS,
                    since=since,
                    until=until,
                    measures=["calls", "failed", "duration"],
                    by=by,
                    bucket=bucket,
                    teams=teams,
                    only={name: [value] for name, value in filters.items()},
                )
            )

        sums = fetch(["kind", "name"])
        sort = request.GET.get("sort", "")
        sort = sort if sort in _SORTS else "calls"
        is_hourly = until - since <= _MAX_HOURLY
        rows = {row.bucket: row.values for row in fetch([], "hour" if is_hourly else "day")}
        # Days of the sums begin at midnight UTC.
        start, step = (since, _HOUR) if is_hourly else (since.replace(hour=0), timedelta(days=1))
        points, p95_points = [], []
        while start < until:
            values = rows.get(start)
            label = f"{start:%H:%M}" if until - since <= 25 * _HOUR else f"{start:%d %b}"
            url = links.rows_of("tools", since=max(start, since), until=min(start + step, until), **filters)
            point = {"name": f"{start:%d %b %H:%M}" if is_hourly else f"{start:%d %b}", "label": label, "url": url}
            counts = (values["calls"] - values["failed"], values["failed"]) if values else (0, 0)
            points.append(ChartPoint(values=counts, **point))
            p95_points.append(ChartPoint(values=(quantile(values["duration"], 0.95) if values else None,), **point))
            start += step
        outcomes = [Series(name="Not failed", tone="good"), Series(name="Failed", tone="bad")]
        p95 = [Series(name="p95", tone="s0")]
        context = {
            "calls": charts.stacked(points, outcomes, title="Tool calls"),
            "durations": charts.lines(
                p95_points, p95, title="Tool call duration p95", format_value=charts.milliseconds
            ),
            "tools": _tool_rows(since, until, sums, sort=sort),
            "further": max(0, len(sums) - _MAX_TOOLS),
            "columns": [(title, _sort_url(request, name), name == sort) for name, title in _SORTS.items()],
        }
        return TemplateResponse(request, "admin/responses/toolcall/charts.html", context)

    # -- one call ------------------------------------------------------------------------------------------------------

    @override
    @method_decorator(require_safe)
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Render a call; arguments and output are shown to users who may read the team's content."""
        call = self.get_or_404(request, object_id)
        readable = read_allowed(viewer_of(request), call)
        is_hosted = call.kind != "function"
        return self.render(
            request,
            "admin/responses/toolcall/detail.html",
            call.name,
            original=call,
            state=self.state(call),
            response_link=self.response_link(call),
            call_id=copyable(call.call_id),
            effect_id=copyable(effect_id(call.response_id, call.turn, call.call_id)) if is_hosted else "",
            took=self.took(call),
            sizes=_sizes(call),
            bodies=_bodies(call) if readable else [],
            hidden_team="" if readable else call.team_id,
            response_calls_url=changelist_url("responses_toolcall", q=call.response_id),
        )

    # -- columns -------------------------------------------------------------------------------------------------------

    @display(description="Error")
    def failure(self, call: Any) -> SafeString | str:
        if not call.error_preview:
            return "–"
        error_preview = call.error_preview if call.readable else HIDDEN
        return format_html('<span class="c-error" title="{}">{}</span>', error_preview, error_preview)


def _sizes(call: Any) -> tuple[str, str]:
    return size(call.bytes_in), "–" if call.bytes_out is None else size(call.bytes_out)


def _bodies(call: ToolCall) -> list[dict[str, Any]]:
    """Return the beginnings of the texts of a call, with the URL that loads the rest."""
    beginnings: dict[str, Any] = {f"{name}_text": Substr(name, 1, SHOWN_CHARACTERS) for name in _BODIES}
    sizes = {f"{name}_size": Length(name) for name in _BODIES}
    row: Any = ToolCall.objects.filter(pk=call.pk).values(**beginnings, **sizes).get()
    return [
        {
            "title": name.capitalize(),
            "shown": Shown(row[f"{name}_text"], max(0, row[f"{name}_size"] - SHOWN_CHARACTERS)),
            "url": reverse("console:call_text", args=[call.pk, name]),
        }
        for name in _BODIES
        if row[f"{name}_text"]
    ]


def _sort_url(request: HttpRequest, name: str) -> str:
    query = request.GET.copy()
    query["sort"] = name
    return f"{reverse('admin:responses_toolcall_charts')}?{query.urlencode()}"


def _tool_rows(since: datetime, until: datetime, sums: list[RollupRow], *, sort: str) -> list[dict[str, Any]]:
    """Return the tools with the largest values of a column, largest first."""
    measured = []
    for row in sums:
        counts = row.values["duration"]
        figures = {
            "calls": row.values["calls"],
            "failed": row.values["failed"],
            "p50": quantile(counts, 0.5),
            "p95": quantile(counts, 0.95),
            # The upper bound of the slowest call's bucket.
            "max": quantile(counts, 1.0),
        }
        measured.append((row, figures))
    measured.sort(key=lambda pair: (-(pair[1][sort] or 0), pair[0].key))
    max_calls = max((row.values["calls"] for row in sums), default=0)
    return [
        {
            "name": row.key[1],
            "kind": badge(row.key[0]),
            "url": links.rows_of("tools", since=since, until=until, kind=row.key[0], name=row.key[1]),
            "calls": f"{figures['calls']:,}",
            "share": round(100 * row.values["calls"] / max_calls, 1),
            "failed": f"{100 * row.values['failed'] / row.values['calls']:.1f} %",
            "is_bad": bool(row.values["failed"]),
            **{name: duration(figures[name]) for name in ("p50", "p95", "max")},
        }
        for row, figures in measured[:_MAX_TOOLS]
    ]
