"""Queries for the page of running jobs: active responses, their turns and calls, and the ends of their event logs.

A snapshot takes a few statements that read partial indexes of active responses and the latest batches of their logs, so
its cost does not depend on the number of stored responses. The turns and calls of a run are read again only if its log
has new events other than deltas. Row-level security restricts the queries to the teams of the current scope.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import orjson
from django.db import connection

from core.work import heartbeats
from engine.events.compression import decompress
from responses.admin.live.active import COLUMNS, ActiveRuns, read_active
from responses.models import RUNNING, Response, ToolCall, Turn
from tenants.models import Team

# Limits for one page and for one poll, because the page is refreshed several times a second.
MAX_EXECUTED = 200
_MAX_STEPS = 24
_MAX_STEPS_READ = 2000
# The preview needs only the end of the log. A page that was disconnected does not receive everything that it missed.
_TAIL_BATCHES = 6
_TAIL_BYTES = 6000
_PREVIEW_CHARACTERS = 160
# Final statuses are kept for some time, because a slow page may need the status of an ended run several polls later.
_MAX_ENDED = 500
_WORKERS_SECONDS = 3.0

_TAILS_SQL = """
SELECT run.id, batch.first_sequence, batch.last_sequence, batch.compressed
FROM unnest(%s::text[], %s::integer[]) AS run(id, after)
CROSS JOIN LATERAL (
    SELECT first_sequence, last_sequence, compressed FROM responses_eventbatch
    WHERE response_id = run.id AND first_sequence > run.after
    ORDER BY first_sequence DESC LIMIT %s
) AS batch
ORDER BY run.id, batch.first_sequence
"""
# The first batch is written when the response is created, the second when a worker has begun.
_BEGUN_SQL = """
SELECT run.id, batch.created_at
FROM unnest(%s::text[]) AS run(id)
CROSS JOIN LATERAL (
    SELECT created_at FROM responses_eventbatch
    WHERE response_id = run.id AND first_sequence > 0
    ORDER BY first_sequence LIMIT 1
) AS batch
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A completed turn or a tool call of a run. `ended_at` is None while a call is running."""

    kind: str
    turn: int
    name: str
    state: str
    started_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTail:
    """The end of a run's event log: the last sequence number and a preview of the output text.

    `has_changes` is True if the batches read last contain events other than deltas.
    """

    last_event: int = -1
    preview: str = ""
    has_changes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """An active run. `begun_at` is the time when a worker began the run, or the creation time of a foreground run.

    `decision_id` is the decision for which the run waits, the first to expire.
    """

    response: Response
    log_tail: LogTail = field(default_factory=LogTail)
    steps: Sequence[Step] = ()
    begun_at: datetime | None = None
    decision_id: str = ""

    @property
    def is_waiting(self) -> bool:
        """True if no worker executes the run: it has not begun, was requeued, or waits for a decision."""
        return self.response.lease_until is None

    @property
    def active_calls(self) -> list[str]:
        """Names of the tools that are running."""
        return [step.name for step in self.steps if step.kind == "call" and step.state == "in_progress"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsSnapshot:
    """The active runs at one moment.

    - `rows`: the first few hundred runs, by response id.
    - `active`: the numbers of running and waiting runs.
    - `teams`: the names of their teams.
    - `ended`: the final statuses of runs that ended since the first snapshot.
    - `workers`: the number of live workers, or None if Redis is unavailable.
    """

    rows: Mapping[str, RunRow] = field(default_factory=dict)
    active: ActiveRuns = field(default_factory=ActiveRuns)
    teams: Mapping[str, str] = field(default_factory=dict)
    ended: Mapping[str, str] = field(default_factory=dict)
    workers: int | None = None


def take_snapshot(*, teams: Collection[str], before: RunsSnapshot | None = None) -> RunsSnapshot:
    """Return the active runs of these teams, or of every team. `before` is the previous snapshot of the same reader.

    Must run inside a scope that sees these teams.
    """
    before = before or RunsSnapshot()
    known = before.rows
    # Runs with an expired lease come first, because they need attention.
    active = read_active(teams)
    decisions = {place.response_id: place.decision_id for place in reversed(active.decisions)}
    responses = {row.pk: row for row in [*active.executed[:MAX_EXECUTED], *active.waiting, *_awaiting(decisions)]}
    tails = _log_tails(responses.values(), known)
    begun = _begun(responses.values(), known)
    rows = {
        key: RunRow(
            response=response,
            log_tail=tails[key],
            steps=known[key].steps if key in known else (),
            begun_at=begun.get(key),
            decision_id=decisions.get(key, "") if response.awaits_decision else "",
        )
        for key, response in responses.items()
    }
    # Most polls find only deltas. Reading turns and calls only after other events saves two queries for most runs.
    stale = [key for key, row in rows.items() if _is_stale(row, known.get(key))]
    steps = _steps(stale)
    rows |= {key: replace(rows[key], steps=steps.get(key, ())) for key in stale}
    ended = dict(before.ended)
    # Deleted responses have no final status.
    if gone := known.keys() - rows.keys():
        ended |= dict(Response.objects.filter(pk__in=[*gone], ended_at__isnull=False).values_list("pk", "status"))
    # Team names rarely change, so each reader reads a name only once.
    unnamed = {row.response.team_id for row in rows.values()} - before.teams.keys()
    names = dict(Team.objects.filter(pk__in=unnamed).values_list("pk", "name")) if unnamed else {}
    return RunsSnapshot(
        rows=rows,
        active=active,
        teams={**before.teams, **names},
        ended=dict([*ended.items()][-_MAX_ENDED:]),
        workers=WorkerCount.count(),
    )


class WorkerCount:
    """Number of live workers, read from Redis once every few seconds for all open pages."""

    _count: int | None = None
    _checked_at = float("-inf")

    @classmethod
    def count(cls) -> int | None:
        """Return the number of live workers, at most a few seconds old, or None if Redis is unavailable."""
        if time.monotonic() - cls._checked_at > _WORKERS_SECONDS:
            # Set before the call: while Redis is unavailable, only one caller in three seconds waits for it.
            cls._checked_at = time.monotonic()
            beats = heartbeats.live_processes()
            cls._count = None if beats is None else sum(beat.kind == "worker" for beat in beats)
        return cls._count


def _awaiting(decisions: Mapping[str, str]) -> list[Response]:
    if not decisions:
        return []
    rows = Response.objects.only(*COLUMNS).filter(pk__in=[*decisions], status__in=RUNNING, waits_until__isnull=False)
    return list(rows)


# -- event logs --------------------------------------------------------------------------------------------------------


def _log_tails(responses: Iterable[Response], known: Mapping[str, RunRow]) -> dict[str, LogTail]:
    before = {row.pk: known[row.pk].log_tail if row.pk in known else LogTail() for row in responses}
    found = {key: replace(log_tail, has_changes=False) for key, log_tail in before.items()}
    with connection.cursor() as cursor:
        after = [log_tail.last_event for log_tail in before.values()]
        cursor.execute(_TAILS_SQL, [[*before], after, _TAIL_BATCHES])
        for key, _, last, compressed in cursor.fetchall():
            preview, has_changes = found[key].preview, found[key].has_changes
            # A batch may be large, and only its end is needed.
            for event in _events(decompress(compressed)[-_TAIL_BYTES:]):
                kind = event.get("type", "")
                if kind.endswith("output_text.delta"):
                    preview = (preview + event["delta"])[-_PREVIEW_CHARACTERS:]
                elif not kind.endswith(".delta"):
                    has_changes = True
                    # A new content part starts a new text: the preview shows the latest one.
                    preview = "" if kind == "response.content_part.added" else preview
            found[key] = LogTail(last_event=last, preview=preview, has_changes=has_changes)
    return found


def _events(frames: bytes) -> Iterable[dict[str, Any]]:
    """Yield the events of a piece of the log. If the beginning of its first frame is missing, the frame is skipped."""
    for frame in frames.split(b"\n\n"):
        head, found, data = frame.partition(b"\ndata: ")
        if found and head.startswith(b"event: "):
            yield orjson.loads(data)


def _begun(responses: Iterable[Response], known: Mapping[str, RunRow]) -> dict[str, datetime]:
    found = {key: row.begun_at for key, row in known.items() if row.begun_at is not None}
    unknown = []
    for row in responses:
        # Foreground runs begin in the request that creates them.
        if not row.background:
            found[row.pk] = row.created_at
        elif row.pk not in found and row.status == "in_progress":
            unknown.append(row.pk)
    if unknown:
        with connection.cursor() as cursor:
            cursor.execute(_BEGUN_SQL, [unknown])
            found |= dict(cursor.fetchall())
    return found


# -- turns and calls ---------------------------------------------------------------------------------------------------


def _is_stale(row: RunRow, before: RunRow | None) -> bool:
    """Return True if the turns or calls of the run may have changed since the previous snapshot."""
    if before is None or row.log_tail.has_changes:
        return True
    # The counters and the fencing token also show progress that is not in the end of the log.
    new, old = row.response, before.response
    return (new.turns, new.tool_calls, new.lease_token) != (old.turns, old.tool_calls, old.lease_token)


def _steps(response_ids: Collection[str]) -> dict[str, list[Step]]:
    """Return the last turns and calls of each run, in the order in which they began."""
    if not response_ids:
        return {}
    turns = Turn.objects.filter(response_id__in=response_ids).order_by("-number")[:_MAX_STEPS_READ]
    calls = ToolCall.objects.filter(response_id__in=response_ids).order_by("-turn", "-id")[:_MAX_STEPS_READ]
    found: dict[str, list[Step]] = {}
    for turn in turns.only("response_id", "number", "state", "started_at", "ended_at"):
        found.setdefault(turn.response_id, []).append(
            Step(
                kind="turn",
                turn=turn.number,
                name=f"turn {turn.number + 1}",
                state=turn.state,
                started_at=turn.started_at,
                ended_at=turn.ended_at,
            )
        )
    for call in calls.only("response_id", "turn", "name", "status", "started_at", "ended_at"):
        found.setdefault(call.response_id, []).append(
            Step(
                kind="call",
                turn=call.turn,
                name=call.name,
                state=call.status,
                started_at=call.started_at,
                ended_at=call.ended_at,
            )
        )
    return {
        key: sorted(steps, key=lambda step: (step.turn, step.kind == "call", step.started_at))[-_MAX_STEPS:]
        for key, steps in found.items()
    }
