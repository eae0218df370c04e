"""Transcript tab: the items of a response, and its details in the side panel."""

from typing import Any

from django.http import HttpRequest
from django.urls import reverse
from django.utils.http import urlencode

from console.widgets import when
from responses.admin import cells
from responses.admin.transcript.entries import SHOWN_ITEMS, transcript
from responses.models import Response, ToolCall
from tenants.console.content_access import may_read

_SHOWN_FOLLOWERS = 5


def read_transcript(request: HttpRequest, response: Response) -> dict[str, Any]:
    """Return the items and details. Items and metadata are content: viewers without read access get neither."""
    metadata = response.metadata if may_read(request, response.team_id) else {}
    return {**_details(response), **transcript(request, response, _call_rows(response)), "metadata": metadata}


def _details(response: Response) -> dict[str, Any]:
    # The list of usage records is bounded by time: without a start it would show recent ones only.
    ledger = {"object_id": response.pk, "occurred_at_from_0": f"{response.created_at:%Y-%m-%d}"}
    return {
        "key_link": cells.key(response),
        "created": when(response.created_at),
        "ended": when(response.ended_at),
        "previous_url": cells.url(response.previous_response_id) if response.previous_response_id else "",
        "ledger_url": f"{reverse('admin:tenants_usagerecord_changelist')}?{urlencode(ledger)}",
        "prompt": response.parameters.get("prompt"),
        "moderation": cells.moderation_results(response),
        "followers": _followers(response),
    }


def _call_rows(response: Response) -> list[ToolCall]:
    # The input may contain outputs of calls that the previous response made: its calls come first.
    owners = [owner for owner in (response.previous_response_id, response.pk) if owner]
    rows = ToolCall.objects.filter(response_id__in=owners, team_id=response.team_id).order_by("turn", "id")
    return sorted(rows[: 2 * SHOWN_ITEMS], key=lambda row: row.response_id == response.pk)


def _followers(response: Response) -> list[dict[str, str]]:
    rows = Response.objects.filter(previous_response_id=response.pk, team_id=response.team_id)
    return [
        {"id": row.pk, "url": cells.url(row.pk)} for row in rows.only("id").order_by("created_at")[:_SHOWN_FOLLOWERS]
    ]
