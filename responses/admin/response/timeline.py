"""The tab with the waterfall: where the time of a response went, from its rows. Timing is no content: whoever sees the
row sees it. What a bar stands for is loaded when it is opened (`spans`)."""

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
from responses.admin.response.waterfall import WORK, Bar, Gap, Kind, Stretch, Waterfall, waterfall
from responses.models import RUNNING, Approval, Response, Status, ToolCall, Turn

READ_TURNS = 2000
READ_CALLS = 5000
PAGE = 200
_FOLLOWERS = 5
_ANSWERS = 500
_LANES = 12
_SEEN = 250
_OUTPUTS = ("function_call_output", "custom_tool_call_output", "computer_call_output", "shell_call_output",
            "local_shell_call_output", "apply_patch_call_output", "tool_search_output")  # fmt: skip
_ICONS = {
    Kind.QUEUE: "hourglass_top",
    Kind.RUN: "memory",
    Kind.MODEL: "neurology",
    Kind.TOOL: "build",
    Kind.APPROVAL: "front_hand",
    Kind.CLIENT: "devices",
    Kind.LOST: "link_off",
}
_WORDS = {
    Kind.QUEUE: "waiting in the queue",
    Kind.RUN: "attempt",
    Kind.MODEL: "model call",
    Kind.TOOL: "tool call",
    Kind.APPROVAL: "waiting for approval",
    Kind.CLIENT: "waiting for the client",
    Kind.LOST: "between workers",
}
_SUMMED = {Kind.QUEUE: "Queue", Kind.MODEL: "Model", Kind.TOOL: "Tools", Kind.LOST: "Between workers"}
_BAD = frozenset({"failed", "refused"})
_ODD = frozenset({"discarded", "abandoned", "compacted", "length", "content_filter", "interrupted", "denied"})


def timeline(request: HttpRequest, response: Response) -> dict[str, Any]:
    """The waterfall of a run, of a running one up to now; `?from=` names the first row of a long one."""
    present = now()
    found = waterfall(_stretches(response), began=response.created_at, ended=response.ended_at, present=present)
    first = _number(request.GET.get("from"))
    shown = found.bars[first : first + PAGE]
    return {
        "fall": found,
        "rows": [_row(bar, found, response) for bar in shown],
        "first": first,
        "following": first + PAGE if len(found.bars) > first + PAGE else None,
        "bars": len(found.bars),
        "ticks": [{"at": _share(tick, found), "label": _tick(tick)} for tick in found.ticks],
        "overview": _overview(found),
        "gaps": [{"start": _share(gap.start, found), "width": _share(gap.length, found)} for gap in _wide(found)],
        "overhead": duration(round(found.overhead)),
        "run": duration(round(found.run)),
        "sums": _sums(found),
        "present": present,
        "was_cut": response.turns > READ_TURNS or response.tool_calls > READ_CALLS,
    }


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 8 else 0


# -- from rows to stretches --------------------------------------------------------------------------------------------


def _stretches(response: Response) -> list[Stretch]:
    turns = _turns(response)
    calls = _calls(response)
    approvals = Approval.objects.filter(response_id=response.pk, team_id=response.team_id).order_by("asked_at")
    stretches = [
        *_queue_and_attempts(response),
        *map(_turn, turns),
        *_hosted(calls),
        *_approved(list(approvals[:READ_TURNS]), calls),
        *_left_to_client(response, calls),
    ]
    return [*stretches, *_lost(response, stretches), *_under_way(response, stretches)]


def _turns(response: Response) -> Sequence[Turn]:
    rows = Turn.objects.filter(response_id=response.pk, team_id=response.team_id)
    return list(rows.defer("discarded").order_by("number")[:READ_TURNS])


def _calls(response: Response) -> Sequence[ToolCall]:
    """Without what went in and came out, which may be megabytes."""
    rows = ToolCall.objects.filter(response_id=response.pk, team_id=response.team_id)
    return list(rows.defer("arguments", "output", "result").order_by("turn", "id")[:READ_CALLS])


