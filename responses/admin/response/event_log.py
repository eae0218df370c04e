"""Reads the event log of a response in bounded pages: a log may have 100,000 events and many megabytes."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from responses.engine.events.fold import read_frames
from responses.models import EventBatch, Response

PAGE = 500
MAX_INLINE_BYTES = 64 * 1024
"""Larger events are listed with their size only; each can be downloaded separately."""
_MAX_PAGE_BYTES = 512 * 1024
# Characters read for one page: a rare event type must not make one request read the whole log.
_MAX_SCANNED = 8_000_000
_MAX_COUNTED = 2_000_000
_BATCHES_PER_QUERY = 20
_TYPE = re.compile(r"^event: (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvent:
    """An event of the log. `size` is that of its SSE frame in bytes; `stored_at` is when its batch was written."""

    number: int
    type: str
    size: int
    stored_at: datetime
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """Events in order. `following` is the sequence number of the next page, None on the last page."""

    events: list[LoggedEvent]
    following: int | None


def read(response: Response, *, first: int, event_type: str = "", limit: int = PAGE) -> LogPage:
    """Return up to `limit` events (of one type) from sequence number `first` on.

    A page is shorter where events are large, or where events of the type are rare.
    """
    events: list[LoggedEvent] = []
    page_bytes = scanned = 0
    for batch in _batches(response, first=first):
        for frame, body in read_frames(batch.frames.encode()):
            number = body["sequence_number"]
            if number < first or (event_type and body["type"] != event_type):
                continue
            if len(events) >= limit or (events and page_bytes + len(frame) > _MAX_PAGE_BYTES):
                return LogPage(events=events, following=number)
            # The data of a larger event is not sent, so it does not fill the page.
            page_bytes += min(len(frame), MAX_INLINE_BYTES)
            data = frame.partition(b"\ndata: ")[2].strip().decode()
            events.append(
                LoggedEvent(number=number, type=body["type"], size=len(frame), stored_at=batch.created_at, data=data)
            )
        scanned += len(batch.frames)
        if scanned > _MAX_SCANNED:
            return LogPage(events=events, following=batch.last_sequence + 1)
    return LogPage(events=events, following=None)


def count(response: Response) -> int:
    """Return the number of events; zero after retention has dropped the log."""
    rows = EventBatch.objects.filter(response_id=response.pk, team_id=response.team_id)
    # Sequence numbers have no gaps: the last one gives the count without reading frames.
    last = rows.order_by("-first_sequence").values_list("last_sequence", flat=True).first()
    return 0 if last is None else last + 1


def types(response: Response) -> Counter[str]:
    """Count the events by type, in the first two million characters of the log."""
    found: Counter[str] = Counter()
    read_so_far = 0
    for batch in _batches(response, first=0):
        found.update(_TYPE.findall(batch.frames))
        read_so_far += len(batch.frames)
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
