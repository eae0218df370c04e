"""Content of an expanded row of the list of responses."""

from collections.abc import Sequence

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.views.decorators.http import require_safe

from console.markdown import without_markup
from console.widgets import copyable, duration, state_words
from conversations.models import Placement, Section
from responses.admin import cells
from responses.admin.response.targets import targets_line
from responses.models import Response, ToolCall
from responses.runs import selectors
from responses.runs.rows import preview
from tenants.console.content_access import HIDDEN, audit_read
from tenants.console.viewer import Viewer

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


@require_safe
def summary(request: HttpRequest, viewer: Viewer, response: Response) -> HttpResponse:
    """Serve the content of an expanded row of the list: one line per item and tool call.

    Content is masked for users who may not read it.
    """
    inputs = selectors.own_items(response=response, section=Section.INPUT, limit=MAX_LINES)
    outputs = selectors.own_items(response=response, section=Section.OUTPUT, limit=MAX_LINES)
    calls = ToolCall.objects.filter(response_id=response.pk, team_id=response.team_id).order_by("turn", "id")
    is_readable = viewer.may_read(response.team_id)
    if is_readable and (inputs or outputs):
        audit_read(viewer, response, team_id=response.team_id)

    def lines(placements: Sequence[Placement]) -> list[dict[str, str]]:
        found = []
        for body in (placement.item.body for placement in placements):
            kind, author = body["type"], body.get("role") or body.get("name")
            # Calls and their outputs have no preview: show the beginning of the arguments or the output.
            text = without_markup(preview(body)) or str(body.get("arguments") or body.get("output") or "")[:120]
            label = f"{state_words(kind)} · {author}" if author else state_words(kind)
            shown = text if is_readable or not text else HIDDEN
            found.append({"icon": _ICONS.get(kind, "data_object"), "kind": label, "text": shown})
        return found

    context = {
        "response": response,
        "id_link": copyable(response.pk, href=cells.url(response.pk)),
        "input": lines(inputs),
        "output": lines(outputs),
        "calls": [
            {"call": call, "state": state_words(call.status), "took": duration(call.duration_ms)}
            for call in calls[:MAX_LINES]
        ],
        "error": response.error,
        "targets": cells.planned_start(response) or targets_line(response),
        "readable": is_readable,
    }
    return TemplateResponse(request, "admin/responses/response/summary.html", context)