def claims_of(response: Response) -> list[tuple[datetime, str]]:
    """When workers took it, and which."""
    return [(datetime.fromisoformat(claim["at"]).astimezone(UTC), claim["by"]) for claim in response.claims]


def _queue_and_attempts(response: Response) -> Iterable[Stretch]:
    if not response.background:
        return
    claims = claims_of(response)
    if claims or response.status == Status.QUEUED or not response.turns:
        until = claims[0][0] if claims else response.ended_at
        yield Stretch(key="queue", kind=Kind.QUEUE, name="Queue", began=response.created_at, ended=until, level=0)
    for number, (at, by) in enumerate(claims, 1):
        until = claims[number][0] if number < len(claims) else response.ended_at
        state = "lost" if number < len(claims) else ""
        yield Stretch(
            key=f"attempt-{number}", kind=Kind.RUN, name=f"Attempt {number}", began=at, ended=until, note=by,
            state=state, level=0,
        )  # fmt: skip


def _turn(turn: Turn) -> Stretch:
    told = f"{turn.input_tokens:,} in, {turn.output_tokens:,} out"
    return Stretch(
        key=f"turn-{turn.number}",
        kind=Kind.MODEL,
        name=f"Turn {turn.number + 1}",
        began=turn.started_at,
        ended=turn.ended_at,
        state=turn.state,
        note=told,
        mark=turn.first_token_at,
    )


def _is_clients(call: ToolCall) -> bool:
    """Whether the client runs it, unless nobody did."""
    return call.kind == "function" and call.status != "refused"


def _hosted(calls: Iterable[ToolCall]) -> Iterable[Stretch]:
    for call in calls:
        if _is_clients(call) or call.status in {"asked", "approved", "denied"}:
            continue
        again = f"attempt {call.attempt}" if call.attempt > 1 else ""
        yield Stretch(
            key=f"call-{call.pk}",
            kind=Kind.TOOL,
            name=call.name,
            began=call.started_at,
            ended=call.ended_at,
            state=call.status,
            note=", ".join(filter(None, (call.kind, again))),
            level=2,
        )


def _approved(approvals: Iterable[Approval], calls: Iterable[ToolCall]) -> Iterable[Stretch]:
    names = {call.call_id: call.name for call in calls}
    for approval in approvals:
        yield Stretch(
            key=f"approval-{approval.pk}",
            kind=Kind.APPROVAL,
            name=names.get(approval.call_id, "approval"),
            began=approval.asked_at,
            ended=approval.answered_at,
            state=approval.state,
            level=2,
            leads_to=approval.answered_in or "",
        )


def _left_to_client(response: Response, calls: Iterable[ToolCall]) -> Iterable[Stretch]:
    left = [call for call in calls if _is_clients(call)]
    answers = _answers(response) if left else {}
    for call in left:
        moment, follower = answers.get(call.call_id, (None, ""))
        ended = call.ended_at or moment
        yield Stretch(
            key=f"call-{call.pk}",
            kind=Kind.CLIENT,
            name=call.name,
            began=call.started_at,
            ended=ended,
            state="answered" if ended else "waiting",
            note="the client runs it",
            level=2,
            leads_to=follower,
        )


def _answers(response: Response) -> Mapping[str, tuple[datetime, str]]:
    """Which of the responses that follow brought the output of a call, and when."""
    rows = Response.objects.filter(team_id=response.team_id).order_by("created_at").values_list("pk", "created_at")
    moments = dict(rows.filter(previous_response_id=response.pk)[:_FOLLOWERS])
    if response.conversation_id:
        later = rows.filter(conversation_id=response.conversation_id, created_at__gt=response.created_at)
        moments |= dict(later[:_FOLLOWERS])
    places = Placement.objects.filter(owner__in=moments, team_id=response.team_id, section=Section.INPUT)
    told = places.filter(item__type__in=_OUTPUTS).values_list("owner", "item__body__call_id")[:_ANSWERS]
    first: dict[str, tuple[datetime, str]] = {}
    for owner, call_id in sorted(told, key=lambda row: moments[row[0]]):
        first.setdefault(call_id, (moments[owner], owner))
    return first


