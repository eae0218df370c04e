"""Time ranges shared by the response list and its filters."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.http import HttpRequest

# The request id is created when the request's headers arrive, the response after its body was read; uploads may be
# slow.
_UPLOAD = timedelta(hours=1)
LONGEST_RUN = timedelta(days=1)
"""Longest time after the creation of a response in which its tool calls are looked up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """Time range of a list and the request that reads it.

    `since` is None for a lookup by id, which covers all time.
    """

    request: HttpRequest
    since: datetime | None = None
    until: datetime | None = None

    @property
    def longest_run(self) -> timedelta:
        """Return how long after the end of the range tool calls of its responses may start."""
        return LONGEST_RUN


def creation_window(moment: datetime) -> tuple[datetime, datetime]:
    """Return the range in which a request created its response, given the time stamp of the request id."""
    return moment - timedelta(minutes=1), moment + _UPLOAD
