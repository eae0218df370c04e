# mypy: allow-subclassing-any
"""The audit log: who did what to which object, from where; found, exported, and shown to be what was written."""

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Any

import orjson
from django.contrib.admin import display, register
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path, reverse
from django.utils.safestring import SafeString
from typing_extensions import override
from unfold.contrib.filters.admin import AutocompleteSelectFilter, DropdownFilter

from console.widgets import LogAdmin, TimeFilter, badge, copyable, exact, json_block, two_lines, when
from kernel.clock import now
from tenants import audit_seals
from tenants.audit import audit
from tenants.console.audited_admin import actor
from tenants.console.roles import STAFF, TeamScoped, everywhere, teams_of
from tenants.models import AuditEvent, AuditSeal, Role

MOST_EXPORTED = 50_000
_MOST_FILTERS, _MOST_AGENT = 500, 40
_COLUMNS = (
    "occurred_at", "actor", "action", "target", "team_id", "address", "agent", "request_id", "before", "after",
)  # fmt: skip
_TONES = {
    "created": "success",
    "added": "success",
    "started": "success",
    "revoked": "danger",
    "deleted": "danger",
    "removed": "danger",
    "refused": "danger",
    "revealed": "warning",
    "viewed": "warning",
    "searched": "warning",
}
_AREAS = (
    ("api_key.", "API keys"),
    ("team.", "Teams"),
    ("membership.", "Members"),
    ("user.", "Users"),
    ("session.", "Signing in and out"),
    ("second_factor.", "Second factors"),
    ("content.", "Reading of content"),
    ("response.", "Responses"),
    ("conversation.", "Conversations"),
    ("upstream.", "Upstreams"),
    ("model.", "Models"),
    ("webhook", "Webhooks"),
    ("guardrail", "Guardrails"),
)


class AreaFilter(DropdownFilter):
    """What the actions are about, by how they begin."""

    title = "area"
    parameter_name = "area"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return _AREAS

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        area = self.value()
        return queryset.filter(action__startswith=area) if area else queryset


