"""Stretches of time that the list of responses and its filters have in common."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.http import HttpRequest

# A request's id is made when its head arrives, the response when its body was read.
_UPLOAD = timedelta(hours=1)
LONGEST_RUN = timedelta(days=1)
"""How long after a response began its calls are looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The time that a list shows, to whom. Without a beginning: all of the time, in which an id is looked up."""

    request: HttpRequest
    since: datetime | None = None
    until: datetime | None = None

    @property
    def longest_run(self) -> timedelta:
        """How long after its end calls of its responses may begin."""
        return LONGEST_RUN


def near(moment: datetime) -> tuple[datetime, datetime]:
    """When the response of a request was made whose id is from this moment."""
    return moment - timedelta(minutes=1), moment + _UPLOAD
