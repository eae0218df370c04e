"""The targets that failed in a turn, read from the spans that `providers` has recorded.

Calls without a timeline, such as chat completions, store them in their usage record.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from http import HTTPStatus
from typing import Any

from core.errors import UpstreamError, UpstreamTimeout, UpstreamUnavailable, UpstreamUnreachable
from engine.spans import Activity
from engine.turn import Attempt

FAILED_ATTEMPT = [{"activity": Activity.ATTEMPT.value, "state": "failed"}]
"""Part of the stored spans of a turn in which a request to an upstream failed."""

_REPLACED = " failed"
_NEXT = "; next: "
GENERAL_CODES = frozenset(
    kind.default_code for kind in (UpstreamError, UpstreamUnavailable, UpstreamUnreachable, UpstreamTimeout)
)
"""Codes that add nothing to another reason."""
ANSWER_CUT, ANSWER_STALLED = "answer cut", "answer stalled"
"""Reasons of an answer that began well: they say more than its status."""
NOT_REACHED = "not reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTarget:
    """A target that failed, and the reason.

    `began` is when its last request began, in milliseconds since the creation of the response or the beginning of the
    call. `unreached` is the
    number of requests that found no connection: they have no usage record. `was_replaced` is true if the next target
    was tried, and false if the target answered a later request or was the last one.
    """

    upstream: str
    reason: str
    began: int
    unreached: int = 0
    was_replaced: bool = False


def failed_targets(spans: Iterable[Mapping[str, Any]]) -> list[FailedTarget]:
    """Return the targets that failed, in the order of their requests. Empty for models with one target."""
    found: list[FailedTarget] = []
    for span in spans:
        if span["activity"] != Activity.ATTEMPT or span.get("state") != "failed":
            continue
        name, note = span["name"], span.get("note", "")
        if name.endswith(_REPLACED) and _NEXT in note:
            upstream, code = name.removesuffix(_REPLACED), note.partition(_NEXT)[0]
            known = _take_open(found, upstream) or FailedTarget(upstream=upstream, reason="", began=span["began"])
            found.append(replace(known, reason=_reason(known.reason, code), was_replaced=True))
        elif ": " in note:
            upstream, _, reason = note.rpartition(": ")
            earlier = _take_open(found, upstream)
            unreached = (earlier.unreached if earlier else 0) + (reason == NOT_REACHED)
            found.append(FailedTarget(upstream=upstream, reason=reason, began=span["began"], unreached=unreached))
    return found


def stored_failures(
    attempts: Sequence[Attempt], *, upstream: Callable[[Attempt], str], began: datetime, has_failed: bool
) -> list[dict[str, Any]] | None:
    """Return the targets that failed in a call, for a JSON column, or None if none did.

    `upstream` returns the name of an attempt's upstream. `has_failed` is true if the last attempt failed, too.
    """
    found: list[FailedTarget] = []
    failed = attempts if has_failed else attempts[:-1]
    for number, attempt in enumerate(failed, 1):
        name = upstream(attempt)
        earlier = _take_open(found, name)
        found.append(
            FailedTarget(
                upstream=name,
                reason=_reason(_result(attempt), attempt.cause) if attempt.cause else _result(attempt),
                began=round((attempt.began - began).total_seconds() * 1000),
                unreached=(earlier.unreached if earlier else 0) + (not attempt.was_sent),
                was_replaced=number < len(attempts) and attempts[number].target != attempt.target,
            )
        )
    return [asdict(failure) for failure in found] or None


def _result(attempt: Attempt) -> str:
    """Return the result of a failed attempt, in the words of its span."""
    if attempt.status is None:
        return "no answer in time" if attempt.timed_out else NOT_REACHED
    if attempt.status >= HTTPStatus.BAD_REQUEST:
        return f"HTTP {attempt.status}"
    return ANSWER_STALLED if attempt.timed_out else ANSWER_CUT


def read_failures(stored: Iterable[Mapping[str, Any]] | None) -> list[FailedTarget]:
    """Return the targets that `stored_failures` has written."""
    return [FailedTarget(**failure) for failure in stored or ()]


def _reason(reason: str, code: str) -> str:
    if not reason or code in {ANSWER_CUT, ANSWER_STALLED}:
        return code
    return reason if code in GENERAL_CODES else f"{reason} ({code})"


def _take_open(found: list[FailedTarget], upstream: str) -> FailedTarget | None:
    """Remove and return the last entry if it is of this target and the next target was not tried yet."""
    is_same = bool(found) and found[-1].upstream == upstream and not found[-1].was_replaced
    return found.pop() if is_same else None