@register(AuditEvent)
class AuditAdmin(LogAdmin, TeamScoped):
    """Who did what. Staff, team leads and auditors read it."""

    viewers = STAFF | {Role.TEAM_LEAD, Role.AUDITOR}
    list_display = ["time", "who", "what", "target_id", "team_name", "origin", "request_link"]
    list_filter = [
        ("occurred_at", TimeFilter),
        ("team", AutocompleteSelectFilter),
        AreaFilter,
        exact("action", "action"),
        exact("actor", "actor"),
        exact("target", "target"),
        exact("address", "address"),
        exact("request_id", "request id"),
    ]
    list_prefetch = ("team",)
    ordering = ["-id"]
    sortable_by = ()
    list_before_template = "admin/tenants/auditevent/before.html"
    fieldsets = [
        (None, {"fields": [("time", "team"), ("who", "what"), ("target_id", "request_link"), ("address", "agent")]}),
        ("Change", {"fields": ["old", "new"]}),
        ("Seal", {"fields": ["seal"]}),
    ]
    readonly_fields = [
        "time", "team", "who", "what", "target_id", "request_link", "address", "agent", "old", "new", "seal",
    ]  # fmt: skip

    @override
    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        changelist: Any = super().get_changelist_instance(request)
        query = changelist.get_query_string(remove=["p"])
        page = reverse("admin:tenants_auditevent_export")
        changelist.exports = [(kind.upper(), f"{page}{query}&format={kind}") for kind in _WRITERS]
        changelist.seal = AuditSeal.objects.order_by("-pk").first()
        return changelist  # type: ignore[no-any-return]  # the template's own attributes

    # -- exports -------------------------------------------------------------------------------------------------------

    def get_urls(self) -> list[URLPattern]:
        export = self.admin_site.admin_view(self.export_view)
        return [path("export/", export, name="tenants_auditevent_export"), *super().get_urls()]

    def export_view(self, request: HttpRequest) -> HttpResponseBase:
        """What the list shows, as a file; noted in the log itself."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        query = request.GET.copy()
        kind = query.pop("format", ["jsonl"])[-1]
        request.GET = query  # type: ignore[assignment]  # the change list refuses what it does not know
        writer = _WRITERS.get(kind)
        if writer is None:
            raise Http404
        try:
            rows = self.get_changelist_instance(request).queryset[:MOST_EXPORTED]
        except IncorrectLookupParameters as unknown:
            raise Http404 from unknown
        lines = list(rows.values_list(*_COLUMNS))
        audit(
            team_id=None if everywhere(request) else next(iter(teams_of(request)), None),
            actor=actor(request),
            action="audit_log.exported",
            target="audit_log",
            after={"lines": len(lines), "filters": query.urlencode()[:_MOST_FILTERS]},
        )
        name = f"audit-log-{now():%Y%m%d-%H%M%S}.{kind}"
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
        return StreamingHttpResponse(writer(lines), content_type=f"text/{kind}; charset=utf-8", headers=headers)

    # -- columns -------------------------------------------------------------------------------------------------------

    @display(description="Time")
    def time(self, event: AuditEvent) -> Any:
        return when(event.occurred_at)

    @display(description="Team")
    def team_name(self, event: AuditEvent) -> str:
        return event.team.name if event.team else "–"

    @display(description="Actor")
    def who(self, event: AuditEvent) -> str:
        return event.actor

    @display(description="Action")
    def what(self, event: AuditEvent) -> SafeString:
        return badge(event.action, _TONES.get(event.action.rpartition(".")[2], "info"))

    @display(description="Target")
    def target_id(self, event: AuditEvent) -> SafeString:
        kind, separator, _ = event.target.partition("_")
        is_id = bool(separator) and kind.isalpha() and any(map(str.isdigit, event.target))
        return copyable(event.target, href=reverse("console:go", args=[event.target]) if is_id else None)

    @display(description="From")
    def origin(self, event: AuditEvent) -> SafeString | str:
        return two_lines(event.address, _browser(event.agent)) if event.address else "–"

    @display(description="Request")
    def request_link(self, event: AuditEvent) -> SafeString | str:
        return copyable(event.request_id) if event.request_id else "–"

    @display(description="Before")
    def old(self, event: AuditEvent) -> SafeString | str:
        return json_block(event.before) if event.before else "–"

    @display(description="After")
    def new(self, event: AuditEvent) -> SafeString | str:
        return json_block(event.after) if event.after else "–"

    @display(description="Seal")
    def seal(self, event: AuditEvent) -> SafeString:
        """Whether the line is what was written, as far as its seal tells."""
        seal, wrong = audit_seals.verify_event(event)
        if seal is None:
            return badge("not sealed yet", "", "Lines are sealed a minute after they were written.")
        if wrong:
            return two_lines(badge("broken", "danger"), f"Seal {seal.pk}: {wrong}.")
        told = f"Seal {seal.pk} of {seal.sealed_at:%Y-%m-%d %H:%M} UTC, over {seal.lines:,} lines."
        return two_lines(badge("unchanged", "success"), told)


def _browser(agent: str) -> str:
    """The first words of a user agent."""
    return agent if len(agent) <= _MOST_AGENT else f"{agent[:_MOST_AGENT]}…"


# -- files -------------------------------------------------------------------------------------------------------------


def _csv(rows: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    line = io.StringIO()
    writer = csv.writer(line)
    for cells in [_COLUMNS, *(tuple(map(_cell, row)) for row in rows)]:
        writer.writerow(cells)
        yield line.getvalue()
        line.seek(0)
        line.truncate()


def _cell(value: Any) -> str:
    """What a spreadsheet shows and does not run."""
    text = orjson.dumps(value).decode() if isinstance(value, dict) else "" if value is None else str(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _jsonl(rows: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    for row in rows:
        yield orjson.dumps(dict(zip(_COLUMNS, row, strict=True)), option=orjson.OPT_APPEND_NEWLINE).decode()


_WRITERS = {"csv": _csv, "jsonl": _jsonl}
