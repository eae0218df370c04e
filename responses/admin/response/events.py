"""The tab with the event log, and the log as JSON, from which the replay makes the transcript grow again."""

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
    """A page of the log, which `?type=` narrows; the replay for those who may read."""
    can_read = may_read(request, response.team_id)
    chosen = request.GET.get("type", "")
    found = event_log.read(response, first=number(request, "from"), of_type=chosen)
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
    """A bounded piece of the log as JSON, from `?from=` on; `?whole=1` is one event as a file.

    Who may not read content gets numbers, types, sizes and times.
    """
    can_read = may_read(request, response.team_id)
    if can_read:
        audit_read(request, response, team_id=response.team_id)
    first = number(request, "from")
    if request.GET.get("whole"):
        found = event_log.read(response, first=first, most=1)
        text = found.events[0].data if found.events and can_read else ""
        return download(text, f"{response.pk}-event-{first}.json", "application/json")
    found = event_log.read(response, first=first)
    told = [_told(event, response, can_read=can_read) for event in found.events]
    return JsonResponse(
        {"events": told, "next": found.following, "total": event_log.count(response), "readable": can_read}
    )


def number(request: HttpRequest, name: str) -> int:
    """A parameter of the address that is a number; 0 for what is none."""
    text = request.GET.get(name, "")
    return int(text) if text.isdecimal() and len(text) <= 9 else 0


def _told(event: event_log.LoggedEvent, response: Response, *, can_read: bool) -> dict[str, Any]:
    bare = {"n": event.number, "type": event.type, "size": event.size, "t": _milliseconds(event, response)}
    if not can_read:
        return bare
    return {**bare, "large": True} if event.size > event_log.LARGEST else {**bare, "data": event.data}


def _row(event: event_log.LoggedEvent, response: Response) -> dict[str, Any]:
    return {
        "number": event.number,
        "type": event.type,
        "size": size(event.size),
        "at": f"{event.stored_at:%H:%M:%S.%f}"[:-3],
        "offset": duration(_milliseconds(event, response)),
    }


def _milliseconds(event: event_log.LoggedEvent, response: Response) -> int:
    """How long after the response was created its batch was stored."""
    return max(0, round((event.stored_at - response.created_at).total_seconds() * 1000))
