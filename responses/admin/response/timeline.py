"""Timeline tab: a waterfall of the run's turns, tool calls, approvals, claims and measured spans.

Timing is not content, so every viewer of the response sees it. The details of a bar are loaded when the bar is opened.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from django.db.models.fields.json import KeyTextTransform
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from console.widgets import duration, pretty, state_words
from conversations.models import Placement, Section
from core.clock import now
from core.http.query import row_number
from responses.admin import cells
from responses.admin.response.documents import download
from responses.admin.response.waterfall import WORK, SpanKind, TraceSpan, Waterfall, WaterfallBar, waterfall
from responses.models import RUNNING, Decision, DecisionKind, Response, Status, ToolCall, Turn
from tenants.console.content_access import audit_read
from tenants.console.row_pages import start_of
from tenants.console.viewer import Viewer
from tenants.models import UsageRecord

# Limits for one page: the layout needs all spans at the same time, and a run may have tens of thousands.
MAX_TURNS = 2000
MAX_CALLS = 5000
PAGE = 200
_MAX_FOLLOWERS = 5
_MAX_ANSWERS = 500
_MAX_LANES = 12
# Gaps below 1/250 of the scale are narrower than a pixel or two and are not drawn.
_MIN_VISIBLE_SHARE = 250
_OUTPUT_TYPES = ("function_call_output", "custom_tool_call_output", "computer_call_output", "shell_call_output",
                 "local_shell_call_output", "apply_patch_call_output", "tool_search_output")  # fmt: skip


@dataclass(frozen=True, slots=True)
class SpanText:
    """Icon and label of a kind of span. `total` is the name of the kind in the totals above the waterfall.

    The title of a measured span is `title` if it is set, and otherwise the name of the span.
    """

    icon: str
    label: str
    total: str = ""
    title: str = ""


# The totals are shown in this order.
_TEXTS = {
    SpanKind.QUEUE: SpanText("hourglass_top", "waiting in the queue", "Queue"),
    SpanKind.RUN: SpanText("memory", "attempt"),
    SpanKind.PREPARE: SpanText("checklist", "preparation", "Preparation", "Preparation"),
    SpanKind.CONNECT: SpanText("cable", "connecting to an MCP server", "MCP connect", "MCP connect"),
    SpanKind.LIST: SpanText("list", "listing the tools of an MCP server", "MCP list", "MCP list tools"),
    SpanKind.GUARDRAIL: SpanText("shield", "moderation and guardrails", "Checks", "Checks"),
    SpanKind.MODEL: SpanText("neurology", "model call", "Model"),
    SpanKind.ATTEMPT: SpanText("replay", "request to the upstream"),
    SpanKind.TOOL: SpanText("build", "tool call", "Tools"),
    SpanKind.STORAGE: SpanText("database", "waiting for the database", "Storage", "Storage"),
    SpanKind.APPROVAL: SpanText("front_hand", "waiting for a decision", "Decisions"),
    SpanKind.CLIENT: SpanText("devices", "waiting for the client"),
    SpanKind.LOST: SpanText("link_off", "lost work", "Lost work"),
}
# Every step of a run waits some milliseconds for the database. The total includes all waits, but only long waits get a
# row.
_MIN_STORAGE_SHARE = 50
_ERROR_STATES = frozenset({"failed", "refused"})
_WARNING_STATES = frozenset(
    {"discarded", "abandoned", "outcome_unknown", "compacted", "length", "content_filter", "interrupted", "denied"}
)
_PAYLOADS = ("arguments", "output")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTotal:
    """Total milliseconds of a kind of work, and the part of them that is on the critical path."""

    kind: SpanKind
    label: str
    length: float
    critical: float


def waterfall_of(response: Response, *, present: datetime) -> Waterfall:
    """Return the waterfall of a run."""
    return waterfall(_spans(response), began=response.created_at, ended=response.ended_at, present=present)


def work_totals(chart: Waterfall) -> list[WorkTotal]:
    """Return the totals of the kinds of work that a run has."""
    totals = []
    for kind, texts in _TEXTS.items():
        if texts.total and (bars := [bar for bar in chart.bars if bar.span.kind is kind]):
            critical = sum(bar.length for bar in bars if bar.is_critical)
            length = sum(bar.length for bar in bars)
            totals.append(WorkTotal(kind=kind, label=texts.total, length=length, critical=critical))
    return totals


def timeline(viewer: Viewer, response: Response, query: QueryDict) -> dict[str, Any]:
    """Return the template context of the waterfall of a run. `?from=` is the first row to show of a long waterfall."""
    present = now()
    chart = waterfall_of(response, present=present)
    listed = [
        bar
        for bar in chart.bars
        if bar.span.kind is not SpanKind.STORAGE or bar.length * _MIN_STORAGE_SHARE >= chart.scale
    ]
    first = start_of(query)
    totals = [
        {
            "kind": total.kind.value,
            "label": total.label,
            "total": duration(round(total.length)),
            "critical": duration(round(total.critical)),
        }
        for total in work_totals(chart)
    ]
    return {
        "rows": [_row(bar, chart, response) for bar in listed[first : first + PAGE]],
        "first": first,
        "following": first + PAGE if len(listed) > first + PAGE else None,
        "bars": len(listed),
        "ticks": [{"at": _share(tick, chart), "label": _tick(tick)} for tick in chart.ticks],
        "overview": overview(chart),
        "gaps": [
            {"start": _share(gap.start, chart), "width": _share(gap.length, chart)}
            for gap in chart.gaps
            if gap.length > chart.scale / _MIN_VISIBLE_SHARE
        ],
        "overhead": duration(round(chart.overhead)),
        "run": duration(round(chart.run)),
        "totals": totals,
        "present": present,
        "was_cut": response.turns > MAX_TURNS or response.tool_calls > MAX_CALLS,
    }


# -- from database rows to spans ---------------------------------------------------------------------------------------


def _spans(response: Response) -> list[TraceSpan]:
    own: dict[str, Any] = {"response_id": response.pk, "team_id": response.team_id}
    turns = list(Turn.objects.filter(**own).defer("discarded").order_by("number")[:MAX_TURNS])
    # Arguments and output may be megabytes, and the waterfall needs neither.
    rows = ToolCall.objects.filter(**own).defer("arguments", "output", "result", "if_ended")
    calls = list(rows.order_by("turn", "id")[:MAX_CALLS])
    approvals = list(Decision.objects.filter(**own).order_by("asked_at")[:MAX_TURNS])
    names = {call.call_id: call.name for call in calls}
    spans = [*_queue_and_attempts(response)]
    spans += [
        TraceSpan(
            key=f"turn-{turn.number}",
            kind=SpanKind.MODEL,
            name=f"Turn {turn.number + 1}",
            began=turn.started_at,
            ended=turn.ended_at,
            state=turn.state,
            note=f"{turn.input_tokens:,} in, {turn.output_tokens:,} out",
            mark=turn.first_token_at,
        )
        for turn in turns
    ]
    spans += _measured(response, turns)
    spans += [
        TraceSpan(
            key=f"approval-{approval.pk}",
            kind=SpanKind.APPROVAL,
            name=names.get(approval.call_id, "approval"),
            began=approval.asked_at,
            ended=approval.answered_at,
            state=approval.state,
            level=2,
            ended_by=approval.answered_in or "",
        )
        for approval in approvals
    ]
    # A call that was made and waits for a decision has worked until it was asked for.
    waits_from = {
        (row.turn, row.call_id, row.attempt): row.asked_at for row in approvals if row.kind != DecisionKind.APPROVAL
    }
    answers = _answers(response) if any(_is_client_call(call) for call in calls) else {}
    for call in calls:
        common: dict[str, Any] = {"key": f"call-{call.pk}", "name": call.name, "began": call.started_at, "level": 2}
        if _is_client_call(call):
            moment, follower = answers.get(call.call_id, (None, ""))
            ended = call.ended_at or moment
            state, note = "answered" if ended else "waiting", "run by the client"
            spans.append(
                TraceSpan(kind=SpanKind.CLIENT, ended=ended, state=state, note=note, ended_by=follower, **common)
            )
        elif call.status not in {"asked", "approved", "denied"}:
            # A call that waits for approval takes no server time: it has an approval span.
            note = f"{state_words(call.kind)}, attempt {call.attempt}" if call.attempt > 1 else state_words(call.kind)
            ended = waits_from.get((call.turn, call.call_id, call.attempt), call.ended_at)
            spans.append(TraceSpan(kind=SpanKind.TOOL, ended=ended, state=call.status, note=note, **common))
    work = [span for span in spans if span.kind in WORK]
    # The time from the last stored row of an attempt to the next claim contains lost work and the wait for the sweeper
    # and for a worker. No row separates the two.
    for number, ((at, _), (until, _)) in enumerate(pairwise(claims_of(response)), 1):
        if any(approval.expires_at and at <= approval.asked_at < until for approval in approvals):
            # The run has waited for a decision, which has a span of its own.
            continue
        ends = [span.ended for span in work if span.ended is not None and span.ended <= until]
        spans.append(
            TraceSpan(
                key=f"lost-{number}",
                kind=SpanKind.LOST,
                name="Lost work",
                began=max([at, *ends]),
                ended=until,
                note="not stored when the worker was lost",
            )
        )
    # A turn gets its row when it ends. While a run is active and no tool runs, the model is being called. A run that
    # waits for a decision is not active.
    if response.status in RUNNING and response.waits_until is None and all(span.ended for span in work):
        since = max((span.ended for span in work if span.ended), default=response.created_at)
        name = f"Turn {response.turns + 1}"
        spans.append(TraceSpan(key="now", kind=SpanKind.MODEL, name=name, began=since, ended=None, state="in_progress"))
    return spans


def _measured(response: Response, turns: Sequence[Turn]) -> Iterator[TraceSpan]:
    """Yield the measured spans."""
    stored = [*response.spans, *(span for turn in turns for span in turn.spans)]
    for number, span in enumerate(stored):
        kind = SpanKind(span["activity"])
        title = _TEXTS[kind].title
        yield TraceSpan(
            key=f"span-{number}",
            kind=kind,
            name=title or span["name"],
            began=response.created_at + timedelta(milliseconds=span["began"]),
            ended=response.created_at + timedelta(milliseconds=span["ended"]),
            state=span.get("state", ""),
            note=" ".join(filter(None, (span["name"] if title else "", span.get("note")))),
            level=2 if kind in {SpanKind.ATTEMPT, SpanKind.CONNECT, SpanKind.LIST} else 1,
        )


def _is_client_call(call: ToolCall) -> bool:
    # A function call that was refused never reached the client: it is shown as a tool call of the server.
    return call.kind == "function" and call.status != "refused"


def claims_of(response: Response) -> list[tuple[datetime, str]]:
    """Return the times (UTC) at which workers claimed the run, and the workers' names, oldest first."""
    return [(datetime.fromisoformat(claim["at"]).astimezone(UTC), claim["by"]) for claim in response.claims]


