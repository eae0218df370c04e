"""Requests, failures, latency, spend and last errors of targets, for the page of model routes.

Sums come from the hourly rollups. Errors are read from the newest usage records, whose number is limited.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from django.db import connection

from core.clock import now
from core.periods import end_of_hour
from engine.failed_targets import FAILED_ATTEMPT, FailedTarget, failed_targets, read_failures
from responses.rollups import histograms
from responses.rollups.queries import RollupQuery, fetch_rows
from responses.rollups.sources import CALLS, RESPONSES
from tenants.models import Model
from tenants.prices import sum_costs

MAX_READ = 20_000
"""Maximum number of usage records that are read, newest first, to find those of the targets."""

MAX_EXAMINED = 1000
"""Maximum number of usage records whose errors are read, newest first."""

MAX_ERRORS = 3
"""Maximum number of errors of a target."""

_HOURS = timedelta(hours=2)
_MEDIAN = 0.5
# Responses that are not in the background.
_WAITING_MODES = ["json", "stream"]
_FAILED_TURNS = """
SELECT turn.response_id, turn.number, turn.spans::text, response.created_at
FROM responses_turn AS turn JOIN responses_response AS response ON response.id = turn.response_id
WHERE turn.response_id = ANY(%s) AND turn.spans @> %s::jsonb
"""
_ERRORS = "SELECT id, error::text FROM responses_response WHERE id = ANY(%s)"
Key = tuple[str, str]
"""The public name and the upstream id of a target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetError:
    """A failure of a target. `object_id` is the response or chat completion."""

    at: datetime
    text: str
    object_id: str
    is_response: bool


@dataclass(slots=True, kw_only=True)
class TargetActivity:
    """Requests of a target in a period, and their failures. Requests that found no connection count as both.

    `first_token_ms` and `duration_ms` are medians, None without requests.
    """

    requests: int = 0
    failed: int = 0
    cost: Decimal | None = None
    durations: Sequence[int] = (0,) * histograms.BUCKETS
    first_tokens: Sequence[int] = (0,) * histograms.BUCKETS
    errors: list[TargetError] = field(default_factory=list)

    @property
    def error_rate(self) -> str:
        """Share of failed requests, such as "0.4 %"; a dash without requests."""
        if not self.requests:
            return "–"
        share = 100 * self.failed / self.requests
        # Never rounded to 0 %: that must mean that no request failed.
        return "< 0.1 %" if 0 < share < 0.1 else f"{share:.3g} %"

    @property
    def duration_ms(self) -> int | None:
        """Median duration of a request."""
        return histograms.quantile(self.durations, _MEDIAN)

    @property
    def first_token_ms(self) -> int | None:
        """Median time to the first token of responses that clients waited for."""
        return histograms.quantile(self.first_tokens, _MEDIAN)


class _Call(NamedTuple):
    """A usage record."""

    occurred_at: datetime
    endpoint: str
    object_id: str
    turn: int
    model: str
    upstream_id: str
    outcome: str
    duration_ms: int
    failed_targets: str | None

    @property
    def failures(self) -> list[FailedTarget]:
        """The targets that failed in this call, if it has no timeline."""
        return read_failures(json.loads(self.failed_targets)) if self.failed_targets else []


def start_of_period() -> datetime:
    """Return the beginning of the previous hour: the present one may have just begun."""
    return end_of_hour(now()) - _HOURS


def activity(targets: Collection[Model], *, since: datetime) -> Mapping[Key, TargetActivity]:
    """Return the activity of targets since the beginning of an hour."""
    found: dict[Key, TargetActivity] = defaultdict(TargetActivity)
    _add_sums(found, targets, since)
    calls = _newest_calls(targets, since)
    with_message = _add_failed_calls(found, calls, targets)
    by_upstream: dict[str, list[Model]] = defaultdict(list)
    for target in targets:
        by_upstream[target.upstream.name].append(target)
    _add_failed_targets(found, calls, by_upstream, with_message)
    _add_stored_failures(found, calls, by_upstream)
    for entry in found.values():
        entry.errors = sorted(entry.errors, key=lambda error: error.at, reverse=True)[:MAX_ERRORS]
    return found


def key_of(target: Model) -> Key:
    """Return the key of a target."""
    return target.name, target.upstream_id


def _key(targets: Iterable[Model], model: str, upstream_id: str) -> Key | None:
    """Return the target to which a request for a model belongs, if any; targets of `*` have no names of their own."""
    keys = {key_of(target) for target in targets}
    return next((key for key in ((model, upstream_id), ("*", upstream_id)) if key in keys), None)


