"""Expanded row of the response list: one line per item and tool call."""

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
from tenants.console.content_access import audit_read, may_read, text_or_mask

# Items per section and tool calls of an expanded row.
MAX_LINES = 20
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
class SummaryLine:
    """Item with its type, role or tool name, and the beginning of its text."""

    icon: str
    kind: str
    text: str


def summary(request: HttpRequest, response: Response) -> dict[str, Any]:
    """Return the template context; content is masked for users who may not read it."""
    inputs = selectors.own_items(response=response, section=Section.INPUT, limit=MAX_LINES)
    outputs = selectors.own_items(response=response, section=Section.OUTPUT, limit=MAX_LINES)
    calls = ToolCall.objects.filter(response_id=response.pk, team_id=response.team_id).order_by("turn", "id")[
        :MAX_LINES
    ]
    if may_read(request, response.team_id) and (inputs or outputs):
        audit_read(request, response, team_id=response.team_id)
    return {
        "response": response,
        "url": cells.url(response.pk),
        "input": _lines(request, response, inputs),
        "output": _lines(request, response, outputs),
        "calls": [_call(call) for call in calls],
        "error": response.error,
        "readable": may_read(request, response.team_id),
    }


def _lines(request: HttpRequest, response: Response, placements: Sequence[Placement]) -> list[SummaryLine]:
    return [_line(request, response.team_id, placement.item.body) for placement in placements]


def _line(request: HttpRequest, team_id: str, body: dict[str, Any]) -> SummaryLine:
    kind = str(body["type"])
    author = body.get("role") or body.get("name") or ""
    # Calls and their outputs have no preview: show the beginning of the arguments or the output.
    text = preview(body) or str(body.get("arguments") or body.get("output") or "")[:120]
    label = f"{kind.replace('_', ' ')} · {author}" if author else kind.replace("_", " ")
    return SummaryLine(icon=_ICONS.get(kind, "data_object"), kind=label, text=text_or_mask(request, team_id, text))


def _call(call: ToolCall) -> dict[str, Any]:
    elapsed_ms = None if call.ended_at is None else round((call.ended_at - call.started_at).total_seconds() * 1000)
    return {"call": call, "took": duration(None if elapsed_ms is None else max(0, elapsed_ms))}
