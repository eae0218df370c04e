"""Events tab, and the event log as JSON for the replay."""

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse

from console.widgets import duration, size
from responses.admin.response import event_log
from responses.admin.response.span_details import download
from responses.models import Response
from tenants.console.content_access import audit_read, hidden_notice, may_read

SPEEDS = (1, 4, 16)


def events(request: HttpRequest, response: Response) -> dict[str, Any]:
    """Return a page of the log, filtered by `?type=`. Viewers who may read content also get the replay."""
    can_read = may_read(request, response.team_id)
    chosen = request.GET.get("type", "")
    found = event_log.read(response, first=number(request, "from"), event_type=chosen)
    return {
        "events": [_row(event, response) for event in found.events],
        "first": number(request, "from"),
        "following": found.following,
        "logged": event_log.count(response),
        "types": sorted(event_log.types(response).items()),
        "chosen": chosen,
        "can_read": can_read,
        "hidden": "" if can_read else hidden_notice(request, response.team_id),
        "log_url": reverse("admin:responses_response_log", args=[response.pk]),
        "speeds": SPEEDS,
    }


def event_log_json(request: HttpRequest, response: Response) -> HttpResponse:
    """Serve a page of the log as JSON, from `?from=` on. `?whole=1` downloads one event.

    Viewers who may not read content get numbers, types, sizes and times.
    """
    can_read = may_read(request, response.team_id)
    if can_read:
        audit_read(request, response, team_id=response.team_id)
    first = number(request, "from")
    if request.GET.get("whole"):
        found = event_log.read(response, first=first, limit=1)
        text = found.events[0].data if found.events and can_read else ""
        return download(text, f"{response.pk}-event-{first}.json", "application/json")
    found = event_log.read(response, first=first)
    listed = [_event_json(event, response, can_read=can_read) for event in found.events]
    return JsonResponse(
        {"events": listed, "next": found.following, "total": event_log.count(response), "readable": can_read}
    )


def number(request: HttpRequest, name: str) -> int:
    """Return a query parameter as a number, 0 if it is missing or not a number."""
    text = request.GET.get(name, "")
    return int(text) if text.isdecimal() and len(text) <= 9 else 0


def _event_json(event: event_log.LoggedEvent, response: Response, *, can_read: bool) -> dict[str, Any]:
    bare = {"n": event.number, "type": event.type, "size": event.size, "t": _milliseconds(event, response)}
    if not can_read:
        return bare
    return {**bare, "large": True} if event.size > event_log.MAX_INLINE_BYTES else {**bare, "data": event.data}


def _row(event: event_log.LoggedEvent, response: Response) -> dict[str, Any]:
    return {
        "number": event.number,
        "type": event.type,
        "size": size(event.size),
        "at": f"{event.stored_at:%H:%M:%S.%f}"[:-3],
        "offset": duration(_milliseconds(event, response)),
    }


def _milliseconds(event: event_log.LoggedEvent, response: Response) -> int:
    # Batches have a time, events do not. Clocks of web and worker hosts may differ: never negative.
    return max(0, round((event.stored_at - response.created_at).total_seconds() * 1000))