def _add_sums(found: dict[Key, TargetActivity], targets: Collection[Model], since: datetime) -> None:
    until, by = since + _HOURS, ("upstream_id", "model")
    only = {"upstream_id": sorted({target.upstream_id for target in targets})}
    calls = RollupQuery(
        source=CALLS, since=since, until=until, measures=("calls", "failed", "duration", "cost"), by=by, only=only
    )
    for row in fetch_rows(calls):
        if key := _key(targets, row.key[1], row.key[0]):
            entry, values = found[key], row.values
            entry.requests += values["calls"]
            entry.failed += values["failed"]
            entry.cost = sum_costs(entry.cost, values["cost"])
            entry.durations = [sum(counts) for counts in zip(entry.durations, values["duration"], strict=True)]
    # The first token of a background response includes its time in the queue.
    only = {**only, "mode": _WAITING_MODES}
    responses = RollupQuery(source=RESPONSES, since=since, until=until, measures=("first_token",), by=by, only=only)
    for row in fetch_rows(responses):
        if key := _key(targets, row.key[1], row.key[0]):
            entry = found[key]
            entry.first_tokens = [
                sum(counts) for counts in zip(entry.first_tokens, row.values["first_token"], strict=True)
            ]


def _newest_calls(targets: Collection[Model], since: datetime) -> list[_Call]:
    columns = ", ".join(_Call._fields)
    # The inner limit bounds the time on a busy platform whose other models have one target.
    sql = f"""
WITH newest AS MATERIALIZED (
    SELECT {columns} FROM tenants_usagerecord WHERE occurred_at >= %s ORDER BY occurred_at DESC LIMIT {MAX_READ}
)
SELECT {columns} FROM newest WHERE upstream_id = ANY(%s) ORDER BY occurred_at DESC LIMIT {MAX_EXAMINED}
"""  # noqa: S608 - names and numbers of our own
    with connection.cursor() as cursor:
        cursor.execute(sql, [since, sorted({target.upstream_id for target in targets})])
        return [_Call(*row) for row in cursor.fetchall()]


def _add_failed_targets(
    found: dict[Key, TargetActivity],
    calls: Sequence[_Call],
    targets: Mapping[str, Sequence[Model]],
    with_message: AbstractSet[str],
) -> None:
    """Add the failures in timelines, except those of the last targets of responses `with_message`."""
    latest = {(call.object_id, call.turn): call for call in reversed(calls)}
    ids = sorted({call.object_id for call in calls})
    with connection.cursor() as cursor:
        cursor.execute(_FAILED_TURNS, [ids, json.dumps(FAILED_ATTEMPT)])
        turns = cursor.fetchall()
    for response_id, number, spans, created_at in turns:
        call = latest.get((response_id, number))
        if call is None:
            continue
        for failure in failed_targets(json.loads(spans)):
            if (key := _key_of_failure(targets, failure, call)) is not None:
                entry = found[key]
                entry.requests += failure.unreached
                entry.failed += failure.unreached
                if response_id in with_message and not failure.was_replaced:
                    continue
                at = created_at + timedelta(milliseconds=failure.began)
                entry.errors.append(TargetError(at=at, text=failure.reason, object_id=response_id, is_response=True))


def _add_stored_failures(
    found: dict[Key, TargetActivity], calls: Sequence[_Call], targets: Mapping[str, Sequence[Model]]
) -> None:
    """Add the failures that usage records have of calls without a timeline."""
    for call in calls:
        began = call.occurred_at - timedelta(milliseconds=call.duration_ms)
        for failure in call.failures:
            if (key := _key_of_failure(targets, failure, call)) is not None:
                entry, at = found[key], began + timedelta(milliseconds=failure.began)
                entry.requests += failure.unreached
                entry.failed += failure.unreached
                error = TargetError(at=at, text=failure.reason, object_id=call.object_id, is_response=False)
                entry.errors.append(error)


def _key_of_failure(targets: Mapping[str, Sequence[Model]], failure: FailedTarget, call: _Call) -> Key | None:
    """Return the target that failed; `targets` are those of each upstream by its name."""
    # The record has the name of the model that answered, which may be a fallback model.
    target = min(targets.get(failure.upstream, ()), key=lambda row: row.name != call.model, default=None)
    return key_of(target) if target is not None else None


def _add_failed_calls(
    found: dict[Key, TargetActivity], calls: Sequence[_Call], targets: Collection[Model]
) -> AbstractSet[str]:
    """Add the failures that clients have received, and those of endpoints without a timeline.

    Return the responses whose error was added.
    """
    failed = [call for call in calls if call.outcome == "failed"]
    with connection.cursor() as cursor:
        cursor.execute(_ERRORS, [sorted({call.object_id for call in failed})])
        errors = {response_id: json.loads(error) if error else None for response_id, error in cursor.fetchall()}
    seen: set[str] = set()
    explained = {call.object_id for call in calls if call.failed_targets}
    for call in failed:
        if call.object_id in explained:
            continue
        is_response = call.object_id in errors
        error = errors.get(call.object_id)
        # The newest record of a failed response is that of its last target. The timeline has the others.
        if is_response and (not error or call.object_id in seen):
            continue
        if key := _key(targets, call.model, call.upstream_id):
            seen |= {call.object_id} if is_response else set()
            text = error["message"] if error else f"Failed ({call.endpoint})"
            found[key].errors.append(
                TargetError(at=call.occurred_at, text=text, object_id=call.object_id, is_response=is_response)
            )
    return seen
