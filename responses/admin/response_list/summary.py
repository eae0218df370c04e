"""What a row of the list shows when it is opened: the items and the tool calls of a response, a line each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest

from console.widgets import duration
from conversations.models import Placement, Section
from responses.admin import cells
from responses.models import Response, ToolCall
from responses.runs import selectors
from responses.runs.recorder import preview
from tenants.console.content_access import audit_read, may_read, words

SHOWN = 20
_ICONS = {
    "message": "chat",
    "reasoning": "psychology",
    "function_call": "function",
    "function_call_output": "output",
    "mcp_call": "cable",
    "web_search_call": "travel_explore",
    "file_search_call": "manage_search",
    "code_interpreter_call": "terminal",
    "image_generation_call": "image",
    "compaction": "compress",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """An item: what it is, who says it, and its first words."""

    icon: str
    kind: str
    said: str


def summary(request: HttpRequest, response: Response) -> dict[str, Any]:
    """The context of the template."""
    asked = selectors.own_items(response=response, section=Section.INPUT, limit=SHOWN)
    answered = selectors.own_items(response=response, section=Section.OUTPUT, limit=SHOWN)
    calls = ToolCall.objects.filter(response_id=response.pk, team_id=response.team_id).order_by("turn", "id")[:SHOWN]
    if may_read(request, response.team_id) and (asked or answered):
        audit_read(request, response, team_id=response.team_id)
    return {
        "response": response,
        "url": cells.url(response.pk),
        "input": _lines(request, response, asked),
        "output": _lines(request, response, answered),
        "calls": [_call(call) for call in calls],
        "error": response.error,
        "readable": may_read(request, response.team_id),
    }


def _lines(request: HttpRequest, response: Response, places: Sequence[Placement]) -> list[Line]:
    return [_line(request, response.team_id, place.item.body) for place in places]


def _line(request: HttpRequest, team_id: str, body: dict[str, Any]) -> Line:
    kind = str(body["type"])
    who = body.get("role") or body.get("name") or ""
    said = preview(body) or str(body.get("arguments") or body.get("output") or "")[:120]
    named = f"{kind.replace('_', ' ')} · {who}" if who else kind.replace("_", " ")
    return Line(icon=_ICONS.get(kind, "data_object"), kind=named, said=words(request, team_id, said))


def _call(call: ToolCall) -> dict[str, Any]:
    spent = None if call.ended_at is None else round((call.ended_at - call.started_at).total_seconds() * 1000)
    return {"call": call, "took": duration(None if spent is None else max(0, spent))}