def _queue_and_attempts(response: Response) -> Iterator[TraceSpan]:
    if not response.background:
        return
    # Old responses, created before claims were recorded, have turns but no claims. Their time in the queue is unknown.
    claims = claims_of(response)
    if claims or response.status == Status.QUEUED or not response.turns:
        until = claims[0][0] if claims else response.ended_at
        yield TraceSpan(
            key="queue", kind=SpanKind.QUEUE, name="Queue", began=response.created_at, ended=until, level=0,
            note=cells.planned_start(response),
        )  # fmt: skip
    for number, (at, by) in enumerate(claims, 1):
        until = claims[number][0] if number < len(claims) else response.ended_at
        state = "lost" if number < len(claims) else ""
        yield TraceSpan(
            key=f"attempt-{number}", kind=SpanKind.RUN, name=f"Attempt {number}", began=at, ended=until, note=by,
            state=state, level=0,
        )  # fmt: skip


def _answers(response: Response) -> Mapping[str, tuple[datetime, str]]:
    """Return, by call id, the time and the id of the first later response whose request sent the output of the call."""
    rows = Response.objects.filter(team_id=response.team_id).order_by("created_at").values_list("pk", "created_at")
    moments = dict(rows.filter(previous_response_id=response.pk)[:_MAX_FOLLOWERS])
    if response.conversation_id:
        later = rows.filter(conversation_id=response.conversation_id, created_at__gt=response.created_at)
        moments |= dict(later[:_MAX_FOLLOWERS])
    places = Placement.objects.filter(owner__in=moments, team_id=response.team_id, section=Section.INPUT)
    places = places.filter(item__type__in=_OUTPUT_TYPES).annotate(call_id=KeyTextTransform("call_id", "item__body"))
    sent = places.values_list("owner", "call_id")[:_MAX_ANSWERS]
    # The same output may be sent again in later turns of a conversation; only the first time counts.
    first: dict[str, tuple[datetime, str]] = {}
    for owner, call_id in sorted(sent, key=lambda row: moments[row[0]]):
        first.setdefault(call_id, (moments[owner], owner))
    return first


