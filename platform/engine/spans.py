"""Spans of the timeline: parts of a run outside of its model calls and tool calls.

Any code that may delay a run is measured with `span`. The recorder takes the spans of its run and stores them in rows
that it writes anyway. Outside of a run, `span` records nothing.
"""

import time
from collections.abc import Mapping
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
_MIN_SECONDS = 0.001


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
    """A measured part of a run. `state` is "failed", "interrupted" or empty; `note` has details, but no content.

    `detail` describes a failed request to another server, for operators: its field `body`, the text of the server's
    answer, may quote content.
    """

    activity: Activity
    name: str
    began: datetime
    ended: datetime
    state: str = ""
    note: str = ""
    detail: Mapping[str, Any] | None = None

    def stored(self, origin: datetime, *, with_content: bool) -> dict[str, Any]:
        """Return the span for a JSON column: its times in milliseconds since `origin`, and no empty fields."""
        shown = {
            "activity": self.activity.value,
            "name": self.name[:_MAX_TEXT].replace("\0", ""),
            "began": _milliseconds(self.began - origin),
            "ended": _milliseconds(self.ended - origin),
        }
        texts = {"state": self.state, "note": self.note[:_MAX_TEXT].replace("\0", "")}
        shown |= {name: text for name, text in texts.items() if text}
        if self.detail is None:
            return shown
        return shown | {"detail": {name: self.detail[name] for name in self.detail if with_content or name != "body"}}


class span:  # noqa: N801 - a context manager
    """Measures a block, from the creation of this object or from `began`. If the block raises, the span has failed.

    `note` may be set within the block.
    """

    # Not a generator of `contextlib`: a run measures a dozen blocks, and this takes a third less time.
    __slots__ = ("_activity", "_began", "_name", "_since", "detail", "note")

    def __init__(self, activity: Activity, name: str, *, began: datetime | None = None) -> None:
        self._activity = activity
        self._name = name
        self._began = began
        self._since = time.monotonic()
        self.note = ""
        self.detail: Mapping[str, Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        seconds = time.monotonic() - self._since
        if kind is None and self._began is None and seconds < _MIN_SECONDS:
            # Most spans. The clock is not read for them.
            return
        state = "" if kind is None else "failed" if issubclass(kind, Exception) else "interrupted"
        ended = now()
        began = self._began or ended - timedelta(seconds=seconds)
        _add(
            Span(
                activity=self._activity,
                name=self._name,
                began=began,
                ended=ended,
                state=state,
                note=self.note,
                detail=self.detail,
            )
        )


# Tasks inherit this variable, so all tasks of a run add spans to the same list.
_current: ContextVar[list[Span] | None] = ContextVar("spans", default=None)


def begin() -> None:
    """Collect the spans of the current task, and of the tasks that it starts, from now on."""
    _current.set([])


def take(origin: datetime, *, with_content: bool = True) -> list[dict[str, Any]]:
    """Return the spans that have ended since the last call, in the form in which they are stored."""
    spans = _current.get()
    if not spans:
        return []
    taken = [measured.stored(origin, with_content=with_content) for measured in spans[:_MAX_SPANS]]
    spans.clear()
    return taken


def record(
    activity: Activity,
    name: str,
    *,
    began: datetime,
    state: str = "",
    note: str = "",
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Add a span that ends now."""
    _add(Span(activity=activity, name=name, began=began, ended=now(), state=state, note=note, detail=detail))


def _add(measured: Span) -> None:
    collected = _current.get()
    if collected is None:
        return
    if measured.activity is Activity.ATTEMPT and measured.name == FIRST_ATTEMPT and not measured.state:
        return
    if measured.state or measured.ended - measured.began >= timedelta(seconds=_MIN_SECONDS):
        collected.append(measured)


def _milliseconds(duration: timedelta) -> float:
    return round(max(0.0, duration.total_seconds() * 1000), 1)
