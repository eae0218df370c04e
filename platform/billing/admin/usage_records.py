# mypy: allow-subclassing-any
"""Admin pages of usage records, one row per upstream call."""

from decimal import Decimal
from typing import Any

from django.contrib.admin import display, register
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from console.filters import IndexHint, RelatedFilter, exact
from console.logs import LogAdmin
from console.widgets import (
    TimeFilter,
    badge,
    column,
    copyable,
    count_column,
    duration,
    key_cell,
    time_column,
    tone,
    two_lines,
)
from tenants.console.permissions import TeamScoped
from tenants.console.tried_targets import tried_targets
from tenants.console.viewer import viewer_of
from tenants.models import OUTCOME_TONES, UsageRecord
from tenants.prices import NO_PRICE, amount, label, rounded_amount


@register(UsageRecord)
class UsageAdmin(LogAdmin, TeamScoped):
    """Usage records of upstream calls."""

    empty_text = "Each call of a model writes a usage record with its tokens and its cost."

    list_display = [
        "time", "caller", "subject", "served", "outcome_badge", "tokens_in", "tokens_out", "spent", "took",
    ]  # fmt: skip
    list_filter = [
        ("occurred_at", TimeFilter),
        ("team", RelatedFilter),
        ("api_key", RelatedFilter),
        exact("model", "model"),
        exact("outcome", "outcome"),
        exact("object_id", "response or completion ID", hint=IndexHint(rank=0)),
    ]
    list_prefetch = ("team", "api_key")
    ordering = ["-occurred_at", "-id"]
    fieldsets = [
        (
            None,
            {"fields": [("time", "took"), ("team", "key"), ("subject", "turn"), ("endpoint", "request_link"), "user"]},
        ),
        (
            "Model",
            {"fields": [("served", "outcome_badge"), ("upstream_id", "theirs"), "tier", "targets", "failed_request"]},
        ),
        ("Tokens", {"fields": [("input", "cached", "cache_written"), ("output", "reasoning")]}),
        ("Audio and images", {"fields": [("audio", "images"), ("seconds", "spoken")]}),
        ("Cost", {"fields": ["dollars", "applied_prices"]}),
    ]
    time = time_column("Time", "occurred_at")
    caller = column("Team and key", lambda row: two_lines(row.team.name, key_cell(row.api_key)))
    key = column("Key", lambda row: key_cell(row.api_key))
    request_link = column("Request ID", lambda row: copyable(row.request_id) if row.request_id else "–")
    user = column("End user", lambda row: row.end_user or "–")
    theirs = column(
        "Upstream's request ID", lambda row: copyable(row.upstream_request_id) if row.upstream_request_id else "–"
    )
    tier = column("Service tier", lambda row: row.service_tier or "–")
    served = column("Model", lambda row: two_lines(row.model, row.upstream_model + _failover(row)))
    outcome_badge = column("Outcome", lambda row: tone(OUTCOME_TONES, row.outcome))
    cached = count_column("Cached", "cached_tokens")
    cache_written = count_column("Cache writes", "cache_write_tokens")
    output = count_column("Output", "output_tokens")
    reasoning = count_column("Reasoning", "reasoning_tokens")
    seconds = column("Seconds of audio", lambda row: f"{row.audio_seconds:,.3f}".rstrip("0").rstrip("."))
    spoken = count_column("Characters spoken", "characters")
    spent = column("Cost", lambda row: _rounded(row.cost))
    dollars = column("Cost", lambda row: NO_PRICE if row.cost is None else amount(row.cost))
    audio = column("Audio tokens in and out", lambda row: f"{row.input_audio_tokens:,} / {row.output_audio_tokens:,}")
    images = column("Image tokens in and out", lambda row: f"{row.input_image_tokens:,} / {row.output_image_tokens:,}")
    took = column("Duration", lambda row: duration(row.duration_ms))

    @display(description="Targets")
    def targets(self, row: UsageRecord) -> str:
        line = tried_targets(
            row.failed_targets or (),
            upstream_id=row.upstream_id,
            upstream_model=row.upstream_model,
            has_failed=row.outcome == "failed",
        )
        return line or "–"

    def get_fieldsets(self, request: HttpRequest, obj: UsageRecord | None = None) -> Any:
        """Return the fields; the details of a failed request are for operators, as they have addresses."""
        fieldsets: Any = self.fieldsets
        if obj is not None and obj.failure and viewer_of(request).sees_every_team:
            return fieldsets
        return [
            (title, {"fields": [name for name in options["fields"] if name != "failed_request"]})
            for title, options in fieldsets
        ]

    @display(description="Failed request")
    def failed_request(self, row: UsageRecord) -> SafeString:
        known = row.failure or {}
        lines = [(str(known[name]),) for name in ("cause", "address", "error", "body") if known.get(name)]
        return format_html_join(mark_safe("<br>"), "{}", lines)

    @display(description="Prices applied")
    def applied_prices(self, row: UsageRecord) -> SafeString | str:
        lines = [
            (label(price), f"{Decimal(price['quantity']):,f}", amount(Decimal(price["cost"])))
            for price in row.prices or ()
        ]
        return format_html_join(mark_safe("<br>"), "{} × {} = {}", lines) or "–"

    @display(description="Object")
    def subject(self, row: UsageRecord) -> SafeString:
        # Other objects, such as chat completions, may have no page.
        is_response = row.object_id.startswith("resp_")
        url = reverse("admin:responses_response_change", args=[row.object_id]) if is_response else None
        return copyable(row.object_id, href=url)

    @display(description="Input")
    def tokens_in(self, row: UsageRecord) -> SafeString:
        written = f", {row.cache_write_tokens:,} written" if row.cache_write_tokens else ""
        return two_lines(self.input(row), f"{row.cached_tokens:,} cached{written}")

    @display(description="Output")
    def tokens_out(self, row: UsageRecord) -> SafeString:
        return two_lines(self.output(row), f"{row.reasoning_tokens:,} reasoning")

    @display(description="Input")
    def input(self, row: UsageRecord) -> SafeString | str:
        hint = "The upstream reported no usage, or the process died during the call."
        estimate = badge("estimated", "warning", hint) if row.estimated else ""
        return format_html("{} {}", f"{row.input_tokens:,}", estimate)


def _rounded(cost: Decimal | None) -> SafeString | str:
    """Return a cost with two digits, as in the list of responses, with all digits in a tooltip."""
    if cost is None:
        return NO_PRICE
    return format_html('<span title="{}">{}</span>', amount(cost), rounded_amount(cost))


def _failover(row: UsageRecord) -> str:
    is_other = any(failure["was_replaced"] for failure in row.failed_targets or ())
    return ", after another target" if is_other else ""