# -- from bars to the template -----------------------------------------------------------------------------------------


def _row(bar: WaterfallBar, chart: Waterfall, response: Response) -> dict[str, Any]:
    span = bar.span
    has_details = span.key.partition("-")[0] in _DETAILS
    return {
        "bar": bar,
        "span": span,
        "state": state_words(span.state),
        "icon": _TEXTS[span.kind].icon,
        "label": _TEXTS[span.kind].label,
        "tone": "bad" if span.state in _ERROR_STATES else "odd" if span.state in _WARNING_STATES else "",
        "start": _share(bar.start, chart),
        "width": _share(min(bar.end, chart.scale) - bar.start, chart),
        "mark": _share(bar.mark, chart) if bar.mark is not None else None,
        "length": duration(round(bar.length)),
        "first_token": duration(round(bar.mark - bar.start)) if bar.mark is not None else "",
        "offset": duration(round(bar.start)),
        "began": _clock(span.began),
        "ended": _clock(span.ended) if span.ended else "still running" if bar.is_open else "end of run",
        "url": reverse("admin:responses_response_span", args=[response.pk, span.key]) if has_details else "",
        "ended_by_url": cells.url(span.ended_by) if span.ended_by else "",
    }


def _share(milliseconds: float, chart: Waterfall) -> str:
    """Return a position on the scale as a CSS percentage."""
    return f"{100 * milliseconds / chart.scale:.3f}%"


