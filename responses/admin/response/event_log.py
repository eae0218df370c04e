"""The log of a response's events, read in bounded pieces: it may be megabytes, and 100,000 events long."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from responses.engine.events.fold import read_frames
from responses.models import EventBatch, Response

PAGE = 500
LARGEST = 64 * 1024
"""Of what is larger, only the size is sent along with other events."""
_PIECE_BYTES = 512 * 1024
_SCANNED = 8_000_000
_COUNTED = 2_000_000
_AT_ONCE = 20
_TYPE = re.compile(r"^event: (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvent:
    """An event of the log. `size` in bytes as it was sent; `stored_at` is when its batch was written."""

    number: int
    type: str
    size: int
    stored_at: datetime
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some events in their order. `following` is the number to go on from; None: there are no more."""

    events: list[LoggedEvent]
    following: int | None


def read(response: Response, *, first: int, of_type: str = "", most: int = PAGE) -> Piece:
    """At most `most` events (of one type) from a number on; fewer where they are large, or far between."""
    events: list[LoggedEvent] = []
    taken = scanned = 0
    for batch in _batches(response, first=first):
        for frame, body in read_frames(batch.frames.encode()):
            number = body["sequence_number"]
            if number < first or (of_type and body["type"] != of_type):
                continue
            if len(events) >= most or (events and taken + len(frame) > _PIECE_BYTES):
                return Piece(events=events, following=number)
            taken += min(len(frame), LARGEST)
            data = frame.partition(b"\ndata: ")[2].strip().decode()
            events.append(
                LoggedEvent(number=number, type=body["type"], size=len(frame), stored_at=batch.created_at, data=data)
            )
        scanned += len(batch.frames)
        if scanned > _SCANNED:
            return Piece(events=events, following=batch.last_sequence + 1)
    return Piece(events=events, following=None)


def count(response: Response) -> int:
    """How many events there are; none once the log was dropped."""
    rows = EventBatch.objects.filter(response_id=response.pk, team_id=response.team_id)
    last = rows.order_by("-first_sequence").values_list("last_sequence", flat=True).first()
    return 0 if last is None else last + 1


def types(response: Response) -> Counter[str]:
    """The types of the events at the beginning of the log, with their numbers: of its first two million characters."""
    found: Counter[str] = Counter()
    read_so_far = 0
    for batch in _batches(response, first=0):
        found.update(_TYPE.findall(batch.frames))
        read_so_far += len(batch.frames)
        if read_so_far > _COUNTED:
            break
    return found


def _batches(response: Response, *, first: int) -> Iterator[EventBatch]:
    """The batches from the one with this number on, a few with each query."""
    rows = EventBatch.objects.filter(response_id=response.pk, team_id=response.team_id)
    begins = rows.filter(first_sequence__lte=first).order_by("-first_sequence")
    start = begins.values_list("first_sequence", flat=True).first() or 0
    while True:
        batches = list(rows.filter(first_sequence__gte=start).order_by("first_sequence")[:_AT_ONCE])
        yield from batches
        if len(batches) < _AT_ONCE:
            return
        start = batches[-1].last_sequence + 1
