"""Details of one bar of the waterfall (a turn, a tool call or an approval), loaded when the bar is opened."""

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from console.widgets import duration, pretty
from responses.models import Approval, Response, ToolCall, Turn
from tenants.console.content_access import audit_read, hidden_notice, may_read

_PAYLOADS = ("arguments", "output")


def span_details(request: HttpRequest, response: Response, key: str) -> HttpResponse:
    """Serve the details of one bar as an HTML fragment. `?whole=output` downloads a payload."""
    kind, _, name = key.partition("-")
    readers = {"turn": _turn, "call": _call, "approval": _approval}
    if kind not in readers:
        raise Http404
    details = readers[kind](response, name)
    if details is None:
        raise Http404
    can_read = may_read(request, response.team_id)
    whole = request.GET.get("whole")
    # A payload may be megabytes; the fragment shows its beginning.
    if whole in _PAYLOADS and can_read and details.get(whole) is not None:
        audit_read(request, response, team_id=response.team_id)
        return download(details[whole], f"{response.pk}-{key}-{whole}.txt")
    if can_read and details["has_content"]:
        audit_read(request, response, team_id=response.team_id)
    context = {
        **details,
        "key": key,
        "response": response,
        "can_read": can_read,
        "hidden": "" if can_read or not details["has_content"] else hidden_notice(request, response.team_id),
        "payloads": _payloads(details) if can_read else [],
    }
    return TemplateResponse(request, "admin/responses/response/span.html", context)


def download(text: str, name: str, kind: str = "text/plain") -> HttpResponse:
    """Return a text as a download that no browser interprets."""
    answer = HttpResponse(text, content_type=f"{kind}; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="{name}"'
    answer["X-Content-Type-Options"] = "nosniff"
    return answer


def _payloads(details: dict[str, Any]) -> list[dict[str, Any]]:
    found = [(name, details.get(name)) for name in _PAYLOADS]
    return [{"name": name, "code": pretty(text)} for name, text in found if text]


def _turn(response: Response, number: str) -> dict[str, Any] | None:
    if not number.isdecimal():
        return None
    turn = Turn.objects.filter(response_id=response.pk, team_id=response.team_id, number=int(number)).first()
    if turn is None:
        return None
    rows = [
        ("State", turn.state),
        ("Finish reason", turn.finish_reason or "–"),
        ("Input", f"{turn.input_tokens:,} tokens"),
        ("Cached input", f"{turn.cached_tokens:,}"),
        ("Cache writes", f"{turn.cache_write_tokens:,}"),
        ("Output", f"{turn.output_tokens:,} tokens"),
        ("Reasoning", f"{turn.reasoning_tokens:,}"),
        ("Upstream", f"{response.upstream_model} at {response.upstream_id}"),
        ("Upstream request ID", turn.upstream_request_id or "–"),
        *_times(turn.started_at, turn.ended_at),
    ]
    return {"rows": rows, "has_content": turn.discarded is not None, **_discarded(turn)}


def _discarded(turn: Turn) -> dict[str, Any]:
    if turn.discarded is None:
        return {}
    return {"defect": turn.discarded.get("defect") or "", "discarded": pretty(turn.discarded)}


def _call(response: Response, key: str) -> dict[str, Any] | None:
    if not key.isdecimal():
        return None
    row = ToolCall.objects.filter(response_id=response.pk, team_id=response.team_id, pk=int(key)).first()
    if row is None:
        return None
    rows = [
        ("Tool", row.name),
        ("Kind", row.kind),
        ("Call ID", row.call_id),
        ("State", row.status),
        ("Error", row.error or "–"),
        ("Attempts", str(row.attempt)),
        *_times(row.started_at, row.ended_at),
    ]
    return {"rows": rows, "has_content": True, "arguments": row.arguments, "output": row.output}


def _approval(response: Response, key: str) -> dict[str, Any] | None:
    row = Approval.objects.filter(response_id=response.pk, team_id=response.team_id, pk=key).first()
    if row is None:
        return None
    rows = [
        ("Call ID", row.call_id),
        ("Approval request ID", row.pk),
        ("State", row.state),
        *_times(row.asked_at, row.answered_at),
    ]
    return {"rows": rows, "has_content": False}


def _times(began: Any, ended: Any) -> list[tuple[str, Any]]:
    took = None if ended is None else max(0, round((ended - began).total_seconds() * 1000))
    return [("Started", _timestamp(began)), ("Ended", _timestamp(ended)), ("Duration", duration(took))]


def _timestamp(moment: Any) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC" if moment else "–"