def _clock(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%H:%M:%S.%f}"[:-3]


def _tick(milliseconds: float) -> str:
    if milliseconds < 1000:
        return f"{milliseconds:g} ms"
    seconds = milliseconds / 1000
    for length, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.4g} {unit}"
    return f"{seconds:g} s"


def overview(chart: Waterfall) -> dict[str, Any]:
    """Return height and paths of a small drawing of all bars."""
    # One SVG path for each kind keeps the overview small even with thousands of bars. Attempts are left out: they
    # enclose everything else.
    lanes = min(chart.lanes, _MAX_LANES)
    paths: dict[str, list[str]] = defaultdict(list)
    for bar in chart.bars:
        if bar.span.kind is not SpanKind.RUN and bar.lane < lanes:
            x, width = 1000 * bar.start / chart.scale, 1000 * (min(bar.end, chart.scale) - bar.start) / chart.scale
            paths[bar.span.kind.value].append(f"M{x:.1f} {bar.lane * 10 + 1}h{max(width, 1):.1f}v8H{x:.1f}z")
    return {"height": lanes * 10, "paths": {kind: "".join(pieces) for kind, pieces in paths.items()}}


# -- details of a bar --------------------------------------------------------------------------------------------------


@require_safe
def span_details(request: HttpRequest, viewer: Viewer, response: Response, key: str) -> HttpResponse:
    """Serve the details of a turn, a tool call or an approval as an HTML fragment.

    `?whole=output` downloads a payload.
    """
    kind, _, name = key.partition("-")
    details = _DETAILS[kind](response, name) if kind in _DETAILS else None
    if details is None:
        raise Http404
    can_read = viewer.may_read(response.team_id)
    whole = request.GET.get("whole", "")
    # A payload may be megabytes; the fragment shows its beginning.
    is_download = whole in _PAYLOADS and details.get(whole) is not None
    if can_read and (is_download or details["has_content"]):
        audit_read(viewer, response, team_id=response.team_id)
    if can_read and is_download:
        return download(details[whole], f"{response.pk}-{key}-{whole}.txt")
    context = {
        **details,
        "key": key,
        "response": response,
        "can_read": can_read,
        "hidden_team": "" if can_read or not details["has_content"] else response.team_id,
        "payloads": [
            {"name": payload, "code": pretty(details[payload])}
            for payload in _PAYLOADS
            if can_read and details.get(payload)
        ],
    }
    return TemplateResponse(request, "admin/responses/response/span.html", context)