def _lost(response: Response, stretches: Sequence[Stretch]) -> Iterable[Stretch]:
    """What an attempt did last without storing it, and the wait until the next worker came: what it was of these,
    no row tells."""
    claims = claims_of(response)
    for number, ((at, _), (until, _)) in enumerate(pairwise(claims), 1):
        ends = [one.ended for one in stretches if one.kind in WORK and one.ended is not None and one.ended <= until]
        since = max([at, *ends])
        yield Stretch(
            key=f"lost-{number}",
            kind=Kind.LOST,
            name="Between workers",
            began=since,
            ended=until,
            note="of this nothing was kept",
        )


def _under_way(response: Response, stretches: Sequence[Stretch]) -> Iterable[Stretch]:
    """A turn has a row once it has ended: until then, what runs while no tool does is the model."""
    work = [one for one in stretches if one.kind in WORK]
    if response.status not in RUNNING or any(one.ended is None for one in work):
        return
    since = max((one.ended for one in work if one.ended), default=response.created_at)
    yield Stretch(
        key="now", kind=Kind.MODEL, name=f"Turn {response.turns + 1}", began=since, ended=None, state="in_progress"
    )


# -- from bars to the page ---------------------------------------------------------------------------------------------


def _row(bar: Bar, fall: Waterfall, response: Response) -> dict[str, Any]:
    stretch = bar.stretch
    details = stretch.key if stretch.key.partition("-")[0] in {"turn", "call", "approval"} else None
    return {
        "bar": bar,
        "stretch": stretch,
        "icon": _ICONS[stretch.kind],
        "word": _WORDS[stretch.kind],
        "tone": "bad" if stretch.state in _BAD else "odd" if stretch.state in _ODD else "",
        "start": _share(bar.start, fall),
        "width": _share(min(bar.end, fall.scale) - bar.start, fall),
        "mark": _share(bar.mark, fall) if bar.mark is not None else None,
        "length": duration(round(bar.length)),
        "first_token": duration(round(bar.mark - bar.start)) if bar.mark is not None else "",
        "offset": duration(round(bar.start)),
        "began": _clock(stretch.began),
        "ended": _clock(stretch.ended) if stretch.ended else "still going on" if bar.is_open else "with the run",
        "url": reverse("admin:responses_response_span", args=[response.pk, details]) if details else "",
        "leads_to": cells.url(stretch.leads_to) if stretch.leads_to else "",
    }


def _share(milliseconds: float, fall: Waterfall) -> str:
    """A place on the scale for a style sheet."""
    return f"{100 * milliseconds / fall.scale:.3f}%"


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


def _overview(fall: Waterfall) -> dict[str, Any]:
    """All bars in few lanes, one path for each kind: small however many there are. Of attempts there is no need."""
    lanes = min(fall.lanes, _LANES)
    paths: dict[str, list[str]] = {}
    for bar in fall.bars:
        if bar.stretch.kind is Kind.RUN or bar.lane >= lanes:
            continue
        x, width = 1000 * bar.start / fall.scale, 1000 * (min(bar.end, fall.scale) - bar.start) / fall.scale
        kind = bar.stretch.kind.value
        paths.setdefault(kind, []).append(f"M{x:.1f} {bar.lane * 10 + 1}h{max(width, 1):.1f}v8H{x:.1f}z")
    return {"height": lanes * 10, "paths": {kind: "".join(pieces) for kind, pieces in paths.items()}}


def _wide(fall: Waterfall) -> list[Gap]:
    """The gaps that can be seen."""
    return [gap for gap in fall.gaps if gap.length > fall.scale / _SEEN]


def _sums(fall: Waterfall) -> list[dict[str, str]]:
    """How long each kind of work took, all in all, and how much of it the end hung on."""
    sums = []
    for kind, word in _SUMMED.items():
        bars = [bar for bar in fall.bars if bar.stretch.kind is kind]
        if bars:
            total, critical = (sum(b.length for b in some) for some in (bars, [b for b in bars if b.is_critical]))
            sums.append(
                {
                    "kind": kind.value,
                    "word": word,
                    "total": duration(round(total)),
                    "critical": duration(round(critical)),
                }
            )
    return sums
