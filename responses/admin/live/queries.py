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

from core.db.row_security import EVERY_TEAM
from core.work import heartbeats
from engine.events.compression import decompress
from responses.models import RUNNING, Response, Status, ToolCall, Turn
from responses.runs.decisions.listing import awaited_places
from tenants.models import Team

# Limits for one page and for one poll, because the page is refreshed several times a second.
MAX_EXECUTED = 200
MAX_WAITING = 100
MAX_AWAITING = 100
_MAX_COUNTED = 1000
_MAX_STEPS = 24
_MAX_STEPS_READ = 2000
# The preview needs only the end of the log. A page that was disconnected does not receive everything that it missed.
_TAIL_BATCHES = 6
_TAIL_BYTES = 6000
_PREVIEW_CHARACTERS = 160
# Final statuses are kept for some time, because a slow page may need the status of an ended run several polls later.
_MAX_ENDED = 500
_WORKERS_SECONDS = 3.0

# Columns to read: without parameters and metadata, which may be large and are not shown.
_COLUMNS = (
    "id",
    "team_id",
    "created_at",
    "status",
    "mode",
    "endpoint",
    "background",
    "stored",
    "model",
    "turns",
    "tool_calls",
    "input_tokens",
    "output_tokens",
    "lease_owner",
    "lease_token",
    "lease_until",
    "attempt",
    "not_before",
    "waits_until",
    "ended_at",
)
# Runs that wait for a decision wait for no worker, and are not in the index of the queue.
_IS_RUNNING = "status IN ('queued', 'in_progress') AND waits_until IS NULL"
# A loose index scan finds the teams with background work: one index lookup for each team, as in the claim query.
_TEAMS_SQL = f"""
    (SELECT team_id AS id FROM responses_response WHERE background AND {_IS_RUNNING} ORDER BY team_id LIMIT 1)
    UNION ALL
    SELECT (SELECT team_id FROM responses_response
            WHERE background AND {_IS_RUNNING} AND team_id > team.id ORDER BY team_id LIMIT 1)
    FROM team WHERE team.id IS NOT NULL
"""  # noqa: S608 - constants of ours
# Counts each team's queue up to a limit: an exact count of a long queue would read all of it.
_WAITING_SQL = """
WITH RECURSIVE team(id) AS ({teams}),
waiting AS (
    SELECT next.id, next.created_at, next.status
    FROM team CROSS JOIN LATERAL (
        SELECT id, created_at, status FROM responses_response
        WHERE team_id = team.id AND background AND {is_running} AND lease_until IS NULL
        ORDER BY created_at LIMIT %(counted)s
    ) AS next
)
SELECT count(*) OVER (), count(*) FILTER (WHERE status = 'queued') OVER (), id
FROM waiting ORDER BY created_at LIMIT %(limit)s
"""
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
    - `executed`, `waiting`: the numbers of runs in progress and of queued runs, each at most 1,000.
    - `awaiting`: the number of runs that wait for decisions of people, at most `MAX_AWAITING`.
    - `teams`: the names of their teams.
    - `ended`: the final statuses of runs that ended since the first snapshot.
    - `workers`: the number of live workers, or None if Redis is unavailable.
    """

    rows: Mapping[str, RunRow] = field(default_factory=dict)
    executed: int = 0
    waiting: int = 0
    awaiting: int = 0
    oldest_waiting: datetime | None = None
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
    leased = Response.objects.only(*_COLUMNS).filter(status__in=RUNNING, lease_until__isnull=False)
    executed = list(leased.order_by("lease_until")[:_MAX_COUNTED])
    counted, queued, waiting = _waiting(teams)
    decisions = _decisions(teams)
    responses = {row.pk: row for row in [*executed[:MAX_EXECUTED], *waiting, *_awaiting(decisions)]}
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
    # Claimed by a worker that has not begun yet.
    claimed = sum(row.status == Status.QUEUED for row in executed)
    return RunsSnapshot(
        rows=rows,
        executed=len(executed) - claimed + counted - queued,
        waiting=claimed + queued,
        awaiting=sum(bool(row.decision_id) for row in rows.values()),
        oldest_waiting=_oldest(row for row in waiting if row.status == Status.QUEUED),
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


def queue() -> tuple[int, datetime | None]:
    """Return the number of responses of all teams that wait for a worker, and the creation time of the oldest.

    The number is at most 1,000; the time is None if no response waits.
    """
    counted, _, waiting = _waiting([EVERY_TEAM])
    return counted, _oldest(waiting)


def _oldest(waiting: Iterable[Response]) -> datetime | None:
    """Return the creation time of the oldest run that a worker could execute."""
    return min((row.created_at for row in waiting if row.planned_start is None), default=None)


def holders() -> list[str]:
    """Return the lease owner of each active run, 1,000 at most."""
    rows = Response.objects.filter(status__in=RUNNING, lease_until__isnull=False, lease_owner__isnull=False)
    return [
        owner for owner in rows.order_by("lease_until").values_list("lease_owner", flat=True)[:_MAX_COUNTED] if owner
    ]


def _waiting(teams: Collection[str]) -> tuple[int, int, list[Response]]:
    """Return the number of runs that wait for a worker, the number of queued ones, and the longest waiting responses.

    Waiting runs that are not queued were requeued: their status is `in_progress`.
    """
    sees_every_team = EVERY_TEAM in teams
    teams_sql = _TEAMS_SQL if sees_every_team else "SELECT unnest(%(teams)s::text[])"
    sql = _WAITING_SQL.format(teams=teams_sql, is_running=_IS_RUNNING)
    parameters: dict[str, Any] = {"teams": [*teams], "limit": MAX_WAITING, "counted": _MAX_COUNTED}
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        found = cursor.fetchall()
    if not found:
        return 0, 0, []
    # Runs may have ended between the two statements: the status is checked again.
    rows = Response.objects.only(*_COLUMNS).filter(pk__in=[key for *_, key in found], status__in=RUNNING)
    every, queued = (min(int(count), _MAX_COUNTED) for count in found[0][:2])
    return every, queued, list(rows.order_by("created_at"))


def _decisions(teams: Collection[str]) -> dict[str, str]:
    """Return the runs that wait for decisions, each with the decision that expires first."""
    places = awaited_places(None if EVERY_TEAM in teams else [*teams], limit=MAX_AWAITING)
    return {place.response_id: place.decision_id for place in reversed(places)}


def _awaiting(decisions: Mapping[str, str]) -> list[Response]:
    if not decisions:
        return []
    rows = Response.objects.only(*_COLUMNS).filter(pk__in=[*decisions], status__in=RUNNING, waits_until__isnull=False)
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
