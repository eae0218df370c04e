# mypy: allow-subclassing-any
"""Admin pages of the audit log: list, filters, export and seal status."""

from collections.abc import AsyncGenerator, Iterable, Iterator
from functools import partial
from typing import Any

import orjson
from django.contrib.admin import display, register
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import Http404, HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path, reverse
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from typing_extensions import override

from console.filters import ConditionFilter, IndexHint, RelatedFilter, choice_filter, exact
from console.logs import LogAdmin
from console.scans import SCAN_LIMIT
from console.widgets import (
    TimeFilter,
    badge,
    column,
    copyable,
    csv_lines,
    json_block,
    time_column,
    two_lines,
)
from core.clock import now
from core.db.db_threads import in_db_thread
from organization.admin.audit_names import Names, named
from tenants import audit_seals, scope
from tenants.audit import audit, lines_of
from tenants.console.permissions import TeamScoped
from tenants.console.roles import STAFF
from tenants.console.viewer import viewer_of
from tenants.models import AuditEvent, AuditSeal, Role

# Number of lines that are read at a time, which bounds the memory of an export.
_EXPORT_BATCH = 1000
# Maximum lengths in characters: of the filters recorded with an export, and of a user agent and a team's name in the
# list. Longer ones would make each row as high as a paragraph on a narrow screen.
_MAX_FILTERS, _MAX_AGENT, _MAX_NAME = 500, 41, 40
_COLUMNS = (
    "occurred_at", "actor", "action", "target", "team_id", "address", "agent", "request_id", "before", "after",
)  # fmt: skip
_NAMES = ("actor_name", "target_name", "team_name")
_Line = tuple[Any, ...]
_TONES = {
    "created": "success",
    "added": "success",
    "started": "success",
    "granted": "success",
    "denied": "danger",
    "expired": "warning",
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
    ("session.", "Sign-ins"),
    ("second_factor.", "Second factors"),
    ("content.", "Content access"),
    ("response.", "Responses"),
    ("approval.", "Approvals"),
    ("conversation.", "Conversations"),
    ("upstream.", "Upstreams"),
    ("model.", "Models"),
    ("webhook", "Webhooks"),
    ("guardrail", "Guardrails"),
)


class TeamFilter(ConditionFilter, RelatedFilter):
    """Lines of a team, including lines about several teams."""

    @override
    def condition(self, span: TimeFilter | None) -> Q | None:
        return lines_of([self.value()]) if self.value() else None


