"""Export of responses with their input and output, as JSON Lines."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
from django.http import HttpRequest, StreamingHttpResponse

from console.scans import Position, ScanPlan
from conversations.models import Placement, Section
from core.clock import now
from core.db.db_threads import in_db_thread
from responses.models import Response
from responses.runs import selectors
from tenants import scope
from tenants.console.audited_admin import audit_row
from tenants.console.content_access import audit_team_reads
from tenants.console.roles import CONTRIBUTORS, OPERATORS, Roles
from tenants.console.viewer import viewer_of
from tenants.models import Team

EXPORTERS: Roles = CONTRIBUTORS | OPERATORS
# Number of responses whose ids, and whose content, are read at a time, which bounds the memory of an export.
_SCAN_BATCH, _EXPORT_BATCH = 1000, 25
_EXPORTED_COLUMNS = (
    "id", "created_at", "ended_at", "status", "mode", "background", "team_id", "api_key_id", "model", "upstream_model",
    "previous_response_id", "conversation_id", "end_user", "request_id", "client_request_id", "first_token_ms",
    "duration_ms", "turns", "tool_calls", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "cost",
    "error_code", "incomplete_reason",
)  # fmt: skip


def export_responses(request: HttpRequest, plan: ScanPlan) -> StreamingHttpResponse:
    """Stream all responses of a list that the user may export as JSON Lines, newest first.

    The audit log records the export for each team before its first response is sent, with the number of responses if
    they could be counted quickly.
    """
    viewer, started = viewer_of(request), now()
    teams = viewer.team_ids(EXPORTERS)
    # Responses that are created during the export are not part of it, so that it ends and has the recorded number.
    rows = plan.indexed.filter(created_at__lt=started)
    plan = replace(plan, indexed=rows if teams is None else rows.filter(team_id__in=teams))
    filters = request.GET.urlencode()[:1000]

    def record(counts: Mapping[str, int | str]) -> None:
        for team_id, count in sorted(counts.items()):
            after = {"rows": count, "filters": filters}
            audit_row(
                viewer,
                Team(pk=team_id),
                "exported",
                action="responses.exported",
                after=after,
                target="responses",
            )
        audit_team_reads(viewer, {team_id for team_id in counts if viewer.may_read(team_id)})

    counts, is_complete = plan.count_by_team()
    record({team_id: count if is_complete else f"{count} or more" for team_id, count in counts.items()})
    recorded = set(counts)

    # The body is streamed after the transaction of the request has ended, so each part opens the scope again.
    def read_ids(start: Position) -> tuple[list[str], Position | None]:
        with scope.team(*viewer.visible_teams):
            return plan.scan_part(start, limit=_SCAN_BATCH)

    def read_batch(batch: Sequence[str]) -> bytes:
        with scope.team(*viewer.visible_teams):
            found = {row.pk: row for row in Response.objects.filter(pk__in=batch)}
            # Teams whose newest response is older than the responses that were counted.
            new = {row.team_id for row in found.values()} - recorded
            record(dict.fromkeys(new, "not counted"))
            recorded.update(new)
            readable = [row for row in found.values() if row.stored and viewer.may_read(row.team_id)]
            inputs, outputs = _inputs([row.pk for row in readable]), selectors.outputs(readable)
        lines = []
        for row in (found[row_id] for row_id in batch if row_id in found):
            line: dict[str, Any] = {name: getattr(row, name) for name in _EXPORTED_COLUMNS}
            # A string: JSON readers would round a decimal number.
            line["cost"] = None if row.cost is None else str(row.cost)
            # Without access to the content, a line has the metrics only.
            if row in readable:
                line["input"] = inputs.get(row.pk, [])
                line["response"] = selectors.public_body(row, outputs.get(row.pk, []))
            lines.append(orjson.dumps(line) + b"\n")
        return b"".join(lines)

    async def stream() -> AsyncGenerator[bytes, None]:
        position: Position | None = (started, "")
        while position is not None:
            ids, position = await in_db_thread(partial(read_ids, position))
            for first in range(0, len(ids), _EXPORT_BATCH):
                yield await in_db_thread(partial(read_batch, ids[first : first + _EXPORT_BATCH]))

    name = f"responses-{now():%Y%m%d-%H%M%S}.jsonl"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return StreamingHttpResponse(stream(), content_type="application/jsonl", headers=headers)


def _inputs(ids: Sequence[str]) -> dict[str, list[Any]]:
    placements = Placement.objects.filter(owner__in=ids, section=Section.INPUT).select_related("item")
    found: dict[str, list[Any]] = {}
    for placement in placements.order_by("owner", "position"):
        found.setdefault(placement.owner, []).append(placement.item.body)
    return found
