"""Export of responses as JSON Lines, streamed in batches."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
from django.db.models import Count
from django.http import HttpRequest, StreamingHttpResponse

from conversations.models import Placement, Section
from kernel.clock import now
from kernel.db_threads import in_db_thread
from responses.models import Response
from responses.runs import selectors
from tenants import scope
from tenants.console.audited_admin import audit_row
from tenants.console.content_access import audit_team_reads
from tenants.console.roles import CONTRIBUTORS, OPERATORS, Roles, everywhere, may, teams_of
from tenants.console.viewer import Viewer, viewer
from tenants.models import Team

EXPORTERS: Roles = CONTRIBUTORS | OPERATORS
MOST_ROWS = 10_000
# Responses read at a time: bounds the memory of one export.
_BATCH = 25
_COLUMNS = (
    "id", "created_at", "ended_at", "status", "mode", "background", "team_id", "api_key_id", "model", "upstream_model",
    "previous_response_id", "conversation_id", "end_user", "request_id", "client_request_id", "first_token_ms",
    "duration_ms", "turns", "tool_calls", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "cost",
    "error_code", "incomplete_reason",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """Ids to export, newest first, and the user who exports them."""

    ids: Sequence[str]
    user: Viewer


def may_export(request: HttpRequest) -> bool:
    """Return whether the user may export responses of at least one team."""
    return may(request, EXPORTERS)


def export(request: HttpRequest, ids: Iterable[str]) -> StreamingHttpResponse:
    """Stream the responses that the user may export; the audit log records the number per team."""
    rows = Response.objects.filter(pk__in=list(ids)[:MOST_ROWS])
    if not everywhere(request, EXPORTERS):
        rows = rows.filter(team_id__in=teams_of(request, EXPORTERS))
    user = viewer(request)
    counts = dict(rows.values_list("team_id").annotate(rows=Count("pk")).order_by())
    for team_id, count in sorted(counts.items()):
        after = {"rows": count, "filters": request.GET.urlencode()[:1000]}
        audit_row(request, Team(pk=team_id), "exported", action="responses.exported", after=after, target="responses")
    audit_team_reads(user, {team_id for team_id in counts if user.may_read(team_id)})
    exported = list(rows.order_by("-created_at", "-id").values_list("pk", flat=True))
    name = f"responses-{now():%Y%m%d-%H%M%S}.jsonl"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    lines = _lines(ExportRequest(ids=exported, user=user))
    return StreamingHttpResponse(lines, content_type="application/jsonl", headers=headers)


async def _lines(request: ExportRequest) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(request.ids), _BATCH):
        yield await in_db_thread(partial(_batch, request, request.ids[start : start + _BATCH]))


def _batch(request: ExportRequest, ids: Sequence[str]) -> bytes:
    # The stream runs after the request's transaction, so row-level security needs the user's teams again.
    with scope.team(*request.user.visible_teams):
        rows = {row.pk: row for row in Response.objects.filter(pk__in=ids)}
        readable = [row.pk for row in rows.values() if request.user.may_read(row.team_id)]
        inputs, outputs = _inputs(readable), selectors.outputs([rows[row_id] for row_id in readable])
    ordered = [rows[row_id] for row_id in ids if row_id in rows]
    return b"".join(_line(row, inputs, outputs, is_readable=row.pk in set(readable)) for row in ordered)


def _inputs(ids: Sequence[str]) -> dict[str, list[Any]]:
    placements = Placement.objects.filter(owner__in=ids, section=Section.INPUT).select_related("item")
    found: dict[str, list[Any]] = {}
    for placement in placements.order_by("owner", "position"):
        found.setdefault(placement.owner, []).append(placement.item.body)
    return found


def _line(row: Response, inputs: dict[str, list[Any]], outputs: dict[str, list[Any]], *, is_readable: bool) -> bytes:
    line: dict[str, Any] = {name: getattr(row, name) for name in _COLUMNS}
    # A string: JSON readers would round a decimal number.
    line["cost"] = None if row.cost is None else str(row.cost)
    # Without access to the content, a line has the metrics only.
    if is_readable and row.stored:
        line["input"] = inputs.get(row.pk, [])
        line["response"] = selectors.public_body(row, outputs.get(row.pk, []))
    return orjson.dumps(line) + b"\n"
