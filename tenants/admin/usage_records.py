# mypy: allow-subclassing-any
"""Admin pages of usage records, one row per upstream call."""

from typing import Any

from django.contrib.admin import display, register
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import AutocompleteSelectFilter

from console.widgets import LogAdmin, TimeFilter, badge, copyable, duration, exact, tone, two_lines, when
from tenants.console.roles import TeamScoped
from tenants.models import UsageRecord

OUTCOME_TONES = {
    "stop": "success",
    "length": "warning",
    "content_filter": "warning",
    "discarded": "warning",
    "failed": "danger",
}


@register(UsageRecord)
class UsageAdmin(LogAdmin, TeamScoped):
    """Usage records of upstream calls."""

    list_display = [
        "time", "team_name", "key", "subject", "served", "outcome_badge", "tokens_in", "tokens_out", "took",
    ]  # fmt: skip
    list_filter = [
        ("occurred_at", TimeFilter),
        ("team", AutocompleteSelectFilter),
        ("api_key", AutocompleteSelectFilter),
        exact("model", "model"),
        exact("outcome", "outcome"),
        exact("object_id", "response or completion ID"),
    ]
    list_prefetch = ("team", "api_key")
    ordering = ["-occurred_at", "-id"]
    sortable_by = ()
    fieldsets = [
        (None, {"fields": [("time", "took"), ("team", "key"), ("subject", "turn"), ("endpoint", "request_link")]}),
        ("Model", {"fields": [("served", "outcome_badge"), "upstream_id"]}),
        ("Tokens", {"fields": [("input", "cached", "cache_written"), ("output", "reasoning")]}),
    ]
    readonly_fields = [
        "time", "took", "key", "subject", "request_link", "served", "outcome_badge", "input", "cached",
        "cache_written", "output", "reasoning",
    ]  # fmt: skip

    @display(description="Time")
    def time(self, row: UsageRecord) -> Any:
        return when(row.occurred_at)

    @display(description="Team")
    def team_name(self, row: UsageRecord) -> str:
        return row.team.name

    @display(description="Key")
    def key(self, row: UsageRecord) -> SafeString | str:
        key = row.api_key
        return format_html('<code class="c-code">{}…{}</code>', key.prefix, key.last_four) if key else "–"

    @display(description="Object")
    def subject(self, row: UsageRecord) -> SafeString:
        # Other objects, such as chat completions, may have no page.
        is_response = row.object_id.startswith("resp_")
        url = reverse("admin:responses_response_change", args=[row.object_id]) if is_response else None
        return copyable(row.object_id, href=url)

    @display(description="Request ID")
    def request_link(self, row: UsageRecord) -> SafeString | str:
        return copyable(row.request_id) if row.request_id else "–"

    @display(description="Model")
    def served(self, row: UsageRecord) -> SafeString:
        return two_lines(row.model, row.upstream_model)

    @display(description="Outcome")
    def outcome_badge(self, row: UsageRecord) -> SafeString:
        return tone(OUTCOME_TONES, row.outcome)

    @display(description="Input")
    def tokens_in(self, row: UsageRecord) -> SafeString:
        written = f", {row.cache_write_tokens:,} written" if row.cache_write_tokens else ""
        return two_lines(self.input(row), f"{row.cached_tokens:,} cached{written}")

    @display(description="Output")
    def tokens_out(self, row: UsageRecord) -> SafeString:
        return two_lines(self.output(row), f"{row.reasoning_tokens:,} reasoning")

    @display(description="Input")
    def input(self, row: UsageRecord) -> SafeString | str:
        estimate = badge("estimated", "warning", "The upstream reported no usage.") if row.estimated else ""
        return format_html("{} {}", f"{row.input_tokens:,}", estimate)

    @display(description="Cached")
    def cached(self, row: UsageRecord) -> str:
        return f"{row.cached_tokens:,}"

    @display(description="Cache writes")
    def cache_written(self, row: UsageRecord) -> str:
        return f"{row.cache_write_tokens:,}"

    @display(description="Output")
    def output(self, row: UsageRecord) -> str:
        return f"{row.output_tokens:,}"

    @display(description="Reasoning")
    def reasoning(self, row: UsageRecord) -> str:
        return f"{row.reasoning_tokens:,}"

    @display(description="Duration")
    def took(self, row: UsageRecord) -> str:
        return duration(row.duration_ms)