@register(AuditEvent)
class AuditAdmin(LogAdmin, TeamScoped):
    """The audit log, for staff, team leads and auditors."""

    empty_text = "Changes of settings, and each time that content was shown, are recorded here."

    viewers = STAFF | {Role.TEAM_LEAD, Role.AUDITOR}
    list_display = ["time", "who", "what", "target_id", "team_name", "origin", "request_link"]
    list_filter = [
        ("occurred_at", TimeFilter),
        ("team", TeamFilter),
        # The beginning of an action is its area.
        choice_filter("area", "area", _AREAS, lambda area: Q(action__startswith=area)),
        exact("action", "action"),
        exact("actor", "actor"),
        exact("target", "target", hint=IndexHint(rank=0)),
        exact("address", "IP address"),
        exact("request_id", "request ID"),
    ]
    # By time, because an old range would otherwise be found by reading all newer lines in the order of their ids.
    ordering = ["-occurred_at", "-id"]
    list_before_template = "admin/tenants/auditevent/before.html"
    fieldsets = [
        (None, {"fields": [("time", "teams"), ("who", "what"), ("target_id", "request_link"), ("address", "agent")]}),
        ("Change", {"fields": ["old", "new"]}),
        ("Seal", {"fields": ["seal"]}),
    ]

    @override
    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        changelist: Any = super().get_changelist_instance(request)
        # The export takes the filters of the list, but not its page.
        query = changelist.get_query_string(remove=["p"])
        page = reverse("admin:tenants_auditevent_export")
        changelist.exports = [(kind.upper(), f"{page}{query}&format={kind}") for kind in _WRITERS]
        changelist.result_list = list(changelist.result_list)
        names = Names(changelist.result_list)
        for event in changelist.result_list:
            event.names = names
        changelist.seal = AuditSeal.objects.order_by("-pk").first()
        return changelist  # type: ignore[no-any-return]  # the template's own attributes

    @override
    def condition_of(self, teams: Iterable[str]) -> Q:
        return lines_of(teams)

    @override
    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        teams = viewer_of(request).team_ids(self.viewers)
        if obj is None or obj.team_ids is None or teams is None:
            return super().has_view_permission(request, obj)
        return not {*obj.team_ids}.isdisjoint(teams)

    @override
    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return a line with its names."""
        event = super().get_object(request, object_id, from_field)
        if event is not None:
            event.names = Names([event])
        return event

    # -- exports -------------------------------------------------------------------------------------------------------

    def get_urls(self) -> list[URLPattern]:
        export = self.admin_site.admin_view(self.export_view)
        return [path("export/", export, name="tenants_auditevent_export"), *super().get_urls()]

    def export_view(self, request: HttpRequest) -> HttpResponseBase:
        """Return the filtered list as a file; the export itself is audited."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        query = request.GET.copy()
        kind = query.pop("format", ["jsonl"])[-1]
        request.GET = query  # type: ignore[assignment]  # the change list rejects unknown parameters such as `format`
        writer = _WRITERS.get(kind)
        if writer is None:
            raise Http404
        try:
            rows = self.get_changelist_instance(request).queryset.order_by("-pk")
        except IncorrectLookupParameters as unknown:
            raise Http404 from unknown
        viewer = viewer_of(request)
        # Later lines, such as that of this export, are not part of it. Counting millions of them would take seconds.
        latest = rows.values_list("pk", flat=True).first() or 0
        lines = rows.filter(pk__lte=latest)[:SCAN_LIMIT].count()
        audit(
            team_id=next(iter(viewer.team_ids() or ()), None),
            actor=viewer.actor,
            action="audit_log.exported",
            target="audit_log",
            after={
                "lines": lines if lines < SCAN_LIMIT else f"{lines} or more",
                "filters": query.urlencode()[:_MAX_FILTERS],
            },
        )

        def read_batch(before: int) -> list[_Line]:
            # The body is streamed after the transaction of the request has ended, so the scope is opened again.
            with scope.team(*viewer.visible_teams):
                events = list(rows.filter(pk__lt=before)[:_EXPORT_BATCH])
                names = Names(events)
                return [(event.pk, *_exported(event, names)) for event in events]

        async def stream() -> AsyncGenerator[str, None]:
            before, header = latest + 1, True
            while batch := await in_db_thread(partial(read_batch, before)):
                before = batch[-1][0]
                for line in writer((row[1:] for row in batch), header=header):
                    yield line
                header = False

        # `no-store`: the file must not stay in the cache of a shared browser.
        name = f"audit-log-{now():%Y%m%d-%H%M%S}.{kind}"
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
        return StreamingHttpResponse(stream(), content_type=f"text/{kind}; charset=utf-8", headers=headers)

    # -- columns -------------------------------------------------------------------------------------------------------

    time = time_column("Time", "occurred_at")
    team_name = column("Team", lambda event: Truncator(event.names.teams(event)).chars(_MAX_NAME) or "–")
    teams = column("Team", lambda event: event.names.teams(event) or "–")
    who = column("Actor", lambda event: named(event.names.actor(event), event.actor))
    what = column("Action", lambda event: badge(event.action, _TONES.get(event.action.rpartition(".")[2], "info")))
    request_link = column("Request ID", lambda event: copyable(event.request_id) if event.request_id else "–")
    old = column("Before", lambda event: json_block(event.before) if event.before else "–")
    new = column("After", lambda event: json_block(event.after) if event.after else "–")

    @display(description="Target")
    def target_id(self, event: AuditEvent) -> SafeString | str:
        kind, separator, _ = event.target.partition("_")
        # Links only ids such as `key_019a…`; targets such as `user:name` or `audit_log` have no page to go to.
        is_id = bool(separator) and kind.isalpha() and any(map(str.isdigit, event.target))
        cell = copyable(event.target, href=reverse("console:go", args=[event.target]) if is_id else None)
        return named(event.names.target(event), cell)  # type: ignore[attr-defined]  # names of the page

    origin = column(
        "IP address",
        lambda event: two_lines(event.address, Truncator(event.agent).chars(_MAX_AGENT)) if event.address else "–",
    )

    @display(description="Seal")
    def seal(self, event: AuditEvent) -> SafeString:
        """Return the result of checking the line's seal."""
        seal, mismatch = audit_seals.verify_event(event)
        if seal is None:
            return badge("not sealed yet", "", "Lines are sealed one minute after they are written.")
        if mismatch:
            return two_lines(badge("broken", "danger"), f"Seal {seal.pk}: {mismatch}.")
        details = f"Seal {seal.pk} of {seal.sealed_at:%Y-%m-%d %H:%M} UTC, covers {seal.lines:,} lines."
        return two_lines(badge("unchanged", "success"), details)


# -- files -------------------------------------------------------------------------------------------------------------


def _exported(event: AuditEvent, names: Names) -> _Line:
    values = (getattr(event, name) for name in _COLUMNS)
    return (*values, names.actor(event), names.target(event), names.teams(event))


def _csv(rows: Iterable[_Line], *, header: bool) -> Iterator[str]:
    def text(value: Any) -> str:
        return orjson.dumps(value).decode() if isinstance(value, dict) else "" if value is None else str(value)

    return csv_lines([*([(*_COLUMNS, *_NAMES)] if header else []), *(map(text, row) for row in rows)])


def _jsonl(rows: Iterable[_Line], *, header: bool) -> Iterator[str]:
    for row in rows:
        line = dict(zip((*_COLUMNS, *_NAMES), row, strict=True))
        yield orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE).decode()


_WRITERS = {"csv": _csv, "jsonl": _jsonl}
