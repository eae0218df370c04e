"""Timeline tab: a waterfall of the run, from its turns, tool calls, approvals and claims.

Timing is not content, so every viewer of the response sees it. The details of a bar are loaded when it is opened
(`span_details`).
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from console.widgets import duration
from conversations.models import Placement, Section
from kernel.clock import now
from responses.admin import cells
from responses.admin.response.waterfall import WORK, Gap, SpanKind, TraceSpan, Waterfall, WaterfallBar, waterfall
from responses.models import RUNNING, Approval, Response, Status, ToolCall, Turn

# Bounds for one page view: the layout needs all spans at the same time, and a run may have tens of thousands.
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
_ICONS = {
    SpanKind.QUEUE: "hourglass_top",
    SpanKind.RUN: "memory",
    SpanKind.MODEL: "neurology",
    SpanKind.TOOL: "build",
    SpanKind.APPROVAL: "front_hand",
    SpanKind.CLIENT: "devices",
    SpanKind.LOST: "link_off",
}
_LABELS = {
    SpanKind.QUEUE: "waiting in the queue",
    SpanKind.RUN: "attempt",
    SpanKind.MODEL: "model call",
    SpanKind.TOOL: "tool call",
    SpanKind.APPROVAL: "waiting for approval",
    SpanKind.CLIENT: "waiting for the client",
    SpanKind.LOST: "lost work",
}
_TOTALS = {SpanKind.QUEUE: "Queue", SpanKind.MODEL: "Model", SpanKind.TOOL: "Tools", SpanKind.LOST: "Lost work"}
_ERROR_STATES = frozenset({"failed", "refused"})
_WARNING_STATES = frozenset(
    {"discarded", "abandoned", "compacted", "length", "content_filter", "interrupted", "denied"}
)


def timeline(request: HttpRequest, response: Response) -> dict[str, Any]:
    """Return the waterfall of a run, up to now while it continues. `?from=` is the first row of a long one."""
    present = now()
    chart = waterfall(_spans(response), began=response.created_at, ended=response.ended_at, present=present)
    first = _number(request.GET.get("from"))
    shown = chart.bars[first : first + PAGE]
    return {
        "rows": [_row(bar, chart, response) for bar in shown],
        "first": first,
        "following": first + PAGE if len(chart.bars) > first + PAGE else None,
        "bars": len(chart.bars),
        "ticks": [{"at": _share(tick, chart), "label": _tick(tick)} for tick in chart.ticks],
        "overview": _overview(chart),
        "gaps": [
            {"start": _share(gap.start, chart), "width": _share(gap.length, chart)} for gap in _visible_gaps(chart)
        ],
        "overhead": duration(round(chart.overhead)),
        "run": duration(round(chart.run)),
        "totals": _totals(chart),
        "present": present,
        "was_cut": response.turns > MAX_TURNS or response.tool_calls > MAX_CALLS,
    }


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 8 else 0


# -- from database rows to spans ---------------------------------------------------------------------------------------


def _spans(response: Response) -> list[TraceSpan]:
    turns = _turns(response)
    calls = _calls(response)
    approvals = Approval.objects.filter(response_id=response.pk, team_id=response.team_id).order_by("asked_at")
    spans = [
        *_queue_and_attempts(response),
        *map(_turn, turns),
        *_hosted_calls(calls),
        *_approvals(list(approvals[:MAX_TURNS]), calls),
        *_client_calls(response, calls),
    ]
    return [*spans, *_lost_work(response, spans), *_current_model_call(response, spans)]


def _turns(response: Response) -> Sequence[Turn]:
    rows = Turn.objects.filter(response_id=response.pk, team_id=response.team_id)
    return list(rows.defer("discarded").order_by("number")[:MAX_TURNS])


def _calls(response: Response) -> Sequence[ToolCall]:
    # Arguments and output may be megabytes, and the waterfall needs neither.
    rows = ToolCall.objects.filter(response_id=response.pk, team_id=response.team_id)
    return list(rows.defer("arguments", "output", "result").order_by("turn", "id")[:MAX_CALLS])


def claims_of(response: Response) -> list[tuple[datetime, str]]:
    """Return when workers claimed the run (UTC), and their names, oldest first."""
    return [(datetime.fromisoformat(claim["at"]).astimezone(UTC), claim["by"]) for claim in response.claims]


def _queue_and_attempts(response: Response) -> Iterable[TraceSpan]:
    if not response.background:
        return
    # Responses from before claims were recorded have turns but no claims: their time in the queue is unknown.
    claims = claims_of(response)
    if claims or response.status == Status.QUEUED or not response.turns:
        until = claims[0][0] if claims else response.ended_at
        yield TraceSpan(key="queue", kind=SpanKind.QUEUE, name="Queue", began=response.created_at, ended=until, level=0)
    for number, (at, by) in enumerate(claims, 1):
        until = claims[number][0] if number < len(claims) else response.ended_at
        state = "lost" if number < len(claims) else ""
        yield TraceSpan(
            key=f"attempt-{number}", kind=SpanKind.RUN, name=f"Attempt {number}", began=at, ended=until, note=by,
            state=state, level=0,
        )  # fmt: skip


def _turn(turn: Turn) -> TraceSpan:
    tokens = f"{turn.input_tokens:,} in, {turn.output_tokens:,} out"
    return TraceSpan(
        key=f"turn-{turn.number}",
        kind=SpanKind.MODEL,
        name=f"Turn {turn.number + 1}",
        began=turn.started_at,
        ended=turn.ended_at,
        state=turn.state,
        note=tokens,
        mark=turn.first_token_at,
    )


def _is_client_call(call: ToolCall) -> bool:
    # A function call that was refused never reached the client: it is shown as a tool call of the server.
    return call.kind == "function" and call.status != "refused"


def _hosted_calls(calls: Iterable[ToolCall]) -> Iterable[TraceSpan]:
    for call in calls:
        if _is_client_call(call) or call.status in {"asked", "approved", "denied"}:
            # No server time: the client runs it, or it waits for approval and has an approval span.
            continue
        retry = f"attempt {call.attempt}" if call.attempt > 1 else ""
        yield TraceSpan(
            key=f"call-{call.pk}",
            kind=SpanKind.TOOL,
            name=call.name,
            began=call.started_at,
            ended=call.ended_at,
            state=call.status,
            note=", ".join(filter(None, (call.kind, retry))),
            level=2,
        )


def _approvals(approvals: Iterable[Approval], calls: Iterable[ToolCall]) -> Iterable[TraceSpan]:
    names = {call.call_id: call.name for call in calls}
    for approval in approvals:
        yield TraceSpan(
            key=f"approval-{approval.pk}",
            kind=SpanKind.APPROVAL,
            name=names.get(approval.call_id, "approval"),
            began=approval.asked_at,
            ended=approval.answered_at,
            state=approval.state,
            level=2,
            ended_by=approval.answered_in or "",
        )


def _client_calls(response: Response, calls: Iterable[ToolCall]) -> Iterable[TraceSpan]:
    client_calls = [call for call in calls if _is_client_call(call)]
    answers = _answers(response) if client_calls else {}
    for call in client_calls:
        moment, follower = answers.get(call.call_id, (None, ""))
        ended = call.ended_at or moment
        yield TraceSpan(
            key=f"call-{call.pk}",
            kind=SpanKind.CLIENT,
            name=call.name,
            began=call.started_at,
            ended=ended,
            state="answered" if ended else "waiting",
            note="run by the client",
            level=2,
            ended_by=follower,
        )


def _answers(response: Response) -> Mapping[str, tuple[datetime, str]]:
    """Return, by call id, when the first later response sent the output of the call, and the id of that response."""
    rows = Response.objects.filter(team_id=response.team_id).order_by("created_at").values_list("pk", "created_at")
    moments = dict(rows.filter(previous_response_id=response.pk)[:_MAX_FOLLOWERS])
    if response.conversation_id:
        later = rows.filter(conversation_id=response.conversation_id, created_at__gt=response.created_at)
        moments |= dict(later[:_MAX_FOLLOWERS])
    places = Placement.objects.filter(owner__in=moments, team_id=response.team_id, section=Section.INPUT)
    sent = places.filter(item__type__in=_OUTPUT_TYPES).values_list("owner", "item__body__call_id")[:_MAX_ANSWERS]
    # The same output may be sent again in later turns of a conversation: the first time counts.
    first: dict[str, tuple[datetime, str]] = {}
    for owner, call_id in sorted(sent, key=lambda row: moments[row[0]]):
        first.setdefault(call_id, (moments[owner], owner))
    return first


def _lost_work(response: Response, spans: Sequence[TraceSpan]) -> Iterable[TraceSpan]:
    # From the last stored row of an attempt to the next claim: work that was lost, and the wait for the sweeper and
    # for a worker. No row separates the two.
    claims = claims_of(response)
    for number, ((at, _), (until, _)) in enumerate(pairwise(claims), 1):
        ends = [one.ended for one in spans if one.kind in WORK and one.ended is not None and one.ended <= until]
        since = max([at, *ends])
        yield TraceSpan(
            key=f"lost-{number}",
            kind=SpanKind.LOST,
            name="Lost work",
            began=since,
            ended=until,
            note="not stored when the worker was lost",
        )


def _current_model_call(response: Response, spans: Sequence[TraceSpan]) -> Iterable[TraceSpan]:
    # A turn gets its row when it ends. While a run is active and no tool runs, the model is being called.
    work = [one for one in spans if one.kind in WORK]
    if response.status not in RUNNING or any(one.ended is None for one in work):
        return
    since = max((one.ended for one in work if one.ended), default=response.created_at)
    yield TraceSpan(
        key="now", kind=SpanKind.MODEL, name=f"Turn {response.turns + 1}", began=since, ended=None, state="in_progress"
    )


# -- from bars to the template -----------------------------------------------------------------------------------------


def _row(bar: WaterfallBar, chart: Waterfall, response: Response) -> dict[str, Any]:
    span = bar.span
    details = span.key if span.key.partition("-")[0] in {"turn", "call", "approval"} else None
    return {
        "bar": bar,
        "span": span,
        "icon": _ICONS[span.kind],
        "label": _LABELS[span.kind],
        "tone": "bad" if span.state in _ERROR_STATES else "odd" if span.state in _WARNING_STATES else "",
        "start": _share(bar.start, chart),
        "width": _share(min(bar.end, chart.scale) - bar.start, chart),
        "mark": _share(bar.mark, chart) if bar.mark is not None else None,
        "length": duration(round(bar.length)),
        "first_token": duration(round(bar.mark - bar.start)) if bar.mark is not None else "",
        "offset": duration(round(bar.start)),
        "began": _clock(span.began),
        "ended": _clock(span.ended) if span.ended else "still running" if bar.is_open else "end of run",
        "url": reverse("admin:responses_response_span", args=[response.pk, details]) if details else "",
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


def _overview(chart: Waterfall) -> dict[str, Any]:
    # One SVG path for each kind keeps the overview small even with thousands of bars. Attempts are left out: they
    # enclose everything else.
    lanes = min(chart.lanes, _MAX_LANES)
    paths: dict[str, list[str]] = {}
    for bar in chart.bars:
        if bar.span.kind is SpanKind.RUN or bar.lane >= lanes:
            continue
        x, width = 1000 * bar.start / chart.scale, 1000 * (min(bar.end, chart.scale) - bar.start) / chart.scale
        kind = bar.span.kind.value
        paths.setdefault(kind, []).append(f"M{x:.1f} {bar.lane * 10 + 1}h{max(width, 1):.1f}v8H{x:.1f}z")
    return {"height": lanes * 10, "paths": {kind: "".join(pieces) for kind, pieces in paths.items()}}


def _visible_gaps(chart: Waterfall) -> list[Gap]:
    return [gap for gap in chart.gaps if gap.length > chart.scale / _MIN_VISIBLE_SHARE]


def _totals(chart: Waterfall) -> list[dict[str, str]]:
    """Return the total duration of each kind of work, and how much of it is on the critical path."""
    totals = []
    for kind, label in _TOTALS.items():
        bars = [bar for bar in chart.bars if bar.span.kind is kind]
        if bars:
            total, critical = (sum(b.length for b in some) for some in (bars, [b for b in bars if b.is_critical]))
            totals.append(
                {
                    "kind": kind.value,
                    "label": label,
                    "total": duration(round(total)),
                    "critical": duration(round(critical)),
                }
            )
    return totals
