"""Spans of the timeline: parts of a run outside of its model calls and tool calls.

Any code that may delay a run is measured with `span`. The recorder takes the spans of its run and stores them in rows
that it writes anyway. Outside of a run, `span` records nothing.
"""

from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self

from core.clock import now

FIRST_ATTEMPT = "Request 1"
"""Name of a turn's first request to the upstream. If it succeeds it is not stored: it would repeat the turn."""
# Bounds the spans in one row: a turn may have hundreds of tool calls, and each is stored.
_MAX_SPANS = 100
_MAX_TEXT = 200
# Shorter spans explain nothing, and most requests are prepared and stored faster.
_MIN_DURATION = timedelta(milliseconds=1)


class Activity(StrEnum):
    """Activity of a run during a span."""

    PREPARE = "prepare"  # the request was checked, or a tool got ready
    CONNECT = "connect"  # a session with an MCP server was opened
    LIST = "list"  # an MCP server listed its tools
    ATTEMPT = "attempt"  # a request was sent to the upstream; a turn has several if it was retried
    GUARDRAIL = "guardrail"  # input or output was checked
    STORAGE = "storage"  # the run waited for the database


@dataclass(slots=True, kw_only=True)
class Span:
    """A measured part of a run. `state` is "failed", "interrupted" or empty; `note` has details, but no content."""

    activity: Activity
    name: str
    began: datetime
    ended: datetime | None = None
    state: str = ""
    note: str = ""

    def stored(self, origin: datetime) -> dict[str, Any]:
        """Return the span for a JSON column: its times in milliseconds since `origin`, and no empty fields."""
        ended = self.ended or now()
        shown = {
            "activity": self.activity.value,
            "name": self.name[:_MAX_TEXT].replace("\0", ""),
            "began": _milliseconds(self.began - origin),
            "ended": _milliseconds(ended - origin),
        }
        texts = {"state": self.state, "note": self.note[:_MAX_TEXT].replace("\0", "")}
        return shown | {name: text for name, text in texts.items() if text}

    # Not a generator of `contextlib`: a run measures a dozen blocks, and this takes a third less time.
    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.state = "failed" if issubclass(kind, Exception) else "interrupted"
        self.ended = now()
        _add(self)


# Tasks inherit this variable, so all tasks of a run add spans to the same list.
_current: ContextVar[list[Span] | None] = ContextVar("spans", default=None)


def begin() -> None:
    """Collect the spans of the current task, and of the tasks that it starts, from now on."""
    _current.set([])


def take(origin: datetime) -> list[dict[str, Any]]:
    """Return the spans that have ended since the last call, in the form in which they are stored."""
    spans = _current.get()
    if not spans:
        return []
    taken = [span.stored(origin) for span in spans[:_MAX_SPANS]]
    spans.clear()
    return taken


def span(activity: Activity, name: str, *, began: datetime | None = None) -> Span:
    """Measure a block: `with span(…)`. If it raises an exception, the span has failed."""
    return Span(activity=activity, name=name, began=began or now())


def record(activity: Activity, name: str, *, began: datetime, state: str = "", note: str = "") -> None:
    """Add a span that ends now."""
    _add(Span(activity=activity, name=name, began=began, ended=now(), state=state, note=note))


def _add(span: Span) -> None:
    collected = _current.get()
    if collected is None or span.ended is None:
        return
    if span.activity is Activity.ATTEMPT and span.name == FIRST_ATTEMPT and not span.state:
        return
    if span.state or span.ended - span.began >= _MIN_DURATION:
        collected.append(span)


def _milliseconds(time: timedelta) -> float:
    return round(max(0.0, time.total_seconds() * 1000), 1)