def _turn(response: Response, number: str) -> dict[str, Any] | None:
    turns = Turn.objects.filter(response_id=response.pk, team_id=response.team_id)
    turn = turns.filter(number=known).first() if (known := row_number(number)) is not None else None
    if turn is None:
        return None
    # If the model has several targets, each turn may have been answered by another one.
    usage = UsageRecord.objects.filter(object_id=response.pk, endpoint=response.endpoint, turn=turn.number)
    used = usage.order_by("occurred_at", "pk").last() or response
    rows = [
        ("State", state_words(turn.state)),
        ("Finish reason", turn.finish_reason or "–"),
        ("Input", f"{turn.input_tokens:,} tokens"),
        ("Cached input", f"{turn.cached_tokens:,}"),
        ("Cache writes", f"{turn.cache_write_tokens:,}"),
        ("Output", f"{turn.output_tokens:,} tokens"),
        ("Reasoning", f"{turn.reasoning_tokens:,}"),
        ("Upstream", f"{used.upstream_model} at {used.upstream_id}"),
        ("Upstream request ID", turn.upstream_request_id or "–"),
        *_times(turn.started_at, turn.ended_at),
    ]
    if turn.discarded is None:
        return {"rows": rows, "has_content": False}
    defect = turn.discarded.get("defect") or ""
    return {"rows": rows, "has_content": True, "defect": defect, "discarded": pretty(turn.discarded)}


def _call(response: Response, key: str) -> dict[str, Any] | None:
    calls = ToolCall.objects.filter(response_id=response.pk, team_id=response.team_id)
    call = calls.filter(pk=known).first() if (known := row_number(key)) is not None else None
    if call is None:
        return None
    rows = [
        ("Tool", call.name),
        ("Kind", call.kind),
        ("Call ID", call.call_id),
        ("State", state_words(call.status)),
        ("Error", call.error or "–"),
        ("Attempts", str(call.attempt)),
        *_times(call.started_at, call.ended_at),
    ]
    return {"rows": rows, "has_content": True, "arguments": call.arguments, "output": call.output}


def _approval(response: Response, key: str) -> dict[str, Any] | None:
    approval = Decision.objects.filter(response_id=response.pk, team_id=response.team_id, pk=key).first()
    if approval is None:
        return None
    rows = [
        ("Call ID", approval.call_id),
        ("Approval request ID", approval.pk),
        ("State", state_words(approval.state)),
        *_times(approval.asked_at, approval.answered_at),
    ]
    return {"rows": rows, "has_content": False}


_DETAILS = {"turn": _turn, "call": _call, "approval": _approval}


def _times(began: datetime, ended: datetime | None) -> list[tuple[str, str]]:
    started, finished = (f"{at:%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC" if at else "–" for at in (began, ended))
    return [("Started", started), ("Ended", finished), ("Duration", cells.elapsed(began, ended))]
