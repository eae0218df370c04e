"""Page of a response: its header, and its tabs in display order, each with the roles that may open it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from django.db.models import Count, Sum
from django.http import HttpRequest, QueryDict
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from console.tables import Column, Table
from console.widgets import ago, badge, copyable, duration, link, tone, two_lines, when
from organization.admin.audit_log import AuditAdmin
from responses.admin import cells
from responses.admin.response.documents import DOCUMENTS, document_tab
from responses.admin.response.events import events
from responses.admin.response.failures import failed_requests, failure_panel
from responses.admin.response.targets import targets_line
from responses.admin.response.timeline import claims_of, timeline
from responses.admin.transcript.entries import SHOWN_ITEMS, transcript
from responses.models import IS_AWAITED, RUNNING, Decision, Response, ToolCall, Turn
from responses.runs.decisions.listing import subjects_of
from responses.webhooks.models import WebhookDelivery
from tenants.console.roles import EVERY_ROLE, Roles
from tenants.console.row_pages import start_of
from tenants.console.site import may_open
from tenants.console.viewer import Viewer
from tenants.models import OUTCOME_TONES, AuditEvent, Upstream, UsageRecord
from tenants.models.notifications import DELIVERY_TONES
from tenants.prices import NO_PRICE, amount, label

# A run may have more turns, usage records, deliveries and audit events than a page can list.
MAX_TURNS, MAX_USAGE_RECORDS, MAX_RECORDS = 200, 500, 200
_SHOWN_FOLLOWERS = 5
_MIN_GENERATING_MS = 100
_TOKENS = ("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")


def header(request: HttpRequest, viewer: Viewer, response: Response) -> dict[str, Any]:
    """Return the context of the header: status, ids with links, and key figures."""
    can_copy = response.stored and viewer.may_read(response.team_id)
    conversation, previous = response.conversation_id, response.previous_response_id
    ids = {
        "Previous response": copyable(previous, href=cells.url(previous)) if previous else "",
        "Conversation": copyable(
            conversation, href=reverse("admin:conversations_conversation_change", args=[conversation])
        )
        if conversation
        else "",
        "Request ID": copyable(response.request_id) if response.request_id else "",
        "Client request ID": copyable(response.client_request_id) if response.client_request_id else "",
    }
    # Output tokens per second, counted from the first token: the time before it is spent on the queue and the prompt,
    # not on generating output.
    generating_ms = (response.duration_ms or 0) - (response.first_token_ms or 0)
    # For less than a tenth of a second, the rate depends more on buffering than on the model.
    has_speed = response.first_token_ms is not None and response.output_tokens and generating_ms >= _MIN_GENERATING_MS
    return {
        "playground_url": (
            f"{reverse('console:playground')}?{urlencode({'from': response.pk})}"
            if can_copy and may_open(viewer, "playground")
            else None
        ),
        "snippets": [
            {"title": title, "url": reverse("admin:responses_response_snippet", args=[response.pk, name])}
            for name, title in (("curl", "curl"), ("python", "Python"))
            if can_copy
        ],
        "status_badge": cells.status(response),
        "error_or_reason": cells.error_or_reason(response),
        **failure_panel(viewer, response),
        "mode": cells.mode(response),
        "approvals": _approvals(response) if response.awaits_decision else [],
        "id_link": copyable(response.pk),
        "targets": cells.planned_start(response) or targets_line(response),
        "ids": [(name, link) for name, link in ids.items() if link],
        "first_token": duration(response.first_token_ms),
        "total": duration(response.duration_ms),
        "speed": f"{response.output_tokens * 1000 / generating_ms:,.0f}" if has_speed else "",
        "cost": cells.cost(response) if response.cost is None else amount(response.cost),
        "short_url": request.build_absolute_uri(reverse("console:go", args=[response.pk])),
        **{name: f"{getattr(response, name):,}" for name in _TOKENS},
    }


def _approvals(response: Response) -> list[dict[str, Any]]:
    """Return the decisions for which the run waits, the first to expire first."""
    rows = Decision.objects.filter(IS_AWAITED, response_id=response.pk, team_id=response.team_id)
    found = list(rows.order_by("expires_at")[:MAX_RECORDS])
    subjects = subjects_of(found)
    return [
        {
            "tool": subjects[row.pk].tool or row.get_kind_display(),
            "kind": row.kind,
            "url": f"{reverse('console:approval', args=[row.pk])}?from=response",
            "expires": ago(row.expires_at) if row.expires_at is not None else "",
        }
        for row in found
    ]


def _transcript(viewer: Viewer, response: Response, query: QueryDict) -> dict[str, Any]:
    """Return the template context: the items, and the details for the side panel.

    Items and metadata are content: viewers without read access get neither.
    """
    # The list of usage records is limited to a time range. Without a start, it would show only recent records.
    ledger = {"object_id": response.pk, "occurred_at_from_0": f"{response.created_at:%Y-%m-%d}"}
    followers = Response.objects.filter(previous_response_id=response.pk, team_id=response.team_id).only("id")
    details = {
        "key_link": cells.key(response),
        "created": when(response.created_at),
        "ended": when(response.ended_at),
        "previous_url": cells.url(response.previous_response_id) if response.previous_response_id else "",
        "ledger_url": f"{reverse('admin:tenants_usagerecord_changelist')}?{urlencode(ledger)}",
        "prompt": response.parameters.get("prompt"),
        "moderation": cells.moderation_results(response),
        "followers": [
            {"id": row.pk, "url": cells.url(row.pk)} for row in followers.order_by("created_at")[:_SHOWN_FOLLOWERS]
        ],
        "metadata": response.metadata if viewer.may_read(response.team_id) else {},
    }
    # The input may contain outputs of calls of the previous response, so the calls of that response come first.
    owners = [owner for owner in (response.previous_response_id, response.pk) if owner]
    calls = ToolCall.objects.filter(response_id__in=owners, team_id=response.team_id).order_by("turn", "id")
    ordered = sorted(calls[: 2 * SHOWN_ITEMS], key=lambda call: call.response_id == response.pk)
    return {**details, **transcript(viewer, response, ordered)}


def _usage(viewer: Viewer, response: Response, query: QueryDict) -> dict[str, Any]:
    """Return the usage records of this response, and their totals."""
    rows = UsageRecord.objects.filter(object_id=response.pk, team_id=response.team_id)
    lines = []
    for row in rows.order_by("occurred_at", "id")[:MAX_USAGE_RECORDS]:
        hint = "The upstream reported no usage, or the process died during the call; counted by the platform."
        lines.append(
            {
                "row": row,
                "number": row.turn + 1,
                "outcome": tone(OUTCOME_TONES, row.outcome),
                "when": when(row.occurred_at),
                **{name: f"{getattr(row, name):,}" for name in _TOKENS},
                "estimated": badge("estimated", "warning", hint) if row.estimated else "",
                "took": duration(row.duration_ms),
                "cost": NO_PRICE if row.cost is None else amount(row.cost),
                # The prices at the time of the call. The prices of the model may have changed since.
                "prices": [label(price) for price in row.prices or ()],
            }
        )
    # Totals cover all records, also those beyond the page.
    sums = {name: Sum(name) for name in (*_TOKENS, "cost")}
    total = rows.aggregate(lines=Count("id"), priced=Count("cost"), **sums)
    return {
        "lines": lines,
        "sums": {name: f"{total[name] or 0:,}" for name in _TOKENS},
        "total_cost": amount(total["cost"]) if total["priced"] else "",
        "unpriced": total["lines"] - total["priced"],
        "left": max(0, total["lines"] - MAX_USAGE_RECORDS),
        "count": total["lines"],
    }


def _attempts(viewer: Viewer, response: Response, query: QueryDict) -> dict[str, Any]:
    """Return the workers that claimed the run, and a page of model calls with their outcomes.

    The reason why an answer was discarded may quote the answer, so it is shown only to viewers who may read content.
    """
    first = start_of(query)
    rows = Turn.objects.filter(response_id=response.pk, team_id=response.team_id).order_by("number")
    turns = list(rows[first : first + MAX_TURNS + 1])
    can_read = viewer.may_read(response.team_id)
    claims = claims_of(response)
    # The end of a claim is not recorded: it lasts until the next one.
    ends = [at for at, _ in claims[1:]] + [response.ended_at]
    lost = badge("lost", "warning", "Lease expired or released; another worker resumed the run.")
    return {
        "claims": [
            {
                "number": number,
                "by": by,
                "began": when(at),
                "took": cells.elapsed(at, end),
                "outcome": lost if number < len(claims) else cells.status(response),
            }
            for number, ((at, by), end) in enumerate(zip(claims, ends, strict=False), 1)
        ],
        "turns": [
            {
                "turn": turn,
                "number": turn.number + 1,
                "outcome": tone(OUTCOME_TONES, turn.state),
                "began": when(turn.started_at),
                "took": cells.elapsed(turn.started_at, turn.ended_at),
                "first_token": cells.elapsed(turn.started_at, turn.first_token_at),
                "input": f"{turn.input_tokens:,}",
                "output": f"{turn.output_tokens:,}",
                "upstream_request": copyable(turn.upstream_request_id) if turn.upstream_request_id else "–",
                "defect": (turn.discarded or {}).get("defect") or ("context length exceeded" if turn.discarded else ""),
                "is_discarded": turn.discarded is not None,
                "can_read": can_read,
            }
            for turn in turns[:MAX_TURNS]
        ],
        "failures": [(when(failure.began), failure) for failure in failed_requests(viewer, response)],
        "following": first + MAX_TURNS if len(turns) > MAX_TURNS else None,
        "upstream": Upstream.objects.filter(pk=response.upstream_id).only("name").first(),
        "can_read": can_read,
        "lease": when(response.lease_until) if response.status in RUNNING and response.lease_until else "",
    }


_DELIVERIES: Sequence[Column[WebhookDelivery]] = (
    Column(
        "Created (UTC)",
        lambda row: _dated(reverse("admin:responses_webhookdelivery_change", args=[row.pk]), row.created_at),
    ),
    Column("Event", lambda row: two_lines(row.event_type, copyable(row.event_id))),
    Column(
        "Endpoint",
        lambda row: link(reverse("admin:responses_webhookendpoint_change", args=[row.endpoint_id]), row.endpoint.name),
    ),
    Column("State", lambda row: tone(DELIVERY_TONES, row.state)),
    Column("Attempts", lambda row: str(row.attempts), is_number=True),
    Column(
        "Last result",
        lambda row: two_lines(
            f"{row.last_status or 'no response'} after {duration(row.last_ms)}" if row.attempts else "–",
            row.last_error,
        ),
    ),
    Column("Next attempt", lambda row: when(row.next_attempt_at)),
)
_AUDIT_EVENTS: Sequence[Column[AuditEvent]] = (
    Column(
        "Time (UTC)", lambda row: _dated(reverse("admin:tenants_auditevent_change", args=[row.pk]), row.occurred_at)
    ),
    Column("Actor", lambda row: row.actor),
    Column("Action", lambda row: badge(row.action, "danger" if row.action.endswith("deleted") else "info")),
    Column("Reason", lambda row: str(row.after.get("reason") or "–") if isinstance(row.after, dict) else "–"),
    Column("Request ID", lambda row: copyable(row.request_id) if row.request_id else "–"),
)


def _dated(url: str, moment: datetime) -> SafeString:
    return format_html('<a href="{}">{}</a>', url, when(moment))


def _webhooks(viewer: Viewer, response: Response, query: QueryDict) -> dict[str, Any]:
    """Return the webhook deliveries of the response, newest first."""
    rows = WebhookDelivery.objects.filter(object_id=response.pk, team_id=response.team_id).prefetch_related("endpoint")
    return {"table": Table.of("Deliveries", _DELIVERIES, rows.order_by("-created_at", "-id"), most=MAX_RECORDS)}


def _audit(viewer: Viewer, response: Response, query: QueryDict) -> dict[str, Any]:
    """Return the audit events of the response, newest first."""
    rows = AuditEvent.objects.filter(target=response.pk, team_id=response.team_id)
    return {"table": Table.of("Audit log", _AUDIT_EVENTS, rows.order_by("-occurred_at", "-id"), most=MAX_RECORDS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseTab:
    """A tab of the response page.

    `read` returns the context of its template. With `has_content`, opening the tab is recorded in the audit log.
    """

    name: str
    title: str
    read: Callable[[Viewer, Response, QueryDict], Mapping[str, Any]]
    has_content: bool = False
    viewers: Roles = EVERY_ROLE

    @property
    def template(self) -> str:
        """Template of the panel."""
        return f"admin/responses/response/tabs/{self.name}.html"


# The first tab is shown if the URL names none.
TABS = (
    ResponseTab(name="transcript", title="Transcript", read=_transcript),
    ResponseTab(name="timeline", title="Timeline", read=timeline),
    ResponseTab(name="events", title="Events", read=events, has_content=True),
    *(
        ResponseTab(name=name, title=document.title, read=partial(document_tab, document), has_content=True)
        for name, document in DOCUMENTS.items()
    ),
    ResponseTab(name="usage", title="Usage & cost", read=_usage),
    ResponseTab(name="attempts", title="Attempts", read=_attempts, has_content=True),
    ResponseTab(name="webhooks", title="Webhooks", read=_webhooks),
    ResponseTab(name="audit", title="Audit", read=_audit, viewers=AuditAdmin.viewers),
)
