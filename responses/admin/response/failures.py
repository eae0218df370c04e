"""The failed requests to other servers of a response: model servers and MCP servers, with what each has answered.

Operators see addresses and errors of connections. Members of a team see the cause and the status, and the text of the
server without addresses if they may read content.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from engine.spans import Activity
from providers.upstream_errors import without_addresses
from responses.models import Response, Status, Turn
from tenants.console.viewer import Viewer
from tenants.models import Upstream

MAX_TURNS, MAX_SHOWN = 50, 5
_FAILED = {"state": "failed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRequest:
    """A failed request as a viewer may see it; texts are empty if they are unknown or not for this viewer."""

    turn: int | None
    began: datetime
    name: str
    cause: str
    status: int | None = None
    address: str = ""
    error: str = ""
    body: str = ""


def failed_requests(viewer: Viewer, response: Response) -> list[FailedRequest]:
    """Return the failed requests of a response, the latest first."""
    turns = Turn.objects.filter(response_id=response.pk, team_id=response.team_id, spans__contains=[_FAILED])
    rows = turns.order_by("-number").values_list("number", "spans")[:MAX_TURNS]
    spans = chain.from_iterable([(number, span) for span in reversed(stored)] for number, stored in rows)
    own = ((None, span) for span in reversed(response.spans))
    return [
        _shown(viewer, response, number, span)
        for number, span in chain(own, spans)
        if span.get("state") == "failed" and "detail" in span
    ]


def _shown(viewer: Viewer, response: Response, turn: int | None, span: dict[str, Any]) -> FailedRequest:
    detail, body = span["detail"], span["detail"].get("body", "")
    sees_addresses = viewer.sees_every_team
    if not sees_addresses:
        body = without_addresses(body) if viewer.may_read(response.team_id) else ""
    is_model = span["activity"] == Activity.ATTEMPT
    return FailedRequest(
        turn=turn,
        began=response.created_at + timedelta(milliseconds=span["began"]),
        name="" if is_model else span["name"],
        cause=detail.get("cause", ""),
        status=detail.get("status"),
        address=detail.get("address", "") if sees_addresses else "",
        error=detail.get("error", "") if sees_addresses else "",
        body=body,
    )


def failure_panel(viewer: Viewer, response: Response) -> dict[str, Any]:
    """Return the context of the panel above a failed response; empty if no other server has failed."""
    if response.status != Status.FAILED:
        return {}
    found = failed_requests(viewer, response)
    if not found:
        return {}
    upstream = Upstream.objects.filter(pk=response.upstream_id).only("name").first()
    return {
        "failed_requests": found[:MAX_SHOWN],
        "further_failures": max(0, len(found) - MAX_SHOWN),
        "failed_upstream": upstream.name if upstream is not None else response.upstream_id,
    }
