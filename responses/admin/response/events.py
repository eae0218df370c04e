"""Events tab, and the event log as JSON for the replay.

A log may have 100,000 events and many megabytes, so it is read in bounded pages.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse, QueryDict
from django.urls import reverse
from django.views.decorators.http import require_safe

from console.widgets import duration, size
from engine.events.fold import read_frames
from responses.admin.response.documents import download
from responses.models import EventBatch, Response
from tenants.console.content_access import read_allowed
from tenants.console.row_pages import start_of
from tenants.console.viewer import Viewer

SPEEDS = (1, 4, 16)
PAGE = 500
MAX_INLINE_BYTES = 64 * 1024
"""Events above this size are listed without their data, which can be downloaded separately."""
_MAX_PAGE_BYTES = 512 * 1024
# Maximum number of bytes read for one page, so that the search for a rare event type does not read the whole log.
_MAX_SCANNED = 8_000_000
_MAX_COUNTED = 2_000_000
_BATCHES_PER_QUERY = 20
_TYPE = re.compile(rb"^event: (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvent:
    """An event of the log. `size` is the size of its SSE frame in bytes, `stored_at` the time of writing its batch."""

    number: int
    type: str
    size: int
    stored_at: datetime
    # Milliseconds since the response was created.
    offset: int
    data: str


def events(viewer: Viewer, response: Response, query: QueryDict) -> dict[str, Any]:
    """Return a page of the log, filtered by `?type=`. Viewers who may read content also get the replay."""
    can_read = viewer.may_read(response.team_id)
    first, chosen = start_of(query), query.get("type", "")
    found, following = _read(response, first=first, event_type=chosen)
    return {
        "events": [
            {
                "number": event.number,
                "type": event.type,
                "size": size(event.size),
                "at": f"{event.stored_at:%H:%M:%S.%f}"[:-3],
                "offset": duration(event.offset),
            }
            for event in found
        ],
        "first": first,
        "following": following,
        "logged": _count(response),
        "types": sorted(_types(response).items()),
        "chosen": chosen,
        "can_read": can_read,
        "hidden_team": "" if can_read else response.team_id,
        "log_url": reverse("admin:responses_response_log", args=[response.pk]),
        "speeds": SPEEDS,
    }


@require_safe
def event_log_json(request: HttpRequest, viewer: Viewer, response: Response) -> HttpResponse:
    """Serve a page of the log as JSON, from `?from=` on. `?whole=1` downloads one event.

    Viewers who may not read content get numbers, types, sizes and times.
    """
    can_read = read_allowed(viewer, response)
    first = start_of(request.GET)
    if request.GET.get("whole"):
        found, _ = _read(response, first=first, limit=1)
        text = found[0].data if found and can_read else ""
        return download(text, f"{response.pk}-event-{first}.json", "application/json")
    found, following = _read(response, first=first)
    listed = []
    for event in found:
        body = {"n": event.number, "type": event.type, "size": event.size, "t": event.offset}
        if can_read:
            body |= {"large": True} if event.size > MAX_INLINE_BYTES else {"data": event.data}
        listed.append(body)
    return JsonResponse({"events": listed, "next": following, "total": _count(response), "readable": can_read})


def _read(
    response: Response, *, first: int, event_type: str = "", limit: int = PAGE
) -> tuple[list[LoggedEvent], int | None]:
    """Return up to `limit` events from sequence number `first` on, and the start of the next page.

    With `event_type`, only events of this type are returned. A page is shorter if its events are large or the type is
    rare.
    """
    found: list[LoggedEvent] = []
    page_bytes = scanned = 0
    for batch in _batches(response, first=first):
        # Only batches have a time, events do not. Never negative, although the clocks of hosts may differ.
        offset = max(0, round((batch.created_at - response.created_at).total_seconds() * 1000))
        frames = batch.frames
        for frame, body in read_frames(frames):
            number = body["sequence_number"]
            if number < first or (event_type and body["type"] != event_type):
                continue
            if len(found) >= limit or (found and page_bytes + len(frame) > _MAX_PAGE_BYTES):
                return found, number
            # The data of a larger event is not sent, so it does not fill the page.
            page_bytes += min(len(frame), MAX_INLINE_BYTES)
            found.append(
                LoggedEvent(
                    number=number,
                    type=body["type"],
                    size=len(frame),
                    stored_at=batch.created_at,
                    offset=offset,
                    data=frame.partition(b"\ndata: ")[2].strip().decode(),
                )
            )
        scanned += len(frames)
        if scanned > _MAX_SCANNED:
            return found, batch.last_sequence + 1
    return found, None


def _count(response: Response) -> int:
    """Return the number of events; zero after retention has dropped the log."""
    rows = EventBatch.objects.filter(response_id=response.pk, team_id=response.team_id)
    # Sequence numbers have no gaps: the last one gives the count without reading frames.
    last = rows.order_by("-first_sequence").values_list("last_sequence", flat=True).first()
    return 0 if last is None else last + 1


def _types(response: Response) -> Counter[str]:
    """Count the events by type, in the first two million bytes of the log."""
    found: Counter[str] = Counter()
    read_so_far = 0
    for batch in _batches(response, first=0):
        frames = batch.frames
        found.update(name.decode() for name in _TYPE.findall(frames))
        read_so_far += len(frames)
        if read_so_far > _MAX_COUNTED:
            break
    return found


def _batches(response: Response, *, first: int) -> Iterator[EventBatch]:
    # A few batches for each query: a batch may be large, and most pages need only one or two.
    rows = EventBatch.objects.filter(response_id=response.pk, team_id=response.team_id)
    # The batch that contains `first` may begin before it.
    begins = rows.filter(first_sequence__lte=first).order_by("-first_sequence")
    start = begins.values_list("first_sequence", flat=True).first() or 0
    while True:
        batches = list(rows.filter(first_sequence__gte=start).order_by("first_sequence")[:_BATCHES_PER_QUERY])
        yield from batches
        if len(batches) < _BATCHES_PER_QUERY:
            return
        start = batches[-1].last_sequence + 1
